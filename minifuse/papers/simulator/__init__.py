"""The simulator's error on unseen models and loads, and what it finds of all techniques."""

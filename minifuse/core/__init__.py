"""The loop and its nouns."""

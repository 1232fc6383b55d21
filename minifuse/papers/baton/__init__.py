"""Baton's tables and figures (section 5)."""

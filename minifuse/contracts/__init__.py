"""Checks of what stages return, a file a noun."""

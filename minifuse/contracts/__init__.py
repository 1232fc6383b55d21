"""Checks of what stages return, one file for each kind of thing."""

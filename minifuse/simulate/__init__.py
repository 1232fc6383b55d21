"""Cost models: the seconds of a plan in virtual time."""

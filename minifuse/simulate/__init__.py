"""Cost models say how many seconds a plan takes in virtual time."""

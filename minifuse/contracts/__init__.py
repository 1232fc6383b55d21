"""What a stage's methods may return: the contract of each kind of stage, and the seam that checks them."""

"""Flover's experiments on one device (sections VI-B to VI-D): fusion against concurrent instances."""

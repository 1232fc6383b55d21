"""Pensieve's experiments (thesis, chapter 3)."""

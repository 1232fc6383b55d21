"""Pensieve's experiments (thesis, chapter 3)."""

from minifuse.reproduce.pensieve.fig3_17 import FIG3_17

__all__ = ["EXPERIMENTS"]

EXPERIMENTS = (FIG3_17,)

"""Flover's experiments on one device (sections VI-B to VI-D): fusion against concurrent instances."""

from minifuse.reproduce.flover.fig7 import FIG7
from minifuse.reproduce.flover.fig8 import FIG8
from minifuse.reproduce.flover.fig9 import FIG9

__all__ = ["EXPERIMENTS"]

EXPERIMENTS = (FIG7, FIG8, FIG9)

"""BatchMaker's experiments (thesis, chapter 2): cellular batching against batches of whole graphs."""

from minifuse.reproduce.batchmaker.fig2_3 import FIG2_3
from minifuse.reproduce.batchmaker.fig2_5 import FIG2_5
from minifuse.reproduce.batchmaker.fig2_7 import FIG2_7
from minifuse.reproduce.batchmaker.fig2_8 import FIG2_8
from minifuse.reproduce.batchmaker.fig2_9 import FIG2_9
from minifuse.reproduce.batchmaker.fig2_11 import FIG2_11
from minifuse.reproduce.batchmaker.fig2_13 import FIG2_13
from minifuse.reproduce.batchmaker.fig2_14 import FIG2_14
from minifuse.reproduce.batchmaker.fig2_15 import FIG2_15

__all__ = ["EXPERIMENTS"]

EXPERIMENTS = (FIG2_3, FIG2_5, FIG2_7, FIG2_8, FIG2_9, FIG2_11, FIG2_13, FIG2_14, FIG2_15)

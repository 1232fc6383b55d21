"""Batching policies, which choose the work that runs next. Importing this registers them."""

from minifuse.batching.cellular import Cellular
from minifuse.batching.decoupled import Decoupled
from minifuse.batching.dynamic import Dynamic
from minifuse.batching.fluid import Fluid
from minifuse.batching.fusion import Fusion
from minifuse.batching.graph_merged import GraphMerged
from minifuse.batching.graph_padded import GraphPadded
from minifuse.batching.growing import GrowingFill
from minifuse.batching.instances import Instances
from minifuse.batching.iteration import Iteration
from minifuse.batching.mlfq import Mlfq
from minifuse.batching.policy import Fill, QueuePolicy
from minifuse.batching.prefill_first import PrefillFirst
from minifuse.batching.rebatch import Rebatch
from minifuse.batching.serial import Serial
from minifuse.batching.srpt import Srpt
from minifuse.batching.static import Static
from minifuse.batching.unified import Unified
from minifuse.stages import register

__all__ = [
    "Cellular",
    "Decoupled",
    "Dynamic",
    "Fluid",
    "Fusion",
    "GraphMerged",
    "GraphPadded",
    "Instances",
    "Iteration",
    "Mlfq",
    "PrefillFirst",
    "Rebatch",
    "Serial",
    "Srpt",
    "Static",
    "Unified",
]

QueuePolicy.fills = {False: Fill, True: GrowingFill}

for _name in __all__:
    register(globals()[_name])

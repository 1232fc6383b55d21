"""Memory stages: where KV, or the states of nodes, lie. `minifuse.stages` registers what is in `__all__`."""

from minifuse.memory.contiguous import Contiguous
from minifuse.memory.embedded import Embedded
from minifuse.memory.padded import Padded
from minifuse.memory.paged import Paged
from minifuse.memory.recompute import Recompute
from minifuse.memory.rows import Rows
from minifuse.memory.shaped import Shaped
from minifuse.memory.slots import Slots
from minifuse.memory.states import States
from minifuse.memory.tiered import Tiered
from minifuse.memory.waves import Waves

__all__ = [
    "Contiguous",
    "Embedded",
    "Padded",
    "Paged",
    "Recompute",
    "Rows",
    "Shaped",
    "Slots",
    "States",
    "Tiered",
    "Waves",
]

"""Memory stages: where KV, or the states of nodes, lie. Importing this registers them."""

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
from minifuse.stages import register

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

for _name in __all__:
    register(globals()[_name])

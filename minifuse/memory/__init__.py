"""Memory stages: they place KV, or the states of nodes. Importing this registers them."""

from minifuse.memory.contiguous import Contiguous
from minifuse.memory.padded import Padded
from minifuse.memory.paged.paged import Paged
from minifuse.memory.recompute import Recompute
from minifuse.memory.rows.embedded import Embedded
from minifuse.memory.rows.shaped import Shaped
from minifuse.memory.slots.slots import Slots
from minifuse.memory.states.chain_rows import ChainRows
from minifuse.memory.states.states import States
from minifuse.memory.tiered.tiered import Tiered
from minifuse.memory.waves.waves import Waves
from minifuse.stages import register

__all__ = [
    "ChainRows",
    "Contiguous",
    "Embedded",
    "Padded",
    "Paged",
    "Recompute",
    "Shaped",
    "Slots",
    "States",
    "Tiered",
    "Waves",
]

for _name in __all__:
    register(globals()[_name])

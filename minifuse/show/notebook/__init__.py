"""Runs a technique on the real engine and draws what happened, in notebooks.

    from minifuse.show.notebook import asks, draw_lanes, draw_memory, play

    played = play("vllm", asks("count from 3 to 9", "sort 7 2 5", every=0.001), memory__block_size=4)
    played.answers                # {'r0': '3 4 5 6 7 8 9', 'r1': '2 5 7'}
    draw_lanes(played)            # who computed, and who waited, in each iteration
    draw_memory(played, step=3)   # who owned each slot in iteration 3

Pictures, pages and sources are values: a notebook shows one at the end of a cell, and `display(a, b)` shows two.

Needs the `tutorials` extra.
"""

from importlib.util import find_spec

from minifuse.core.errors import MachineError

for _name in ("matplotlib", "IPython", "pygments"):
    if find_spec(_name) is None:
        raise MachineError(
            f"minifuse.show.notebook needs {_name}, which is not installed: "
            "pip install -e '.[tutorials]' -c constraints.txt."
        )

from minifuse.show.notebook.colours import owner_colour
from minifuse.show.notebook.lanes import draw_lanes
from minifuse.show.notebook.lookups import block_tables, first_token_s, gaps, kv_in_use, moves, pieces, reasons
from minifuse.show.notebook.memory import draw_memory
from minifuse.show.notebook.page import replay
from minifuse.show.notebook.played import Played, play
from minifuse.show.notebook.prompts import asks, turns
from minifuse.show.notebook.series import draw_series
from minifuse.show.notebook.source import show_source
from minifuse.show.notebook.verdict import check

__all__ = [
    "Played",
    "asks",
    "block_tables",
    "check",
    "draw_lanes",
    "draw_memory",
    "draw_series",
    "first_token_s",
    "gaps",
    "kv_in_use",
    "moves",
    "owner_colour",
    "pieces",
    "play",
    "reasons",
    "replay",
    "show_source",
    "turns",
]

"""Attention stages: how tokens are laid out and attended. Importing this registers them."""

from minifuse.attention.cell_layouts import CellsStage, PaddedCellsStage
from minifuse.attention.layouts import PackedStage, PaddedStage, PagedStage, SlotsStage
from minifuse.attention.stage import PerSequenceStage
from minifuse.stages import register

__all__ = [
    "CellsStage",
    "PackedStage",
    "PaddedCellsStage",
    "PaddedStage",
    "PagedStage",
    "PerSequenceStage",
    "SlotsStage",
]

for _name in __all__:
    register(globals()[_name])

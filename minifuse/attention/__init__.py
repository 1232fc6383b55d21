"""Attention stages: how tokens are laid out and attended. `minifuse.stages` registers what is in `__all__`."""

from minifuse.attention.cell_layouts import CellsStage, PaddedCellsStage
from minifuse.attention.layouts import PackedStage, PaddedStage, PagedStage, SlotsStage
from minifuse.attention.stage import PerSequenceStage

__all__ = [
    "CellsStage",
    "PackedStage",
    "PaddedCellsStage",
    "PaddedStage",
    "PagedStage",
    "PerSequenceStage",
    "SlotsStage",
]

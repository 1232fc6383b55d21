"""Attention stages: how tokens are laid out and attended. `minifuse.stages` registers what is in `__all__`."""

from minifuse.attention.cell_layouts import CellsStage, PaddedCellsStage
from minifuse.attention.layouts import PackedStage, PaddedStage, PagedStage, PerSequenceStage, SlotsStage

__all__ = [
    "CellsStage",
    "PackedStage",
    "PaddedCellsStage",
    "PaddedStage",
    "PagedStage",
    "PerSequenceStage",
    "SlotsStage",
]

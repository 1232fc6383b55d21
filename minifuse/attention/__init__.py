"""Attention stages: how the tokens of an iteration are laid out and attended. Importing this registers them."""

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

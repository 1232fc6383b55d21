"""Attention stages: how an iteration's tokens are laid out as tensors and attended. Importing this registers them."""

from minifuse.attention.cell_layouts import CellsLayout, PaddedCellsLayout
from minifuse.attention.layouts import PaddedLayout, PagedLayout, PerSequenceLayout, SlotsLayout

__all__ = ["CellsLayout", "PaddedCellsLayout", "PaddedLayout", "PagedLayout", "PerSequenceLayout", "SlotsLayout"]

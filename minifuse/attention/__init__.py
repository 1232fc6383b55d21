"""Attention stages: how the tokens of an iteration are laid out and attended. Importing this registers them."""

from minifuse.attention.cell_layouts import CellsLayout, PaddedCellsLayout
from minifuse.attention.layouts import PaddedLayout, PagedLayout, PerSequenceLayout, SlotsLayout

__all__ = ["CellsLayout", "PaddedCellsLayout", "PaddedLayout", "PagedLayout", "PerSequenceLayout", "SlotsLayout"]

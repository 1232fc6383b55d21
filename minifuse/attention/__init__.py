"""Attention stages: they lay tokens out and compute attention. Importing this registers them."""

from minifuse.attention.cell_layouts import CellsStage, PaddedCellsStage
from minifuse.attention.layouts import PackedStage, PaddedStage, PagedStage, SlotsStage
from minifuse.attention.stage import PerSequenceStage
from minifuse.stages import register

for cls in (CellsStage, PackedStage, PaddedCellsStage, PaddedStage, PagedStage, PerSequenceStage, SlotsStage):
    register(cls)

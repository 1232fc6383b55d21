"""Lays tokens out, and attends them. Importing this registers the attention stages."""

from minifuse.attention.cell_layouts import CellsStage, PaddedCellsStage
from minifuse.attention.layouts import PackedStage, PaddedStage, PagedStage, SlotsStage
from minifuse.attention.stage import PerSequenceStage
from minifuse.stages import register

for cls in (CellsStage, PackedStage, PaddedCellsStage, PaddedStage, PagedStage, PerSequenceStage, SlotsStage):
    register(cls)

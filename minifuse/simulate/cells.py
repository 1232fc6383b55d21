"""How long a plan of cells takes on a given machine: the roofline of each of its batches."""

from __future__ import annotations

from torch import nn

from minifuse.model.cells import CellModel
from minifuse.plan import Grid, Plan
from minifuse.simulate.cost import Hardware

__all__ = ["CellRoofline"]


class CellRoofline:
    """Seconds of a plan: for each of its batches the longer of moving its bytes and doing its arithmetic, one after
    the other, and a fixed overhead for each.

    Bytes: the cell's weights once, and the states read and written of each row. Flops: two per weight and row. Of an
    embedding only the rows asked for are read, which is nothing beside the rest. Idle rows cost as much as others.
    Gathers cost nothing.
    """

    def __init__(self, model: CellModel, machine: Hardware) -> None:
        self.model = model
        self.machine = machine
        self._weights: dict[str, tuple[int, int]] = {}

    def __call__(self, plan: Plan) -> float:
        seconds = 0.0
        cell = plan.work[0].cell
        for start, stop in plan.waves or ((0, len(plan.work)),):
            cell = plan.work[start].cell if stop > start else cell
            rows = plan.grid.rows if isinstance(plan.grid, Grid) else stop - start
            weights, element = self._matrices(cell)
            moved = weights * element + 2 * rows * self.model.slot_bytes
            computing = 2 * weights * rows / self.machine.rate(element)
            seconds += max(moved / self.machine.bandwidth, computing) + self.machine.overhead_s
        return seconds

    def _matrices(self, cell: str) -> tuple[int, int]:
        """Numbers in the matrices that a cell multiplies with, and the bytes of each."""
        if cell not in self._weights:
            found = [
                parameter
                for module in self.model.types[cell].cell.modules()
                if not isinstance(module, nn.Embedding)
                for parameter in module.parameters(recurse=False)
                if parameter.dim() > 1
            ]
            size = max((parameter.element_size() for parameter in found), default=4)
            self._weights[cell] = sum(parameter.numel() for parameter in found), size
        return self._weights[cell]

"""How long a plan of cells takes on a given machine: the roofline of each of its batches."""

from __future__ import annotations

from minifuse.layout import StateRows
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.types import matrix_weights
from minifuse.plan import Plan
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
        self._weights: dict[str, int] = {}  # by type

    def __call__(self, plan: Plan) -> float:
        seconds, element = 0.0, self.model.dtype.itemsize
        cell = plan.work[0].cell
        for start, stop in plan.waves:
            cell = plan.work[start].cell if stop > start else cell
            rows = plan.shape.rows if isinstance(plan.shape, StateRows) else stop - start
            if cell not in self._weights:
                self._weights[cell] = matrix_weights(self.model.types[cell].cell)
            weights = self._weights[cell]
            moved = weights * element + 2 * rows * self.model.slot_bytes
            computing = 2 * weights * rows / self.machine.rate(element)
            seconds += max(moved / self.machine.bandwidth, computing) + self.machine.overhead_s
        return seconds

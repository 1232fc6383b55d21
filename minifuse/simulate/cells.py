"""How long a plan of cells takes on a given machine: the roofline of each batch (Williams et al., 2009)."""

from __future__ import annotations

from minifuse.core.plan import Plan
from minifuse.core.shapes import StateRows
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.types import matrix_weights
from minifuse.simulate.cost import Hardware


class CellRoofline:
    """Seconds of a plan: the sum over its batches of the longer of moving bytes and doing arithmetic, plus an overhead.

    Bytes: the cell's weights once, and the states that each row reads and writes. Flops: two per weight and row. Idle
    rows cost as much as others. Two things cost nothing: gathers, and embeddings, of which only few rows are read.
    """

    def __init__(self, model: CellModel, machine: Hardware) -> None:
        self.model = model
        self.machine = machine
        self._weights: dict[str, int] = {}  # cell type -> weights

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

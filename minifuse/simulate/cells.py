"""Estimates how long a plan of cells takes: each batch's roofline (Williams et al., 2009)."""

from __future__ import annotations

from functools import cache

from minifuse.core.plan import Plan
from minifuse.core.shapes import StateRows
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.types import matrix_weights
from minifuse.simulate.cost import Hardware


class CellRoofline:
    """Adds up a plan's batches: an overhead, plus the longer of reading and arithmetic.

    Bytes: the cell's weights once, and the states that each row reads and writes. Flops: two per weight and row. Idle
    rows cost as much as others. Gathers cost nothing. Embeddings cost nothing either: a batch reads few of their rows.
    """

    def __init__(self, model: CellModel, machine: Hardware) -> None:
        self.model = model
        self.machine = machine
        self._weights_of = cache(lambda cell: matrix_weights(model.types[cell].cell))

    def __call__(self, plan: Plan) -> float:
        seconds, element = 0.0, self.model.dtype.itemsize
        cell = plan.work[0].cell
        for start, stop in plan.waves:
            cell = plan.work[start].cell if stop > start else cell
            rows = plan.shape.rows if isinstance(plan.shape, StateRows) else stop - start
            weights = self._weights_of(cell)
            moved = weights * element + 2 * rows * self.model.slot_bytes
            computing = 2 * weights * rows / self.machine.rate(element)
            seconds += max(moved / self.machine.bandwidth, computing) + self.machine.overhead_s
        return seconds

    def host_s(self, plan: Plan) -> float:
        """Return the seconds that the host builds and merges graphs before the plan can start."""
        return len(plan.work) * self.machine.host_node_s

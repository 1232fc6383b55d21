"""Estimates how long a plan of cells takes, by a roofline or as measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from minifuse.core.plan import Plan
from minifuse.core.shapes import StateRows
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.types import CellType, Spec, matrix_weights
from minifuse.simulate.cost import Hardware
from minifuse.simulate.host_terms import Terms, host_terms
from minifuse.simulate.look_up import LookUp
from minifuse.simulate.machine_profile import Host, MachineProfile, at_width, known


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
        for cell, rows in _batches(plan):
            weights = self._weights_of(cell)
            moved = weights * element + 2 * rows * self.model.slot_bytes
            computing = 2 * weights * rows / self.machine.rate(element)
            seconds += max(moved / self.machine.bandwidth, computing) + self.machine.overhead_s
        return seconds

    def prepare_s(self, plan: Plan) -> float:
        """Return the seconds that the host builds and merges graphs before the plan can start."""
        return len(plan.work) * self.machine.host_node_s


class MeasuredCells:
    """Adds up the measured steps of a plan's batches, and the host's part.

    Gathering the inputs, and writing the outputs, are part of the host's time, by the bytes of the inputs.

    Args:
        types: the model's types of cells, by name.
        mix: the names of all stages, joined by +; None: the host takes no time.

    Raises:
        UsageError: the profile was measured with other cells, sizes or stages.
    """

    def __init__(self, types: Mapping[str, CellType], profile: MachineProfile, mix: str | None = None) -> None:
        self._input_bytes = {name: sum(map(_bytes, kind.inputs)) for name, kind in types.items()}
        self._tables = LookUp(profile.slow)
        self._steps = {
            name: at_width(known(profile.cells, name, "cell"), matrix_weights(kind.cell), "weights in a cell")
            for name, kind in types.items()
        }
        host = Host(seconds={}) if mix is None else profile.host_of(kind_of_cells(types), mix)
        self.host = host.seconds

    def __call__(self, plan: Plan) -> float:
        return self.device_s(plan) + self._tables.host_s(self.host, self.terms(plan))

    def terms(self, plan: Plan) -> Terms:
        """Count what in a plan costs the host time."""
        return {**host_terms(plan), "input byte": sum([self._input_bytes[work.cell] for work in plan.work])}

    def device_s(self, plan: Plan) -> float:
        """Return the seconds of the plan's steps, idle rows included."""
        return sum([self._tables.seconds(self._steps[cell], rows) for cell, rows in _batches(plan)])

    def prepare_s(self, plan: Plan) -> float:
        """Return 0: no time of the host passes before the plan can start."""
        return 0.0


def kind_of_cells(types: Iterable[str]) -> str:
    """Return the kind of models that have these types of cells.

    >>> kind_of_cells(["encoder", "decoder"])
    'decoder+encoder'
    """
    return "+".join(sorted(types))


def _bytes(spec: Spec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize


def _batches(plan: Plan) -> Iterator[tuple[str, int]]:
    """Yield the type of cell of each wave, and how many rows are computed."""
    cell = plan.work[0].cell
    for start, stop in plan.waves:
        cell = plan.work[start].cell if stop > start else cell
        yield cell, plan.shape.rows if isinstance(plan.shape, StateRows) else stop - start

"""A plan of cells computed with torch: for each batch gather, compute, write (BatchMaker, 2.4.3)."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from minifuse.core.cell_graph import CellGraph, Topology, Zeros
from minifuse.core.errors import LawBroken
from minifuse.core.places import State
from minifuse.core.plan import Plan, Work
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.core.shapes import StateRows
from minifuse.core.unfolded import unfolded
from minifuse.execute.issued import Issued
from minifuse.execute.streams import Streams
from minifuse.memory.state_storage import StateStorage, on_device
from minifuse.model.cells.model import CellModel, CellType

__all__ = ["CellRunner", "Issued"]

MOST_WIRINGS = 1024

Wiring = tuple[tuple[int, int], ...]  # the inputs of a node that are states: (position, field of the storage)


class CellRunner:
    """Owns the cells and the tensors of their states. Calling it computes a plan, wave by wave."""

    def __init__(self, model: CellModel, storage: StateStorage) -> None:
        self.model = model
        self.storage = storage
        self._wirings: dict[Topology, tuple[Wiring, ...]] = {}
        self._streams = Streams(model.device)

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        return self.issue(plan, sequences).ran()

    @torch.inference_mode()
    def issue(self, plan: Plan, sequences: dict[str, Sequence]) -> Issued:
        """Give a plan to the device: a GPU computes it later, in the order issued; a CPU, before this returns."""
        issued = Issued(self.model.device)
        with self._streams.of(plan.worker):
            self._issue(plan, sequences, issued)
            issued.done()
        return issued

    def _issue(self, plan: Plan, sequences: dict[str, Sequence], issued: Issued) -> None:
        """Compute one wave after the other. An empty wave is of the type of the wave before it."""
        kind: CellType | None = None
        for start, stop in plan.waves:
            work: Seq[Work] = plan.work[start:stop]
            kind = self.model.types[work[0].cell] if work else kind
            if kind is None:
                raise LawBroken("layout", f"step {plan.step} begins with a wave of nothing, whose cell type is unknown")
            places: Any = plan.places[start:stop]
            if isinstance(plan.shape, StateRows):
                self._padded(kind, work, places, plan.shape, sequences, issued)
            elif work:  # an empty wave is computed only as idle rows, in a rectangle
                self._compute(kind, work, places, sequences, issued)

    def _compute(
        self, kind: CellType, work: Seq[Work], places: Seq[State], sequences: dict[str, Sequence], issued: Issued
    ) -> None:
        inputs = self._inputs(kind, work, places, sequences, issued)
        outputs = self.model.run(kind.name, *inputs)
        self._write(kind, tuple([place.slot for place in places]), outputs)
        self._produce(kind, work, range(len(work)), outputs, sequences, issued)

    def _padded(
        self,
        kind: CellType,
        work: Seq[Work],
        places: Seq[State],
        padded: StateRows,
        sequences: dict[str, Sequence],
        issued: Issued,
    ) -> None:
        """One step of all rows. A row without a node is computed from what its slot holds, and keeps its states."""
        rows = [place.slot - padded.offset for place in places]
        run = tuple(range(padded.offset, padded.offset + padded.rows))
        wirings = {self._wiring(_graph(sequences, item).topology)[item.start] for item in work}
        fields = dict(wirings.pop()) if len(wirings) == 1 else {}
        mixed = self._inputs(kind, work, places, sequences, issued) if wirings else None  # some wirings differ
        inputs = []
        for position, (shape, dtype) in enumerate(kind.inputs):
            if position in fields:
                inputs.append(self.storage.read(fields[position], run)[0])
                continue
            whole = torch.zeros(padded.rows, *shape, dtype=dtype, device=self.model.device)
            if mixed is not None:
                whole[rows] = mixed[position]
            elif rows:
                values = [_graph(sequences, item).nodes[item.start].inputs[position] for item in work]
                whole[rows] = self._constants(kind, position, values)
            inputs.append(whole)
        outputs = self.model.run(kind.name, *inputs)
        if not rows:
            return
        every = rows == list(range(padded.rows))
        index = None if every else on_device(rows, torch.int64, self.model.device)
        slots = run if every else tuple([place.slot for place in places])
        live = outputs if index is None else tuple([output.index_select(0, index) for output in outputs])
        self._write(kind, slots, live)
        self._produce(kind, work, rows, outputs, sequences, issued)

    def _write(self, kind: CellType, slots: tuple[int, ...], outputs: tuple[Tensor, ...]) -> None:
        """Keep the outputs of a batch, each in its field, as the states of these slots."""
        for field, output in zip(self.model.field_of[kind.name], outputs, strict=True):
            self.storage.write(field, slots, output)

    def _wiring(self, topology: Topology) -> tuple[Wiring, ...]:
        """The wiring of each node of a graph of this topology: which inputs are states, and the fields they lie in.

        >>> # an LSTM (word, h, c -> h, c) with h and c in fields 0 and 1: (), then ((1, 0), (2, 1)) for later nodes
        """
        found = self._wirings.get(topology)
        if found is None:
            if len(self._wirings) >= MOST_WIRINGS:  # nearly every tree has a topology of its own: do not keep all
                self._wirings.clear()
            field_of, cells = self.model.field_of, topology.cells
            same: dict[Wiring, Wiring] = {}  # equal wirings are one object, so that comparing them costs nothing
            wirings = (
                tuple([(wire.position, field_of[cells[wire.node]][wire.part]) for wire in wires])
                for wires in topology.wires
            )
            found = self._wirings[topology] = tuple([same.setdefault(wiring, wiring) for wiring in wirings])
        return found

    def _inputs(
        self, kind: CellType, work: Seq[Work], places: Seq[State], sequences: dict[str, Sequence], issued: Issued
    ) -> list[Tensor]:
        """The inputs of a batch, each [nodes, *shape]."""
        graphs = [_graph(sequences, item) for item in work]
        nodes = [graph.nodes[item.start] for graph, item in zip(graphs, work, strict=True)]
        wirings = [self._wiring(graph.topology)[item.start] for graph, item in zip(graphs, work, strict=True)]
        first = wirings[0]
        if all(wiring is first or wiring == first for wiring in wirings):
            columns = dict(zip(first, zip(*[place.reads for place in places], strict=True), strict=True))
            read = {position: self._gathered(field, slots, issued) for (position, field), slots in columns.items()}
        else:
            read = {}
            for position in {position for wiring in wirings for position, _ in wiring}:
                read[position] = self._mixed(kind, position, wirings, places, [n.inputs for n in nodes], issued)
        return [
            read[position]
            if position in read
            else self._constants(kind, position, [node.inputs[position] for node in nodes])
            for position in range(len(kind.inputs))
        ]

    def _gathered(self, field: int, slots: tuple[int, ...], issued: Issued) -> Tensor:
        start = time.perf_counter()
        states, copied = self.storage.read(field, slots)
        if copied:
            issued.gathered(len(slots), time.perf_counter() - start)
        return states

    def _mixed(
        self,
        kind: CellType,
        position: int,
        wirings: Seq[Wiring],
        places: Seq[State],
        inputs: Seq[tuple[Any, ...]],
        issued: Issued,
    ) -> Tensor:
        """An input that is a state for some nodes and a constant for others, or lies in several fields.

        Rows of constants are first read from the slot that is always zero. Constants other than `Zeros` are then put in
        their rows.
        """
        slots: dict[int, list[int]] = {}  # by field
        constants = []
        for row, (wiring, place) in enumerate(zip(wirings, places, strict=True)):
            for (wired, field), slot in zip(wiring, place.reads, strict=True):
                if wired == position:
                    slots.setdefault(field, [self.storage.zero] * len(places))[row] = slot
                    break
            else:
                if not isinstance(inputs[row][position], Zeros):
                    constants.append(row)
        start = time.perf_counter()
        (field, column), *others = slots.items()
        states, copied = self.storage.read(field, tuple(column))
        if (others or constants) and not copied:
            states, copied = states.clone(), True
        for field, column in others:
            rows = [row for row, slot in enumerate(column) if slot != self.storage.zero]
            states[rows] = self.storage.read(field, tuple([column[row] for row in rows]))[0]
        if constants:
            states[constants] = self._constants(kind, position, [inputs[row][position] for row in constants])
        if copied:
            issued.gathered(len(places), time.perf_counter() - start)
        return states

    def _constants(self, kind: CellType, position: int, values: list[Any]) -> Tensor:
        """Constants of the graphs (numbers, `Zeros` or tensors) as one input, [len(values), *shape]."""
        shape, dtype = kind.inputs[position]
        device = self.model.device
        if all(isinstance(value, Zeros) for value in values):
            return torch.zeros(len(values), *shape, dtype=dtype, device=device)
        if any(isinstance(value, Zeros | Tensor) for value in values):
            rows = [
                torch.zeros(shape, dtype=dtype, device=device)
                if isinstance(value, Zeros)
                else torch.as_tensor(value, dtype=dtype, device=device)
                for value in values
            ]
            return torch.stack(rows)
        return on_device(values, dtype, device)

    def _produce(
        self,
        kind: CellType,
        work: Seq[Work],
        rows: Seq[int],
        outputs: tuple[Tensor, ...],
        sequences: dict[str, Sequence],
        issued: Issued,
    ) -> None:
        """Note the tokens that a batch produces, and its results. `rows` are those of the work in the outputs."""
        if kind.token_output is not None:
            issued.say(work, rows, outputs[kind.token_output])
        result_rows, nodes = [], []
        for i, item in enumerate(work):
            node = _graph(sequences, item).reported.get(item.start)
            if node is not None:
                result_rows.append(rows[i])
                nodes.append((item.sequence, node))
        if result_rows:
            index = on_device(result_rows, torch.int64, self.model.device)
            issued.result(nodes, tuple(output.index_select(0, index) for output in outputs))


def _graph(sequences: dict[str, Sequence], work: Work) -> CellGraph:
    return unfolded(sequences[work.sequence])

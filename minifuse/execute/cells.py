"""A plan of cells computed with torch: for each batch gather, compute, write (BatchMaker, 2.4.3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minifuse.core.cell_graph import Topology, Zeros
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
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.types import CellType

MOST_WIRINGS = 1024  # topologies: nearly every tree has one of its own, so not all are kept

Wiring = tuple[tuple[int, int], ...]  # the inputs of a node that are states: (position, field of the storage)


class _Batch(NamedTuple):
    """The nodes of one wave, all of one cell type."""

    kind: CellType
    work: Seq[Work]
    places: Seq[State]
    inputs: list[tuple[Any, ...]]  # of each node
    wirings: list[Wiring]
    reported: dict[int, int]  # the rows whose outputs are results, and the number under which each is reported
    issued: Issued

    def constants(self, position: int) -> list[Any]:
        return [inputs[position] for inputs in self.inputs]


class CellRunner:
    """Owns the cells and the tensors of their states. Calling it computes a plan, wave by wave."""

    def __init__(self, model: CellModel, storage: StateStorage) -> None:
        self.model = model
        self.storage = storage
        self._wirings = lru_cache(MOST_WIRINGS)(self._wire)
        self._streams = Streams(model.device)

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        return self.issue(plan, sequences)()

    @torch.inference_mode()
    def issue(self, plan: Plan, sequences: dict[str, Sequence]) -> Callable[[], Ran]:
        """Give a plan to the device: a GPU computes it later, in the order issued; a CPU, before this returns.

        Returns:
            A function that waits for what the plan produces.
        """
        issued = Issued(self.model.device)
        with self._streams.of(plan.worker):
            self._issue(plan, sequences, issued)
            issued.done()
        return issued.ran

    def _issue(self, plan: Plan, sequences: dict[str, Sequence], issued: Issued) -> None:
        """Compute one wave after the other. An empty wave is of the type of the wave before it."""
        kind: CellType | None = None
        for start, stop in plan.waves:
            work = plan.work[start:stop]
            kind = self.model.types[work[0].cell] if work else kind
            if kind is None:
                raise LawBroken("layout", f"step {plan.step} begins with a wave of nothing, whose cell type is unknown")
            graphs = [unfolded(sequences[item.sequence]) for item in work]
            nodes = [(graph, item.start) for graph, item in zip(graphs, work, strict=True)]
            batch = _Batch(
                kind,
                work,
                plan.places[start:stop],  # type: ignore[arg-type]  # a memory for cells gives no other place
                [graph.nodes[node].inputs for graph, node in nodes],
                [self._wirings(graph.topology)[node] for graph, node in nodes],
                {row: g.reported[node] for row, (g, node) in enumerate(nodes) if node in g.reported},
                issued,
            )
            if isinstance(plan.shape, StateRows):
                outputs = self._padded(batch, plan.shape)
            elif work:  # an empty wave is computed only as idle rows, in a rectangle
                outputs = self.model.run(kind.name, *self._inputs(batch))
            if work:
                self._write(batch, outputs)

    def _padded(self, batch: _Batch, padded: StateRows) -> tuple[Tensor, ...]:
        """Compute one step of all rows. Returns the outputs of the nodes.

        A row without a node is computed from what its slot holds, and keeps its states.
        """
        kind, device = batch.kind, self.model.device
        rows = [place.slot - padded.offset for place in batch.places]
        run = tuple(range(padded.offset, padded.offset + padded.rows))
        wirings = set(batch.wirings)
        mixed = self._inputs(batch) if len(wirings) > 1 else None
        fields = dict(wirings.pop()) if len(wirings) == 1 else {}
        inputs = []
        for position, (shape, dtype) in enumerate(kind.inputs):
            if position in fields:
                inputs.append(self.storage.read(fields[position], run)[0])
                continue
            whole = torch.zeros(padded.rows, *shape, dtype=dtype, device=device)
            if rows:
                own = mixed[position] if mixed else self._constants(kind, position, batch.constants(position))
                whole[rows] = own
            inputs.append(whole)
        outputs = self.model.run(kind.name, *inputs)
        if not rows or rows == list(range(padded.rows)):
            return outputs
        index = on_device(rows, torch.int64, device)
        return tuple([output.index_select(0, index) for output in outputs])

    def _write(self, batch: _Batch, outputs: tuple[Tensor, ...]) -> None:
        """Keep the outputs of a batch as states, each in its field, and note its tokens and results."""
        slots = tuple([place.slot for place in batch.places])
        for field, output in zip(self.model.field_of[batch.kind.name], outputs, strict=True):
            self.storage.write(field, slots, output)
        if batch.kind.token_output is not None:
            batch.issued.say(batch.work, outputs[batch.kind.token_output])
        if batch.reported:
            index = on_device([*batch.reported], torch.int64, self.model.device)
            nodes = [(batch.work[row].sequence, number) for row, number in batch.reported.items()]
            batch.issued.result(nodes, tuple(output.index_select(0, index) for output in outputs))

    def _wire(self, topology: Topology) -> tuple[Wiring, ...]:
        """The wiring of each node of a graph of this topology: which inputs are states, and the fields they lie in.

        >>> # an LSTM (word, h, c -> h, c) with h and c in fields 0 and 1: (), then ((1, 0), (2, 1)) for later nodes
        """
        field_of, cells = self.model.field_of, topology.cells
        return tuple(
            tuple([(wire.position, field_of[cells[wire.node]][wire.part]) for wire in wires])
            for wires in topology.wires
        )

    def _inputs(self, batch: _Batch) -> list[Tensor]:
        """The inputs of a batch, each [nodes, *shape]."""
        first = batch.wirings[0]
        states: dict[int, Callable[[], tuple[Tensor, bool]]]
        if batch.wirings.count(first) == len(batch.wirings):
            columns = zip(first, zip(*[place.reads for place in batch.places], strict=True), strict=True)
            states = {position: partial(self.storage.read, field, slots) for (position, field), slots in columns}
        else:
            wired = {position for wiring in batch.wirings for position, _ in wiring}
            states = {position: partial(self._mixed, batch, position) for position in wired}
        inputs = []
        for position in range(len(batch.kind.inputs)):
            if position not in states:
                inputs.append(self._constants(batch.kind, position, batch.constants(position)))
                continue
            start = time.perf_counter()
            found, copied = states[position]()
            if copied:
                batch.issued.gathered(len(batch.places), time.perf_counter() - start)
            inputs.append(found)
        return inputs

    def _mixed(self, batch: _Batch, position: int) -> tuple[Tensor, bool]:
        """An input that is a state for some nodes and a constant for others, or lies in several fields.

        Rows of constants are first read from the slot that is always zero. Constants other than `Zeros` are then put in
        their rows.
        """
        slots: dict[int, list[int]] = {}  # by field
        constants = []
        for row, (wiring, place) in enumerate(zip(batch.wirings, batch.places, strict=True)):
            for (wired, field), slot in zip(wiring, place.reads, strict=True):
                if wired == position:
                    slots.setdefault(field, [self.storage.zero] * len(batch.places))[row] = slot
                    break
            else:
                if not isinstance(batch.inputs[row][position], Zeros):
                    constants.append(row)
        (field, column), *others = slots.items()
        states, copied = self.storage.read(field, tuple(column))
        if (others or constants) and not copied:
            states, copied = states.clone(), True
        for field, column in others:
            rows = [row for row, slot in enumerate(column) if slot != self.storage.zero]
            states[rows] = self.storage.read(field, tuple([column[row] for row in rows]))[0]
        if constants:
            values = [batch.inputs[row][position] for row in constants]
            states[constants] = self._constants(batch.kind, position, values)
        return states, copied

    def _constants(self, kind: CellType, position: int, values: list[Any]) -> Tensor:
        """Constants of the graphs (numbers, `Zeros` or tensors) as one input, [len(values), *shape]."""
        shape, dtype = kind.inputs[position]
        device = self.model.device
        if all(isinstance(value, Zeros) for value in values):
            return torch.zeros(len(values), *shape, dtype=dtype, device=device)
        if any(isinstance(value, Zeros | Tensor) for value in values):
            zeros = torch.zeros(shape, dtype=dtype, device=device)
            rows = [zeros if isinstance(value, Zeros) else value for value in values]
            return torch.stack([torch.as_tensor(row, dtype=dtype, device=device) for row in rows])
        return on_device(values, dtype, device)

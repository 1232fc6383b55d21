"""Computes plans of cells with torch: gathers, computes and writes each batch (BatchMaker, 2.4.3)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minifuse.core.cell_graph import Topology, Zeros
from minifuse.core.errors import LawBroken
from minifuse.core.measured import Measured
from minifuse.core.places import State
from minifuse.core.plan import Plan, Work
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.core.shapes import StateRows
from minifuse.core.unfolded import unfolded
from minifuse.execute.state_storage import StateStorage, on_device
from minifuse.execute.streams import Streams
from minifuse.model.cells.model import CellModel
from minifuse.model.cells.types import CellType

MOST_WIRINGS = 1024  # how many topologies' wirings are kept; nearly every tree has a topology of its own

Wiring = dict[int, int]  # position of a state among the inputs -> the field that holds it, as in `State.reads`


class Issued:
    """Carries the tokens and results of an issued plan to the host."""

    def __init__(self, device: torch.device) -> None:
        self._computed = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
        self._produced: list[tuple[Seq[Work], Tensor]] = []  # work, and the token of each piece
        self._results: list[tuple[Seq[tuple[str, int]], tuple[Tensor, ...]]] = []  # nodes by row, and outputs
        self._copies, self._rows, self._gathering_s = 0, 0, 0.0

    def gathered(self, rows: int, seconds: float) -> None:
        """Count a gather of `rows` rows."""
        self._copies += 1
        self._rows += rows
        self._gathering_s += seconds

    def say(self, work: Seq[Work], tokens: Tensor) -> None:
        """Copy the tokens that these pieces of work produce to the host."""
        self._produced.append((work, tokens.to("cpu", non_blocking=True)))

    def result(self, nodes: Seq[tuple[str, int]], outputs: tuple[Tensor, ...]) -> None:
        """Keep the outputs of result nodes: row i belongs to the i-th (sequence, node)."""
        self._results.append((nodes, tuple(output.to("cpu", non_blocking=True) for output in outputs)))

    def done(self) -> None:
        """Mark the end on the device: everything has been issued."""
        if self._computed is not None:
            self._computed.record()

    def ran(self) -> Ran:
        """Wait for the device; return all tokens and results."""
        if self._computed is not None:
            self._computed.synchronize()
        produced: dict[str, list[int]] = {}
        for work, tokens in self._produced:
            for item, token in zip(work, tokens.tolist(), strict=True):
                produced.setdefault(item.sequence, []).append(token)
        results: dict[str, dict[int, tuple[Tensor, ...]]] = {}
        for nodes, outputs in self._results:
            for (name, node), *parts in zip(nodes, *(output.unbind(0) for output in outputs), strict=True):
                results.setdefault(name, {})[node] = tuple(parts)
        return Ran(
            {name: tuple(tokens) for name, tokens in produced.items()},
            results=results,
            measured=Measured(num_gathers=self._copies, gathered_rows=self._rows, gathering_s=self._gathering_s),
        )


class _Batch(NamedTuple):
    """The nodes of one wave, all of one cell type."""

    kind: CellType
    work: Seq[Work]
    places: Seq[State]
    inputs: list[tuple[Any, ...]]  # the inputs of each node
    wirings: list[Wiring]
    wiring: Wiring | None  # the wiring that all nodes share; None if their wirings differ
    reported: dict[int, int]  # row whose outputs are results -> the number under which they are reported
    issued: Issued


class CellRunner:
    """Computes plans wave by wave; owns the cells and the tensors of their states."""

    def __init__(self, model: CellModel, storage: StateStorage) -> None:
        self.model = model
        self.storage = storage
        self._wirings = lru_cache(MOST_WIRINGS)(self._wire)
        self._streams = Streams(model.device)

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        return self.issue(plan, sequences)()

    def materialise(self, sizes: Seq[int]) -> None:
        """Compute each type of cell once at each batch size (2.6), before any request arrives.

        Then memory has been allocated and kernels have been chosen for these shapes.
        """
        device = self.model.device
        for kind in self.model.types.values():
            for size in sizes:
                inputs = [torch.zeros(size, *shape, dtype=dtype, device=device) for shape, dtype in kind.inputs]
                self.model.run(kind.name, *inputs)

    @torch.inference_mode()
    def issue(self, plan: Plan, sequences: dict[str, Sequence]) -> Callable[[], Ran]:
        """Issue a plan to the device.

        A GPU computes plans later, in the order issued; a CPU computes before this returns.

        Returns:
            A function that waits for the plan, and returns what it produced.
        """
        issued = Issued(self.model.device)
        with self._streams.of(plan.worker):
            self._issue(plan, sequences, issued)
            issued.done()
        return issued.ran

    def _issue(self, plan: Plan, sequences: dict[str, Sequence], issued: Issued) -> None:
        """Compute the waves of a plan in turn.

        An empty wave takes the cell type of the wave before it.
        """
        kind: CellType | None = None
        for start, stop in plan.waves:
            work = plan.work[start:stop]
            kind = self.model.types[work[0].cell] if work else kind
            if kind is None:
                raise LawBroken("layout", f"step {plan.step} begins with a wave of nothing, whose cell type is unknown")
            nodes = [(unfolded(sequences[item.sequence]), item.start) for item in work]
            wirings = [self._wirings(graph.topology)[node] for graph, node in nodes]
            first = wirings[0] if wirings else {}
            batch = _Batch(
                kind,
                work,
                plan.places[start:stop],  # type: ignore[arg-type]  # a memory for cells gives no other place
                [graph.nodes[node].inputs for graph, node in nodes],
                wirings,
                first if wirings.count(first) == len(wirings) else None,
                {row: g.reported[node] for row, (g, node) in enumerate(nodes) if node in g.reported},
                issued,
            )
            if isinstance(plan.shape, StateRows):
                outputs = self._padded(batch, plan.shape)
            elif work:  # an empty wave needs computing only in `StateRows`, where its rows are idle
                inputs = [self._input(batch, position) for position in range(len(kind.inputs))]
                outputs = self.model.run(kind.name, *inputs)
            if work:
                self._write(batch, outputs)

    def _padded(self, batch: _Batch, padded: StateRows) -> tuple[Tensor, ...]:
        """Compute one step of all rows. Returns the outputs of the nodes.

        A row without a node is computed from what its slot holds, and keeps its states.
        """
        kind, device = batch.kind, self.model.device
        rows = [place.slot - padded.offset for place in batch.places]
        run = tuple(range(padded.offset, padded.offset + padded.rows))
        wiring = batch.wiring or {}
        inputs = []
        for position, (shape, dtype) in enumerate(kind.inputs):
            if position in wiring:
                inputs.append(self.storage.read(wiring[position], run)[0])
                continue
            whole = torch.zeros(padded.rows, *shape, dtype=dtype, device=device)
            if rows:
                whole[rows] = self._input(batch, position)
            inputs.append(whole)
        outputs = self.model.run(kind.name, *inputs)
        if not rows or rows == list(range(padded.rows)):
            return outputs
        index = on_device(rows, torch.int64, device)
        return tuple([output.index_select(0, index) for output in outputs])

    def _write(self, batch: _Batch, outputs: tuple[Tensor, ...]) -> None:
        """Write a batch's outputs as states, each in its field; record tokens and results."""
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
        """Find which inputs of each node are states, and the fields that hold them.

        >>> # an LSTM (word, h, c -> h, c) with h and c in fields 0 and 1: {}, then {1: 0, 2: 1} for later nodes
        """
        field_of, cells = self.model.field_of, topology.cells
        return tuple(
            {wire.position: field_of[cells[wire.node]][wire.part] for wire in wires} for wires in topology.wires
        )

    def _input(self, batch: _Batch, position: int) -> Tensor:
        """Read one input of all nodes, [nodes, *shape]; count a gather if one was needed."""
        start = time.perf_counter()
        if batch.wiring is None:
            found, copied = self._mixed(batch, position)
        elif position in batch.wiring:
            number = list(batch.wiring).index(position)
            slots = tuple([place.reads[number] for place in batch.places])
            found, copied = self.storage.read(batch.wiring[position], slots)
        else:
            return self._constants(batch, position, range(len(batch.work)))
        if copied:
            batch.issued.gathered(len(batch.places), time.perf_counter() - start)
        return found

    def _mixed(self, batch: _Batch, position: int) -> tuple[Tensor, bool]:
        """Read an input whose field of states differs between nodes.

        At first, rows without a state in the first field are read from the slot that is always zero. Then states in
        other fields, and constants other than `Zeros`, are copied to their rows.
        """
        slots = defaultdict[int, list[int]](lambda: [self.storage.zero] * len(batch.places))  # by field
        constants = []
        for row, (wiring, place) in enumerate(zip(batch.wirings, batch.places, strict=True)):
            if position in wiring:
                slots[wiring[position]][row] = place.reads[list(wiring).index(position)]
            elif not isinstance(batch.inputs[row][position], Zeros):
                constants.append(row)
        if not slots:
            return self._constants(batch, position, range(len(batch.work))), False
        (field, column), *others = slots.items()
        states, copied = self.storage.read(field, tuple(column))
        if (others or constants) and not copied:
            states, copied = states.clone(), True
        for field, column in others:
            rows = [row for row, slot in enumerate(column) if slot != self.storage.zero]
            states[rows] = self.storage.read(field, tuple([column[row] for row in rows]))[0]
        if constants:
            states[constants] = self._constants(batch, position, constants)
        return states, copied

    def _constants(self, batch: _Batch, position: int, rows: Seq[int]) -> Tensor:
        """Turn constants of the graphs (numbers, `Zeros` or tensors) into one input, [len(rows), *shape]."""
        (shape, dtype), device = batch.kind.inputs[position], self.model.device
        values = [batch.inputs[row][position] for row in rows]
        if all(isinstance(value, Zeros) for value in values):
            return torch.zeros(len(values), *shape, dtype=dtype, device=device)
        if any(isinstance(value, Zeros | Tensor) for value in values):
            zeros = torch.zeros(shape, dtype=dtype, device=device)
            values = [zeros if isinstance(value, Zeros) else value for value in values]
            return torch.stack([torch.as_tensor(value, dtype=dtype, device=device) for value in values])
        return on_device(values, dtype, device)

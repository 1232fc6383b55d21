"""Runs a technique on cell graphs, with a small model and storage full of rubbish."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from torch import Tensor

from minifuse.core.errors import LawBroken
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import FinishReason, Request, Sequence
from minifuse.core.stages import RunPlan
from minifuse.execute.cells import CellRunner
from minifuse.execute.state_storage import StateStorage
from minifuse.model.cells.model import CellModel
from minifuse.stages import Memory
from minifuse.testing.capacity import slots_needed
from minifuse.testing.graphs.books import GraphBooks
from minifuse.testing.graphs.models import cell_model, expected_of
from minifuse.testing.graphs.recipes import CHAINS, Recipe
from minifuse.testing.graphs.scenario import GraphScenario
from minifuse.testing.subject import Case, Expected, Tokens

MOST_PROBES = 30  # each has a graph of its own


class GraphCase(Case):
    """A technique on a scenario of cell graphs."""

    scenario: GraphScenario

    @cached_property
    def reader(self) -> CellModel:
        """Return the small model, whose nodes are cells or single operators."""
        return cell_model(self.choices.policy.granularity)

    def slots_needed(self, request: Request) -> int | None:
        return slots_needed(self.choices, (self.reader.begin(request),))

    @cached_property
    def capacity(self) -> int:
        requests = self.scenario.sized_for or self.requests
        return max(1, max(self.slots_needed(request) or 1 for request in requests) + self.scenario.slack)

    @cached_property
    def probes(self) -> list[Sequence]:
        begin, one = self.reader.begin, Recipe(CHAINS[0], 1, 0)
        return [begin(Request(f"probe {i}", (), structure=one)) for i in range(min(self.capacity, MOST_PROBES))]

    @cached_property
    def most_steps(self) -> int:
        """Count a step for each node."""
        return sum(len(self.reader.unfold(request)) for request in self.requests)

    def books(self, memory: Memory) -> GraphBooks:
        return GraphBooks(self.choices, memory.capacity, self._producing)

    @cached_property
    def _producing(self) -> set[str]:
        """Return the types of cell that produce a token."""
        return {name for name, cell in self.reader.types.items() if cell.token_output is not None}

    def runner(self) -> RunPlan:
        return _Runner(self.reader, self.capacity)

    def replay(self, tokens: Tokens) -> RunPlan:
        def run(plan: Plan, sequences: Mapping[str, Sequence]) -> Ran:
            produced: dict[str, tuple[int, ...]] = {}
            for name, node, _, cell in plan.work:
                if cell in self._producing:
                    produced[name] = (*produced.get(name, ()), tokens.get((name, node), -1))
            return Ran(produced)

        return run

    def expected(self, request: Request) -> Expected:
        return expected_of(request)

    def endless(self, request: Request) -> Expected:
        count = sum(node.cell in self._producing for node in self.reader.unfold(request).nodes)
        reason = FinishReason.LENGTH if count >= request.max_new_tokens else FinishReason.STOP
        return Expected((-1,) * min(count, request.max_new_tokens), reason)

    def servable(self, prompts: tuple[Request, ...]) -> bool:
        needed = [self.slots_needed(request) for request in prompts]
        return all(slots is not None and slots <= self.capacity for slots in needed)


class _Counted:
    """A model that counts the rows it computes, padding included."""

    def __init__(self, model: CellModel) -> None:
        self.model = model
        self.num_rows = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def run(self, type_name: str, *inputs: Tensor) -> tuple[Tensor, ...]:
        rows = {len(values) for values in inputs}
        if len(rows) != 1:
            raise LawBroken("counting", f"a batch of {type_name} has inputs of {rows} rows")
        self.num_rows += rows.pop()
        return self.model.run(type_name, *inputs)


class _Runner(CellRunner):
    """Computes plans as `CellRunner` does, on storage full of rubbish, and counts the rows."""

    def __init__(self, model: CellModel, capacity: int) -> None:
        storage = StateStorage(model.fields, capacity, model.device)
        for tensor in storage.fields:
            if tensor.is_floating_point():
                tensor[:capacity] = 1e3
        self.counted = _Counted(model)
        super().__init__(self.counted, storage)  # type: ignore[arg-type]  # it has what a runner calls

    def __call__(self, plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        self.counted.num_rows = 0
        ran = super().__call__(plan, sequences)
        if self.counted.num_rows != plan.num_computed:
            count = self.counted.num_rows
            raise LawBroken("counting", f"step {plan.step} computes {count} rows and counts {plan.num_computed}")
        return ran

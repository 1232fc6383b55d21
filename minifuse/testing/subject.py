"""Defines what the laws are checked on: a `Case` is a technique on a scenario.

There are two subjects: texts (`minifuse.testing.texts`) and cell graphs (`minifuse.testing.graphs`). Laws and observed
runs are the same for both; where the subjects differ, they call a method of `Case`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from hypothesis.strategies import SearchStrategy

from minifuse.core.errors import LawBroken
from minifuse.core.plan import Plan, Proposal
from minifuse.core.report import Ran, StepReport
from minifuse.core.request import FinishReason, Request, Sequence
from minifuse.core.stages import Reader, RunPlan
from minifuse.core.submitted import by_request
from minifuse.execute.link import Link
from minifuse.serve.assembly import Choices, Stages, choose
from minifuse.stages import KINDS, Kind, Memory, stages
from minifuse.techniques import TECHNIQUES, Technique, fit, for_model, mix

if TYPE_CHECKING:  # the laws import torch only where a model computes
    from torch import Tensor


# The tokens of a run, by sequence, and by position in the text or the node that produces the token.
Tokens = Mapping[tuple[str, int], int]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A workload, a budget and settings, all so small that corner cases are frequent."""

    requests: tuple[Request, ...]
    options: tuple[tuple[str, Any], ...]  # as `--set` takes them; a mix ignores options that its stages lack
    aborts: tuple[tuple[int, str], ...] = ()  # (number of steps, request to abort after them)
    shared: bool = False  # whether the workers share one device
    replayed: bool = False  # no model computes: every token is -1, which ends no answer

    def settings(self, row: Technique) -> dict[str, Any]:
        """Return the options of `row`, and the scenario's options for the stages of `row`."""
        names = row.option_names
        settings = {name: value for name, value in self.options if name in names} | {**row.options}
        if settings.get("batching.order") != "priority":
            settings.pop("batching.ageing", None)  # stages refuse it with any other order
        return settings

    def with_options(self, **options: Any) -> Self:
        """Return this scenario with other options: `with_options(batching__workers=2)`."""
        changed = {name.replace("__", "."): value for name, value in options.items()}
        return replace(self, options=tuple({**dict(self.options), **changed}.items()))


class Expected(NamedTuple):
    """The answer and the results of a request, as the oracle computes them."""

    tokens: tuple[int, ...]
    reason: FinishReason
    results: Mapping[int, tuple[Tensor, ...]] = {}  # of a cell graph: the outputs of the nodes that no node reads
    whole: bool = True  # False: a stop token cut the answer short, and perhaps the results

    def check(
        self, request: Request, answer: tuple[int, ...], reason: FinishReason | None, results: Mapping[int, Any]
    ) -> None:
        """Raise `LawBroken("exact")` unless a request has this answer or, if aborted, a prefix of it."""
        aborted = reason is FinishReason.ABORTED
        if answer != (self.tokens[: len(answer)] if aborted else self.tokens):
            raise LawBroken("exact", f"{request} got {answer}, the oracle {self.tokens}")
        if not aborted and reason is not self.reason:
            raise LawBroken("exact", f"{request} ended by {reason}, which should be {self.reason}")
        if not results.keys() <= self.results.keys() or (
            self.whole and not aborted and results.keys() != self.results.keys()
        ):
            raise LawBroken("exact", f"{request} has the results {sorted(results)}, of {sorted(self.results)}")
        for number, outputs in results.items():
            if not alike(outputs, self.results[number]):
                raise LawBroken("exact", f"{request} has {outputs} at node {number}, not {self.results[number]}")


def alike(one: tuple[Tensor, ...], two: tuple[Tensor, ...]) -> bool:
    """Return whether two nodes have the same outputs, except for rounding in float64."""
    import torch

    return len(one) == len(two) and all(
        torch.allclose(a.cpu(), b.cpu(), rtol=0, atol=1e-12) for a, b in zip(one, two, strict=True)
    )


class Books:
    """Records one run independently of the stages, only from its plans.

    Each event of the run calls a method, which raises `LawBroken` if it finds a law broken.
    """

    def __init__(self) -> None:
        self.tokens: dict[tuple[str, int], int] = {}  # see `Tokens`

    def num_free(self, memory: Memory) -> int:
        """Count the slots that newcomers may get, on both tiers."""
        usage = memory.usage()
        return usage.capacity - usage.reserved + memory.host_capacity - usage.host

    def receive(self, sequence: Sequence) -> None:
        """Record that the policy has received a sequence."""

    def propose(self, worker: int, proposal: Proposal) -> None:
        """Record what the policy proposes for a worker: work, or to wait."""

    def submit(self, plan: Plan) -> None:
        """Record a new plan, which runs after earlier plans of its worker."""

    def begin(self, plan: Plan, sequences: Mapping[str, Sequence]) -> None:
        """Record that a worker begins a plan."""

    def ran(self, plan: Plan, ran: Ran) -> None:
        """Record that a plan has been computed, with this result."""

    def complete(self, report: StepReport, held: Collection[str]) -> None:
        """Record that a plan has been committed; memory must still hold the sequences `held`."""

    def abort(self, name: str, held: Collection[str]) -> None:
        """Record that a request has been aborted; memory must still hold the sequences `held`."""


class Case(ABC):
    """A technique on a scenario, with all that laws and runs need of the model."""

    scenario: Any

    def __init__(self, row: Technique, scenario: Any) -> None:
        self.row = row
        self.scenario = scenario
        self.requests: tuple[Request, ...] = scenario.requests
        self.settings: dict[str, Any] = scenario.settings(row)

    def __repr__(self) -> str:
        return f"{self.row.name} on {self.scenario}"

    @property
    def groups(self) -> list[tuple[Request, ...]]:
        """Group the prompts by request."""
        return [tuple(prompts) for prompts in by_request(self.requests)]

    def with_requests(self, requests: tuple[Request, ...], aborts: tuple[tuple[int, str], ...] = ()) -> Self:
        """Return this case with other requests and the same memory."""
        return type(self)(self.row, replace(self.scenario.with_requests(requests), aborts=aborts))

    def alone(self, request: Request) -> Self:
        """Return the case in which one request, or prompt, is served alone."""
        return type(self)(self.row, self.scenario.alone(request))

    @cached_property
    def choices(self) -> Choices:
        """Parse the options of the stages. Raises `UsageError` if one is wrong."""
        return choose(self.row, self.settings)

    @property
    def options(self) -> Mapping[Kind, Any]:
        """Return the parsed options of each stage, defaults included."""
        return self.choices.options

    def stages(self) -> Stages:
        """Make stages for a run. Raises `UsageError` if they cannot be made."""
        return self.choices.stages(self.capacity)

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Return the number of slots in memory."""

    @property
    @abstractmethod
    def reader(self) -> Reader:
        """Return the part of the model that reads requests."""

    @property
    @abstractmethod
    def probes(self) -> list[Sequence]:
        """Return one minimal sequence per slot of memory, to measure free room."""

    @property
    @abstractmethod
    def most_steps(self) -> int:
        """Return the largest number of steps that a run may need."""

    @abstractmethod
    def books(self, memory: Memory) -> Books:
        """Make empty records for one run with this memory."""

    @abstractmethod
    def runner(self) -> RunPlan:
        """Return a function that runs plans on a small float64 model and checks their reads."""

    @abstractmethod
    def replay(self, tokens: Tokens) -> RunPlan:
        """Return a function that computes nothing and produces these tokens.

        A missing token is -1, which is no stop token.
        """

    @abstractmethod
    def expected(self, request: Request) -> Expected:
        """Ask the oracle for the answer to a request."""

    @abstractmethod
    def endless(self, request: Request) -> Expected:
        """Return the expected answer to a request if all computed tokens are -1."""

    def whole(self, request: Request, before: Sequence | None) -> Request:
        """Return a request whose prompt begins with the text of `before`, its predecessor."""
        history = () if before is None else (*before.request.prompt, *before.answer)
        return replace(request, prompt=(*history, *request.prompt), conversation=None, after=None, delay_s=0.0)

    @abstractmethod
    def servable(self, prompts: tuple[Request, ...]) -> bool:
        """Return whether a request with these prompts can be served, counting slots independently."""

    def of_one_run(self, seen: Any) -> None:  # noqa: B027  # most have none
        """Check the laws of single runs that only this kind of model has.

        Args:
            seen: the `Observation` of the run.
        """

    def link(self, memory: Memory) -> Link:
        """Make the link that carries moves between the tiers."""
        return Link()

    def running_ahead(self, run: RunPlan) -> RunPlan:
        """Wrap `run` for a policy with several plans in flight on a worker."""
        return run


class Subject(NamedTuple):
    """Describes a kind of model for the laws: its mixes, scenarios and cases."""

    kind: str  # as stages serve it: "transformer" or "cells"
    noun: str
    mixes: Callable[..., Iterator[Technique]]
    scenarios: Callable[..., SearchStrategy[Any]]  # random scenarios for a row, perhaps only of some kinds
    case: Callable[[Technique, Any], Case]
    laws: Mapping[str, Callable[..., None]]  # in addition to the laws of all subjects
    law_names: tuple[str, ...] = ()  # names that only this subject's books and laws may raise


def mixes(kind: str, **only: str) -> Iterator[Technique]:
    """Yield every technique that serves this kind of model, then every valid mix of stages.

    Args:
        only: stages that each technique and mix must use: `batching="mine"`.
    """
    rows = [for_model(row, kind) for row in TECHNIQUES.values() if kind in row.serves]
    serving = {of: [name for name, cls in stages(of).items() if kind in cls.serves] for of in KINDS}
    for chosen in product(*serving.values()):
        names = dict(zip(KINDS, chosen, strict=True))
        if fit(names):
            rows.append(mix(rows[0], **names))
    found = set()
    for row in rows:
        key = (*row.stages.values(), *row.options.items())
        if key not in found and all(getattr(row, kind) == name for kind, name in only.items()):
            found.add(key)
            yield row

"""What the laws are checked on: each `Case` is a technique on a scenario.

There are two subjects: texts (`minifuse.testing.texts`) and cell graphs (`minifuse.testing.graphs`). All that differs
between them is a method of `Case`: laws and observed runs are the same.
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


# The tokens of a run, by sequence and by position in the text, or by the node that produces it.
Tokens = Mapping[tuple[str, int], int]


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A workload, a budget and settings, all so small that corner cases are frequent."""

    requests: tuple[Request, ...]
    options: tuple[tuple[str, Any], ...]  # as `--set` takes them; a mix leaves out options that it lacks
    aborts: tuple[tuple[int, str], ...] = ()  # after so many steps this request is aborted
    shared: bool = False  # whether the workers share one device
    replayed: bool = False  # no model computes: every token is -1, which ends no answer

    def settings(self, row: Technique) -> dict[str, Any]:
        """Return the options that `row` sets, and the drawn ones that its stages have."""
        names = row.option_names
        settings = {name: value for name, value in self.options if name in names} | {**row.options}
        if settings.get("batching.order") != "priority":
            settings.pop("batching.ageing", None)  # it is refused under any other order
        return settings

    def with_options(self, **options: Any) -> Self:
        """Change options: `with_options(batching__workers=2)`."""
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
        """Raise `LawBroken("exact")` unless a request has this answer, or its beginning if aborted."""
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
    """Whether two nodes have the same outputs, except for rounding in float64."""
    import torch

    return len(one) == len(two) and all(
        torch.allclose(a.cpu(), b.cpu(), rtol=0, atol=1e-12) for a, b in zip(one, two, strict=True)
    )


class Books:
    """Independent books of one run, made only from its plans.

    For each event of the run, a method is called, which raises `LawBroken` if it finds a law broken.
    """

    def __init__(self) -> None:
        self.tokens: dict[tuple[str, int], int] = {}  # see `Tokens`

    def receive(self, sequence: Sequence) -> None:
        """The policy has received a sequence."""

    def propose(self, worker: int, proposal: Proposal) -> None:
        """The policy proposes this for a worker: work, or that it waits."""

    def submit(self, plan: Plan) -> None:
        """A plan has been made: it runs after earlier plans of its worker."""

    def begin(self, plan: Plan, sequences: Mapping[str, Sequence]) -> None:
        """A worker begins a plan."""

    def ran(self, plan: Plan, ran: Ran) -> None:
        """A plan has been computed, and produced this."""

    def complete(self, report: StepReport, held: Collection[str]) -> None:
        """A plan has been committed; `held` are the sequences that memory must still hold."""

    def abort(self, name: str, held: Collection[str]) -> None:
        """A request has been aborted; `held` as for `complete`."""


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
        """Return this case with other requests, in the same memory."""
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
        """Make empty books for one run with this memory."""

    @abstractmethod
    def runner(self) -> RunPlan:
        """Compute plans with a small model in float64, and check what each of them reads."""

    @abstractmethod
    def replay(self, tokens: Tokens) -> RunPlan:
        """Compute nothing: produce these tokens, and -1, which is no stop token, for missing ones."""

    @abstractmethod
    def expected(self, request: Request) -> Expected:
        """Ask the oracle for the answer to a request."""

    @abstractmethod
    def endless(self, request: Request) -> Expected:
        """Return the expected answer to a request if all computed tokens are -1."""

    def whole(self, request: Request, before: Sequence | None) -> Request:
        """Return a request whose prompt begins with the text of `before`, which it follows."""
        history = () if before is None else (*before.request.prompt, *before.answer)
        return replace(request, prompt=(*history, *request.prompt), conversation=None, after=None, delay_s=0.0)

    @abstractmethod
    def servable(self, prompts: tuple[Request, ...]) -> bool:
        """Whether a request with these prompts can be served at all, counted independently."""

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
    """A kind of model as the laws see it."""

    kind: str  # as stages serve it: "transformer" or "cells"
    noun: str
    mixes: Callable[..., Iterator[Technique]]
    scenarios: Callable[..., SearchStrategy[Any]]  # for a row; perhaps only of some kinds
    case: Callable[[Technique, Any], Case]
    laws: Mapping[str, Callable[..., None]]  # besides the laws of all subjects
    law_names: tuple[str, ...] = ()  # names that only this subject's books and laws may raise


def mixes(kind: str, **only: str) -> Iterator[Technique]:
    """Yield every technique that serves this kind of model, then every valid mix of stages.

    Args:
        only: stages that each must have: `batching="mine"`.
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

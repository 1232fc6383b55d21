"""Seeded defects: something put wrong, the technique that then misbehaves, and the law that must name it.

    @defect("orca", "conservation")
    @instead_of(RunAllocator, "free")
    def slot_freed_twice(free, self, offset, size):
        free(self, offset, size)
        free(self, offset, size)

A defect that is not one function in the place of another takes the `MonkeyPatch` itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from minifuse.core.errors import LawBroken
from minifuse.core.turns import Turns
from minifuse.serve.requests import ServedRequests
from minifuse.testing import GRAPHS, SUBJECTS, TEXTS, Subject, laws_of, observe
from minifuse.testing.drawn import try_each
from minifuse.testing.waiting import WaitingBooks

FIRST = Path(__file__).with_name("first.json")
SIMPLEST = 3  # scenarios, which cost next to nothing
Patch = pytest.MonkeyPatch
Seed = Callable[[Patch], None]
MIXES = {subject.kind: {row.name: row for row in subject.mixes()} for subject in SUBJECTS}


@dataclass(frozen=True)
class Defect:
    """A defect that `seed` puts into the code while one test runs."""

    seed: Seed
    subject: Subject
    technique: str
    laws: tuple[str, ...]  # the names that LawBroken may carry: several if any of them may meet it first
    check: str  # the function of the laws that finds it
    kinds: tuple[str, ...]  # of scenarios; of texts all but the long ones, unless it says otherwise
    options: Mapping[str, Any]  # of every scenario, without which the defect hardly shows

    @property
    def id(self) -> str:
        return f"{self.technique}: {self.seed.__name__.replace('_', ' ')} ({self.laws[0]})"


DEFECTS: list[Defect] = []


def defect(
    technique: str,
    *laws: str,
    check: str = "of_one_run",
    subject: Subject = TEXTS,
    kinds: tuple[str, ...] = (),
    **options: Any,
) -> Callable[[Seed], Seed]:
    """Register a defect of `technique` that one of `laws` must name; options as `memory__share=True`."""

    def register(seed: Seed) -> Seed:
        usual = ("few", "crowd", "growing") if subject is TEXTS else ()
        DEFECTS.append(Defect(seed, subject, technique, laws, check, kinds or usual, options))
        return seed

    return register


def all_defects() -> list[Defect]:
    """Import the files beside this one, each of which registers its own defects."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        import_module(f"conformance.defects.{path.stem}")
    return DEFECTS


graph_defect = partial(defect, subject=GRAPHS)


def instead_of(owner: Any, name: str) -> Callable[[Callable[..., Any]], Seed]:
    """The seed that puts a function in the place of a method, which it gets as its first argument."""

    def seeding(wrong: Callable[..., Any]) -> Seed:
        @wraps(wrong)
        def seed(patch: Patch) -> None:
            right = getattr(owner, name)
            patch.setattr(owner, name, lambda *arguments, **named: wrong(right, *arguments, **named))

        return seed

    return seeding


def one_slot_less(check: Any, memory: Any, *arguments: Any) -> None:
    """A method of a memory, which believes that it has one slot less."""
    memory.capacity -= 1
    try:
        check(memory, *arguments)
    finally:
        memory.capacity += 1


def unseen_by_queue(patch: Patch) -> None:
    """Hide the order of admission from the law "queue"."""
    patch.setattr(WaitingBooks, "_precedes", lambda *arguments: False)


class _Future:
    """The times at which requests will arrive."""

    def __init__(self, arrivals: Turns) -> None:
        self.arrivals = arrivals

    def __iter__(self) -> Iterator[float]:
        return (time for time, _, name in self.arrivals._times if name in self.arrivals._pending)


class _Caught(BaseException):
    """Ends hypothesis's search at once: no other scenario is drawn, and nothing is shrunk."""

    def __init__(self, broken: LawBroken) -> None:
        super().__init__(broken)
        self.broken = broken


def caught(defect: Defect) -> LawBroken | None:
    """What is raised on the first scenario of up to 600 that breaks a law.

    Where a seed is known whose first scenarios show the defect, they are tried before (see `first.py`).
    """
    known = json.loads(FIRST.read_text()).get(defect.id)
    broken = None if known is None else search(defect, known, SIMPLEST)[0]
    return broken or search(defect)[0]


def search(defect: Defect, seed: int = 0, examples: int = 600) -> tuple[LawBroken | None, int]:
    """As `caught`, with so many scenarios of a seed; and the number of the one that shows the defect."""
    row = MIXES[defect.subject.kind][defect.technique]
    law = laws_of(defect.subject)[defect.check]
    number = -1

    def attempt(scenario: Any) -> None:
        nonlocal number
        number += 1
        try:
            case = defect.subject.case(row, scenario.with_options(**defect.options))
            law(case, observe(case))
        except LawBroken as broken:
            raise _Caught(broken) from None

    try:
        try_each(defect.subject.scenarios(row, defect.kinds), attempt, examples, seed=seed)
    except _Caught as found:
        return found.broken, number
    return None, number


@instead_of(ServedRequests, "submit")
def leak_arrivals(submit: Any, self: ServedRequests, *prompts: Any) -> None:
    """Every policy gets the list of arrivals to come, as `future`."""
    submit(self, *prompts)
    policy = self.batching.policy  # type: ignore[attr-defined]  # it is watched
    policy.future = _Future(self.arrivals)

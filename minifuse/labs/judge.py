"""Judges a student's file: runs each test of a lab in a new process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from traceback import extract_tb
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis.strategies import SearchStrategy

from minifuse.core.errors import LawBroken, MachineError, MinifuseError
from minifuse.labs.lab import Lab, Test
from minifuse.labs.submission import Budget, StudentFault, Submission
from minifuse.trace.log import Event

PHASES = (Phase.generate, Phase.shrink)
LONGEST = 2000  # characters of a sentence, which may quote what was returned


class Unmet(AssertionError):
    """Raised if a demand of a test is not met.

    Args:
        what: a sentence that tells the input, the result, and the expected result.
        picture: lines that show the smallest scenario.
        events: the trace of a run that shows the failure, for the replay page.
    """

    def __init__(self, what: str, picture: Iterable[str] = (), events: list[Event] | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.picture = [*picture]
        self.events = events


@dataclass
class Work(Submission):
    """A student's file in a test; everything random follows from `seed`."""

    seed: str = ""
    lab: Lab | None = field(default=None, repr=False)

    @property
    def random(self) -> Random:
        """Return a new random generator, always with the same seed."""
        return Random(self.seed)

    def smallest(
        self,
        cases: SearchStrategy[Any],
        demand: Callable[[Any], None],
        examples: int = 300,
    ) -> None:
        """Try `demand` on generated cases; raise the error of the smallest failing case.

        Raises:
            Unmet, StudentFault, LawBroken: what `demand` raised on that case.
        """
        failed: list[Exception] = []

        @seeded(self.seed)
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            phases=PHASES,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(cases)
        def attempt(case: Any) -> None:
            try:
                demand(case)
            except (AssertionError, MinifuseError) as error:
                failed.append(error)
                raise _Failed from None

        try:
            attempt()
        except Exception:
            if not failed:
                raise
            raise failed[-1] from None


class _Failed(Exception):
    """Tells hypothesis that a case fails, whatever the reason."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a test: its points, and why it failed."""

    test: Test
    held: bool
    what: str = ""
    picture: tuple[str, ...] = ()
    events: list[Event] | None = field(default=None, repr=False)
    unwritten: bool = False  # nothing was judged: the skeleton is not filled in yet
    broke: bool = False  # the test or the stage raised an error of its own: a defect of the lab
    printed: str = ""
    steps: int = 0  # the most steps that one call took

    @property
    def points(self) -> float:
        return self.test.points if self.held else 0.0


def judge(
    lab: Lab,
    file: Path,
    *,
    hidden: bool = True,
    seed: str = "public",
    user: str | None = None,
    only: str | None = None,
    budget: Budget | None = None,
    say: Callable[[str], None] = lambda name: None,
) -> list[Outcome]:
    """Run a lab's tests on a student's file.

    Args:
        hidden: also run the hidden tests.
        seed: determines everything random; a course has a secret seed.
        user: the user that the student's process runs as.
        only: the name of the only test to run; None: all tests.
        budget: the computing time of all tests; by default the lab's limit.
        say: is called with the name of each test before it runs.
    """
    outcomes, budget = [], budget or Budget(lab.limits.seconds)
    for test in lab.tests(hidden):
        if only in (None, test.name):
            say(test.name)
            outcomes.append(_judge(lab, test, file, seed, user, budget))
    return outcomes


def _judge(lab: Lab, test: Test, file: Path, seed: str, user: str | None, budget: Budget) -> Outcome:
    """Run one test.

    Raises:
        MachineError: this machine lacks what the test needs.
    """
    work = Work(file, lab.limits, user, budget=budget, seed=f"{seed} {lab.number} {test.name}", lab=lab)
    try:
        with work:
            test.run(work)
        return Outcome(test, True, printed=work.printed, steps=work.most_steps)
    except MachineError:
        raise
    except Exception as error:  # whatever the error is, the other tests are judged
        found = of_student(error)
        what, picture, events = told(found, lab)
        unwritten = isinstance(found, StudentFault) and found.unwritten
        broke = not isinstance(found, (Unmet, LawBroken, StudentFault))
        return Outcome(test, False, what, picture, events, unwritten, broke, work.printed, work.most_steps)


def of_student(error: BaseException) -> BaseException:
    """Return the first `StudentFault` among an error and its causes, otherwise the error."""
    cause: BaseException | None = error
    seen: set[int] = set()  # causes may form a circle
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, StudentFault):
            return cause
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return error


def told(error: BaseException, lab: Lab) -> tuple[str, tuple[str, ...], list[Event] | None]:
    """Describe an error by a sentence, a picture, and the trace of the run."""
    if isinstance(error, Unmet):
        what = error.what if len(error.what) <= LONGEST else f"{error.what[:LONGEST]}..."
        return what, tuple(line[:LONGEST] for line in error.picture), error.events
    if isinstance(error, LawBroken):
        return _law(error)
    if isinstance(error, StudentFault):
        return str(error), (), None
    return _defect(error, lab)


def _defect(error: BaseException, lab: Lab) -> tuple[str, tuple[str, ...], None]:
    """Describe an error that no test raises on purpose."""
    folder = f"{lab.folder.resolve()}{os.sep}"
    frames = [one for one in extract_tb(error.__traceback__) if one.filename.startswith(folder)]
    place = f" at {frames[-1].filename[len(folder) :]}, line {frames[-1].lineno}," if frames else ""
    what = f"The test could not be finished: it failed{place} with {type(error).__name__} ({error})."
    why = "Either your file returned what the test does not expect, or the test has a defect: show this to a teacher."
    case = [line for note in getattr(error, "__notes__", ()) for line in note.splitlines()]  # as hypothesis found it
    return f"{what} {why}", tuple(case), None


def _law(broken: LawBroken) -> tuple[str, tuple[str, ...], list[Event] | None]:
    """Describe a broken law by a sentence, a timeline, and the trace of the run."""
    from minifuse.show.observed import legend, timeline
    from minifuse.testing.statements import statement

    what = f'The law "{broken.law}" is broken: {broken.what}. The whole law: {statement(broken.law).says}.'
    if broken.seen is None:
        return what, (), None
    try:
        picture = timeline(broken.seen, broken.what, 78)
        return what, (*picture, f"({legend(picture)})"), broken.seen.trace.events()
    except Exception:  # a stage may have decided anything
        return what, (), None

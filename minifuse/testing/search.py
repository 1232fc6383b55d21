"""The search for a scenario that breaks a law: hypothesis makes scenarios up, and the one that it finds smaller."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

from hypothesis import HealthCheck, Phase, Verbosity, given, reject, settings
from hypothesis import seed as seeded

from minifuse.contracts.fault import Hung
from minifuse.core.errors import CheckerFailed, LawBroken, UsageError
from minifuse.core.request import GREEDY, Request
from minifuse.io.parsing import did_you_mean, one_of
from minifuse.stages import KINDS, stage
from minifuse.techniques import Technique
from minifuse.testing.drawn import cases
from minifuse.testing.failure import failure
from minifuse.testing.hits import Hits, finds, keeps
from minifuse.testing.laws import SUBJECTS, Law, laws_of, of_one_run
from minifuse.testing.load import long_run_of, many_texts_of
from minifuse.testing.mixes import applying, can_be_computed
from minifuse.testing.observation import Observation
from minifuse.testing.observed import PATIENCE_S, observe
from minifuse.testing.subject import Case, Subject
from minifuse.testing.texts import TEXTS

MOST_REFUSED = 20  # scenarios in which the stages cannot be made, before the first in which they can
MOST_SMALLER = 300  # scenarios that hypothesis tries when one has been found
MOST_WORKERS = 8  # of a policy that is tried on many texts
MOST_DRAWN, MANY = 8, 50  # requests of a scenario that was drawn, and of one that soon has been made smaller
PHASES = (Phase.generate, Phase.shrink)
Found = tuple[LawBroken, Law]  # a broken law, with the function that finds it
Say = Callable[[int, str], None]  # the number of the scenario, and what it is put through


class Limit(NamedTuple):
    """Until when, as `time.monotonic` counts, new scenarios are tried, and the one that was found is made smaller."""

    search_until: float
    shrink_until: float

    @classmethod
    def of(cls, seconds: float, since: float) -> Limit:
        """To end after so many seconds, even if the last scenario hangs until it is interrupted."""
        return cls(since + max(seconds / 2, seconds - PATIENCE_S), since + 0.8 * seconds)


NO_LIMIT = Limit(math.inf, math.inf)


class _Found(Exception):
    """Tells hypothesis that a scenario breaks the law. There is but one such error, whatever the law says of it."""


class _OutOfTime(BaseException):
    """Ends hypothesis's search at once."""


class _Unusable(BaseException):
    """Ends it, too: a stage cannot be made, or a law failed."""


class Search:
    """Scenarios for one technique or mix, each observed once and put through the laws.

    The first law that is found broken is the one that is told; further scenarios are then tried on it alone, to find
    a smaller one.

    Args:
        laws: that compare runs; those of one run are always checked.
        first: deal the laws out: scenario i is tried on number `first` + i of them alone. None: each on all.
        long: also check the laws of one run on a long run, made from the last scenario.
        crowded: the memories that have been tried on many texts; this one is added when it has. A memory is, once, if
            newcomers find KV of others in it and the policy has few workers. None: never.
        say: is told what is about to be checked.
    """

    def __init__(
        self,
        subject: Subject,
        row: Technique,
        laws: Sequence[Law],
        *,
        first: int | None = None,
        long: bool = False,
        crowded: set[str] | None = None,
        limit: Limit = NO_LIMIT,
        say: Say = lambda number, law: None,
    ) -> None:
        self.subject = subject
        self.row = row
        self.laws = laws
        self.first = first
        self.long = long
        self.crowded = crowded
        self.limit = limit
        self.say = say
        self.number = 0  # scenarios tried until a law was broken
        self.out_of_time = False
        self.hits = Hits(False, False, 0, 0)
        self._num_refused = self._num_smaller = 0
        self._tried: Case | None = None  # the last scenario
        self._smallest: tuple[Case, LawBroken, Law] | None = None
        self._last: tuple[Case, LawBroken, Law] | None = None

    def run(self, examples: int, seed: int | None = None, **hypothesis_settings: Any) -> None:
        """Try so many scenarios: with a seed, the same ones every time.

        Raises:
            LawBroken: on the smallest scenario found that breaks a law. Its `seen` is the run in which it shows.
            UsageError: a stage cannot be made.
            CheckerFailed: a law failed.
        """

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=PHASES,
            verbosity=Verbosity.quiet,
            report_multiple_bugs=False,
            **hypothesis_settings,
        )
        @given(cases(self.subject, self.row))
        def attempt(case: Case | UsageError) -> None:
            if isinstance(case, UsageError):
                self._num_refused += 1
                if not self.number and self._num_refused == MOST_REFUSED:
                    raise _Unusable from case
                reject()
            self._attempt(case)

        try:
            (attempt if seed is None else seeded(seed)(attempt))()
        except _OutOfTime:
            self.out_of_time = True
        except _Unusable as unusable:
            error = unusable.__cause__ or unusable
            raise error from error.__cause__
        except Exception:  # that a scenario breaks the law only now and then is an error of its own to hypothesis
            if self._smallest is None:
                raise
        told: tuple[Case, LawBroken, Law] | None = None
        if self._smallest is not None and self._last is not None:
            # Hypothesis ends with the smallest by its own measure, of which requests may be left out as well.
            told = min(self._smallest, self._smaller(*self._last), key=lambda found: _size(found[0]))
        elif self._tried is not None and not self.out_of_time:
            late = [long_run_of(self._tried)] if self.long else []
            late += self._many_texts(self._tried)
            for case in late:
                found = self._broken(case, [])
                if found is not None:
                    told = self._smaller(case, *found)
                    break
        if told is not None:
            case, broken, _ = told
            broken.add_note(f"{case}, the smallest scenario found")
            raise broken

    def _many_texts(self, case: Case) -> list[Case]:
        """A run of many texts made from a case, if one is due."""
        memory = self.row.memory
        if self.crowded is None or memory in self.crowded or not self.hits.found or self.subject is not TEXTS:
            return []
        texts = many_texts_of(case)
        # A worker for each request is asked as often as there are requests, after each token of any of them.
        if texts.choices.policy.workers > MOST_WORKERS:
            return []
        self.crowded.add(memory)
        return [texts]

    def _attempt(self, case: Case) -> None:
        """Try a scenario; with the first that breaks a law, and with smaller ones that break it too, raise `_Found`."""
        searching = self._smallest is None
        if time.monotonic() > (self.limit.search_until if searching else self.limit.shrink_until):
            raise _OutOfTime
        if searching:
            self.number += 1
            self._tried = case
        else:
            self._num_smaller += 1
            if self._num_smaller > MOST_SMALLER:
                raise _OutOfTime
        try:
            found = self._broken(case, self._laws_for_now())
        except (UsageError, CheckerFailed) as error:
            if searching:
                raise _Unusable from error
            return  # a smaller scenario, which tells nothing of the law
        if found is None or (self._smallest is not None and found[0].law != self._smallest[1].law):
            return
        case, found = self._itself(case, found)
        self._last = (case, *found)
        if self._smallest is None:
            # Which is soon done, where hypothesis may run out of time.
            self._smallest = self._last = self._smaller(case, *found)
        elif _size(case) < _size(self._smallest[0]):
            self._smallest = (case, *found)
        if isinstance(found[0].__cause__, Hung):
            raise _OutOfTime  # each smaller scenario would hang as long
        raise _Found

    def _itself(self, case: Case, found: Found) -> tuple[Case, Found]:
        """Return the case that ran when the law broke, with what was found.

        A law may run another case than it was given, as a crowd made from it: that one counts if it breaks alone.
        """
        broken, _ = found
        other = case if broken.seen is None else broken.seen.case
        again = None if other is case or isinstance(broken.__cause__, Hung) else self._broken(other, [])
        return (other, again) if again is not None and again[0].law == broken.law else (case, found)

    def _laws_for_now(self) -> Sequence[Law]:
        if self._smallest is not None:
            return [law for law in self.laws if law is self._smallest[2]]
        if self.first is None or not self.laws:
            return self.laws
        return [self.laws[(self.first + self.number) % len(self.laws)]]

    def _broken(self, case: Case, laws: Sequence[Law]) -> Found | None:
        """The law that a scenario breaks."""
        seen, law = None, cast(Law, of_one_run)
        try:
            self._say(law)
            seen = observe(case)
            self._note(seen)
            for law in (of_one_run, *laws):
                self._say(law)
                law(case, seen)
        except LawBroken as broken:
            broken.seen = broken.seen or seen
            return broken, law
        except (UsageError, CheckerFailed):
            raise  # a stage cannot be made, or a law failed
        except (Exception, SystemExit) as error:
            failed = failure(error, case.row, seen, in_law=seen is not None)
            if isinstance(failed, CheckerFailed):
                raise failed from error
            failed.__cause__ = error
            return failed, law
        return None

    def _note(self, seen: Observation) -> None:
        kept, found, left, runs = self.hits
        usage = seen.usage_at_end
        left += usage is not None and usage.kept + usage.kept_on_host > 0
        self.hits = Hits(kept or keeps(seen), found or finds(seen), left, runs + 1)

    def _say(self, law: Law) -> None:
        searching = self._smallest is None
        self.say(self.number, law.__name__.replace("_", " ") if searching else "making it smaller")

    def _smaller(self, case: Case, broken: LawBroken, law: Law) -> tuple[Case, LawBroken, Law]:
        """The same without what it does not take to break the law, down to a single request of a few tokens."""
        laws, before = [other for other in self.laws if other is law], None
        while before is not case:
            before = case
            for simplify in _ways(case):
                if isinstance(broken.__cause__, Hung) or time.monotonic() > self.limit.shrink_until:
                    return case, broken, law
                simpler = simplify(case)
                try:
                    found = None if simpler is None else self._broken(simpler, laws)
                except (UsageError, CheckerFailed):
                    continue
                if simpler is not None and found is not None and found[0].law == broken.law:
                    case, (broken, law) = simpler, found
        return case, broken, law


def _size(case: Case) -> tuple[int, ...]:
    """What makes a scenario hard to read, the worst first."""
    return len(case.requests), case.most_steps, len(case.scenario.aborts), len(repr(case.scenario))


def _ways(case: Case) -> Iterator[Callable[[Case], Case | None]]:
    """What may make this case, or one that has been made simpler already, simpler; None: nothing is left to do."""
    names = [request.id for request in reversed(case.requests)]
    few = 1 if len(names) <= MANY else len(names) // 8  # one by one would take long
    for size in (len(names) // 2, len(names) // 4, few) if len(names) > MOST_DRAWN else (1,):
        yield from (partial(_without, frozenset(names[i : i + size])) for i in range(0, len(names), size))
    if len(names) > MANY:
        return
    yield from (partial(_without_abort, abort) for abort in case.scenario.aborts)
    yield from (partial(_changed, name, change) for name in names for change in (_plain, _shorter, _briefer))


def _without(names: frozenset[str], case: Case) -> Case | None:
    """Some of the requests are left out, and those that follow them."""
    left: dict[str | None, Request] = {}
    for request in case.requests:
        if request.id not in names and (request.after is None or request.after in left):
            left[request.id] = request
    if not left:
        return None
    aborts = tuple(abort for abort in case.scenario.aborts if abort[1] in left)
    return case.with_requests(tuple(left.values()), aborts)


def _without_abort(abort: tuple[int, str], case: Case) -> Case | None:
    left = tuple(other for other in case.scenario.aborts if other != abort)
    return case.with_requests(case.requests, left) if len(left) < len(case.scenario.aborts) else None


def _changed(name: str, change: Callable[[Request], Request], case: Case) -> Case | None:
    requests = tuple(change(request) if request.id == name else request for request in case.requests)
    return case.with_requests(requests, case.scenario.aborts) if requests != case.requests else None


def _plain(request: Request) -> Request:
    return replace(request, sampling=GREEDY, stop_ids=(), priority=0, user=None)


def _shorter(request: Request) -> Request:
    return replace(request, prompt=request.prompt[: (len(request.prompt) + 1) // 2])


def _briefer(request: Request) -> Request:
    return replace(request, max_new_tokens=(request.max_new_tokens + 1) // 2)


def check_laws(examples: int = 25, **only: str) -> str:
    """Put every technique and mix with these stages through every law: `check_laws(batching="mine")`.

    A stage that serves transformers and models of cells is put through the laws of both.

    Returns:
        A sentence that names the laws, the techniques and mixes, and the number of scenarios.

    Raises:
        LawBroken: with the law's name, on the smallest scenario found that breaks it.
        UsageError: there is no such stage, or no valid mix has these stages.
    """
    for kind, name in only.items():
        if kind not in KINDS:
            raise UsageError(f"check_laws was given {kind}={name!r}{did_you_mean(kind, KINDS)}: give {one_of(KINDS)}.")
        stage(kind, name)
    mixes = [(subject, row) for subject in SUBJECTS for row in subject.mixes(**only) if can_be_computed(row)]
    if not mixes:
        raise UsageError(f"No valid mix has {only}: is the stage registered, and is there one that it fits?")
    crowded: set[str] = set()
    for subject, row in mixes:
        laws = compared_laws(subject)
        Search(subject, row, laws, long=True, crowded=crowded).run(examples, derandomize=True)
    names, left_out = applying(mixes)
    nouns = dict.fromkeys(subject.noun for subject, _ in mixes)
    rows = {noun: ", ".join(row.name for subject, row in mixes if subject.noun == noun) for noun in nouns}
    held = "; ".join(f"for {noun} {held}" for noun, held in rows.items())
    without = f" Left out: {'; '.join(f'{law} needs {what}' for law, what in left_out.items())}." if left_out else ""
    return f"The laws {', '.join(names)} held on {examples} scenarios each: {held}.{without}"


def put_through(
    subject: Subject,
    row: Technique,
    examples: int,
    *,
    dealt: int | None = None,
    **hypothesis_settings: Any,
) -> None:
    """Check the laws on so many scenarios for a row, each observed once for all of them.

    Args:
        dealt: check only one of the laws that compare runs, which has this number.
    """
    compared = compared_laws(subject)
    laws = compared if dealt is None else [compared[dealt % len(compared)]]
    Search(subject, row, laws).run(examples, **hypothesis_settings)


def compared_laws(subject: Subject) -> list[Law]:
    """The laws that make runs of their own, and compare them with the one that is observed."""
    return [law for law in laws_of(subject).values() if law is not of_one_run]

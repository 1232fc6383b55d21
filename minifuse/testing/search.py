"""Searches for a scenario that breaks a law, and makes the first one found smaller."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple, cast

from minifuse.contracts.fault import Hung
from minifuse.core.errors import CheckerFailed, LawBroken, MinifuseError, UsageError
from minifuse.io.parsing import did_you_mean, one_of
from minifuse.stages import KINDS, stage
from minifuse.techniques import Technique
from minifuse.testing.drawn import cases, try_each
from minifuse.testing.failure import failure
from minifuse.testing.hits import Hits
from minifuse.testing.laws import SUBJECTS, Law, laws_of, of_one_run
from minifuse.testing.load import long_run_of, many_texts_of
from minifuse.testing.mixes import applying, can_be_computed
from minifuse.testing.observed import PATIENCE_S, observe
from minifuse.testing.smaller import smallest
from minifuse.testing.subject import Case, Subject
from minifuse.testing.texts import TEXTS

MOST_REFUSED = 20  # scenarios whose stages cannot be made, before the first whose stages can
MOST_WORKERS = 8  # a policy with more workers is not tried on many texts
Say = Callable[[int, str], None]  # is given the number of the scenario, and the name of the check


class Limit(NamedTuple):
    """The `time.monotonic` times at which searching, and then shrinking, must end."""

    search_until: float
    shrink_until: float

    @classmethod
    def of(cls, seconds: float, since: float) -> Limit:
        """Return the limit for a search of `seconds` that began at `since`.

        The search ends in time even if the last scenario hangs.
        """
        return cls(since + max(seconds / 2, seconds - PATIENCE_S), since + 0.8 * seconds)


NO_LIMIT = Limit(math.inf, math.inf)


class Broken(NamedTuple):
    """A case that breaks a law, the error, and the function that checks the law."""

    case: Case
    error: LawBroken
    law: Law


class _End(BaseException):
    """Ends hypothesis's search at once; `error` is None if time ran out."""

    def __init__(self, error: MinifuseError | None) -> None:
        self.error = error


@dataclass(eq=False)
class Search:
    """Observes scenarios for one technique or mix, and puts each through the laws.

    The first broken law ends the search. Smaller scenarios are then tried only on that law.

    Args:
        laws: the laws that compare runs; the laws of one run are always checked.
        first: check only law `first` + i, modulo the number of laws, on scenario i; None: check all on every scenario.
        long: also check the laws of one run on a long run, made from the last scenario.
        crowded: the memories already tried on many texts. If newcomers found KV in the memory of `row`, and the policy
            has few workers, the search tries this memory as well and adds it. None: no memory is tried on many texts.
        say: is called before each check.
    """

    subject: Subject
    row: Technique
    laws: Sequence[Law]
    _: KW_ONLY
    first: int | None = None
    long: bool = False
    crowded: set[str] | None = None
    limit: Limit = NO_LIMIT
    say: Say = lambda number, law: None
    number: int = field(default=0, init=False)  # scenarios tried until a law was broken
    out_of_time: bool = field(default=False, init=False)
    hits: Hits = field(default_factory=Hits, init=False)
    _num_refused: int = field(default=0, init=False)
    _last: Case | None = field(default=None, init=False)
    _shrinking: bool = field(default=False, init=False)

    def run(self, examples: int, seed: int | None = None, *, derandomize: bool = False) -> None:
        """Try `examples` random scenarios: with `seed` or `derandomize`, always the same.

        Raises:
            LawBroken: a law is broken; the error's `seen` is the run of the smallest scenario found that breaks it.
            UsageError: a stage cannot be made.
            CheckerFailed: a law raised an error.
        """
        try:
            try_each(cases(self.subject, self.row), self._attempt, examples, seed=seed, derandomize=derandomize)
        except _End as end:
            self.out_of_time = end.error is None
            if end.error is not None:
                raise end.error from end.error.__cause__
        if self._last is None or self.out_of_time:
            return
        late = [long_run_of(self._last)] if self.long else []
        for case in late + self._many_texts(self._last):
            if broken := self._broken(case, []):
                raise self._smallest(broken)

    def _many_texts(self, case: Case) -> list[Case]:
        """Return a list: a case of many texts, made from `case`, if one is due."""
        memory = self.row.memory
        if self.crowded is None or memory in self.crowded or not self.hits.found or self.subject is not TEXTS:
            return []
        texts = many_texts_of(case)
        # A policy with a worker for each request would be asked for every worker after every token.
        if texts.choices.policy.workers > MOST_WORKERS:
            return []
        self.crowded.add(memory)
        return [texts]

    def _attempt(self, case: Case | UsageError) -> bool:
        """Try a scenario, or return False if its stages cannot be made."""
        if isinstance(case, UsageError):
            self._num_refused += 1
            if not self.number and self._num_refused == MOST_REFUSED:
                raise _End(case)
            return False
        if time.monotonic() > self.limit.search_until:
            raise _End(None)
        self.number += 1
        self._last = case
        try:
            broken = self._broken(case, self._dealt())
            if broken is not None:
                raise _End(self._smallest(self._itself(broken)))
        except (UsageError, CheckerFailed) as error:
            raise _End(error) from None
        return True

    def _dealt(self) -> Sequence[Law]:
        if self.first is None or not self.laws:
            return self.laws
        return [self.laws[(self.first + self.number) % len(self.laws)]]

    def _itself(self, broken: Broken) -> Broken:
        """Return `broken`, if possible with the case whose run broke the law.

        A law may run another case, such as a crowd made from the given one. If such a run broke the law, its case is
        checked against the laws of one run, and replaces the given case if it breaks the same law again.
        """
        other = broken.case if broken.error.seen is None else broken.error.seen.case
        if other is broken.case or isinstance(broken.error.__cause__, Hung):
            return broken
        again = self._broken(other, [])
        return again if again is not None and again.error.law == broken.error.law else broken

    def _broken(self, case: Case, laws: Sequence[Law]) -> Broken | None:
        """Return the first law that a case breaks, or None."""
        seen, law = None, cast(Law, of_one_run)
        try:
            self._say(law)
            seen = observe(case)
            self.hits.note(seen)
            for law in (of_one_run, *laws):
                self._say(law)
                law(case, seen)
        except LawBroken as broken:
            broken.seen = broken.seen or seen
            return Broken(case, broken, law)
        except (UsageError, CheckerFailed):
            raise  # a stage cannot be made, or a law raised an error
        except (Exception, SystemExit) as error:
            failed = failure(error, case.row, seen, in_law=seen is not None)
            if isinstance(failed, CheckerFailed):
                raise failed from error
            failed.__cause__ = error
            return Broken(case, failed, law)
        return None

    def _say(self, law: Law) -> None:
        self.say(self.number, "making it smaller" if self._shrinking else law.__name__.replace("_", " "))

    def _smallest(self, broken: Broken) -> LawBroken:
        """Return the error on the smallest scenario found that breaks the same law."""
        self._shrinking = True

        def breaks(simpler: Case) -> bool:
            nonlocal broken
            if isinstance(broken.error.__cause__, Hung) or time.monotonic() > self.limit.shrink_until:
                return False  # each smaller scenario would hang as long
            try:
                found = self._broken(simpler, [law for law in self.laws if law is broken.law])
            except (UsageError, CheckerFailed):
                return False
            if found is None or found.error.law != broken.error.law:
                return False
            broken = found
            return True

        smallest(broken.case, breaks)
        broken.error.add_note(f"{broken.case}, the smallest scenario found")
        return broken.error


def check_laws(examples: int = 25, **only: str) -> str:
    """Put every technique and mix with these stages through every law: `check_laws(batching="mine")`.

    A stage that serves transformers and models of cells is put through the laws of both.

    Returns:
        A sentence that names the laws, the techniques and mixes, and the number of scenarios.

    Raises:
        LawBroken: a law is broken; the error names it, and the smallest scenario found that breaks it.
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
    derandomize: bool = False,
) -> None:
    """Observe `examples` scenarios for a row, and check the laws on each.

    Args:
        dealt: number of the only law to check among those that compare runs; None: check all of them.
    """
    compared = compared_laws(subject)
    laws = compared if dealt is None else [compared[dealt % len(compared)]]
    Search(subject, row, laws).run(examples, derandomize=derandomize)


def compared_laws(subject: Subject) -> list[Law]:
    """Return the laws that make runs of their own to compare."""
    return [law for law in laws_of(subject).values() if law is not of_one_run]

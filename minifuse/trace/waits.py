"""Derives what each request waited for: a reason for every second of waiting."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from minifuse.trace.history import Decision, History, Reasons, Wait
from minifuse.trace.why import told_by_policy

UNASKED = "not-asked", "came while an iteration ran or was chosen: nothing is decided before that has ended"
UNTOLD = "no-reason", "evicted, and no reason was given"
UNCERTAIN = ("not-in-batch", "no-reason")  # codes that only say that a request was passed over
START, ASKED, END = range(3)  # their order at one moment: a request waits until an iteration with it is chosen


class Told(NamedTuple):
    """A reason, and the time from which it holds."""

    at_s: float
    code: str
    text: str


class Segment(NamedTuple):
    """A time in which a request waited for one reason."""

    request: str
    code: str
    text: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class Piece(NamedTuple):
    """A part of a wait, and its reasons: `told[first:stop]`.

    `told` is the request's own list, or the list that all passed-over requests share.

    >>> told = [Told(0.0, "behind", "behind a"), Told(2.0, "behind", "behind b"), Told(4.0, "behind", "behind c")]
    >>> [(text, start_s, end_s) for _, _, text, start_s, end_s in Piece(1.0, 3.5, told, 0, 2).segments("d")]
    [('behind a', 1.0, 2.0), ('behind b', 2.0, 3.5)]
    """

    start_s: float
    end_s: float
    told: list[Told]
    first: int
    stop: int

    def segments(self, request: str) -> Iterator[Segment]:
        """Cut the piece into segments, one for each reason."""
        for k in range(self.first, self.stop):
            at_s, code, text = self.told[k]
            end_s = self.told[k + 1].at_s if k + 1 < self.stop else self.end_s
            start_s = max(at_s, self.start_s)
            if end_s > start_s:
                yield Segment(request, code, text, start_s, end_s)


@dataclass(slots=True)
class Waits:
    """Holds what requests waited for: the pieces of each request's waits, in order.

    `given` has the policies' own reasons, by the number of the decision. `passed` has the two lists of reasons
    that passed-over requests share: the first has `behind` and `evicting`; the second has `UNCERTAIN` ones, for
    requests that have had no other reason.
    """

    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    given: dict[int, Reasons] = field(default_factory=dict)
    passed: tuple[list[Told], list[Told]] = field(default_factory=lambda: ([], []))

    def of(self, request: str) -> Iterator[Segment]:
        """Yield the waits of a request, cut up by reasons, in order."""
        for piece in self.pieces.get(request, ()):
            yield from piece.segments(request)


@dataclass(frozen=True, slots=True)
class Waited:
    """Sums up all waiting for reasons with one code."""

    code: str
    seconds: dict[str, float]  # of each request
    sentence: str  # the longest reason of the request that waited longest

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def longest(self) -> tuple[str, float]:
        """Return the request that waited longest, and its seconds."""
        return _longest(self.seconds)


def waited_for(waits: Waits) -> list[Waited]:
    """Sum waiting by code, the longest total first."""
    found: dict[str, dict[str, float]] = {}
    sums = [_Sums(told) for told in waits.passed]
    for name, pieces in waits.pieces.items():
        for piece in pieces:
            shared = next((one for one in sums if one.told is piece.told), None) or _Sums(piece.told)
            for code, seconds in shared.between(piece):
                by_name = found.setdefault(code, {})
                by_name[name] = by_name.get(name, 0.0) + seconds
    every = [Waited(code, seconds, _sentence(waits, code, _longest(seconds)[0])) for code, seconds in found.items()]
    return sorted(every, key=lambda one: (-one.total_s, one.code))


def _longest(seconds: dict[str, float]) -> tuple[str, float]:
    return max(seconds.items(), key=lambda one: one[1])


def _sentence(waits: Waits, code: str, request: str) -> str:
    """Return the reason with this code for which a request waited longest."""
    longest = max((one for one in waits.of(request) if one.code == code), key=lambda one: one.seconds)
    return f"{request} {longest.text}"


class _Sums:
    """Holds prefix sums of seconds by code, to sum each piece in constant time."""

    def __init__(self, told: list[Told]) -> None:
        self.told = told
        self._before: dict[str, list[float]] = {code: [0.0] for code in dict.fromkeys(one.code for one in told)}
        for one, after in pairwise(told):
            for code, sums in self._before.items():
                sums.append(sums[-1] + (after.at_s - one.at_s if one.code == code else 0.0))

    def between(self, piece: Piece) -> Iterator[tuple[str, float]]:
        """Yield each code, and the seconds for which it held within a piece."""
        first, last = self.told[piece.first], self.told[piece.stop - 1]
        for code, sums in self._before.items():
            seconds = sums[piece.stop - 1] - sums[piece.first]
            seconds -= max(0.0, piece.start_s - first.at_s) * (first.code == code)
            seconds += (piece.end_s - last.at_s) * (last.code == code)
            if seconds > 0.0:
                yield code, seconds


def reasons_of_waits(history: History) -> Waits:
    """Derive what requests waited for: a reason for every second.

    A policy names the first request that it cannot admit, and stops there; for the other waiting requests, the choice
    itself is the reason (`minifuse.trace.why`). A reason holds until there is another one or the wait ends. But the
    codes of `UNCERTAIN` do not replace a reason that says more. From its arrival until the policy is next asked, a
    request has the reason `not-asked`.
    """
    reader = _Reader()
    at_once = _at_once(history)
    for at_s, kind, subject in _moments(history):
        if isinstance(subject, Decision):
            reader.ask(subject, at_once.get(at_s, set()))
        elif kind == START:
            reader.begin(*subject)
        else:
            reader.end(at_s, *subject)
    return reader.waits


class _Open(NamedTuple):
    """A wait that has not ended, and its reasons from `since_s` on: `told[first:]`."""

    wait: Wait
    since_s: float
    told: list[Told]
    first: int


class _Reader:
    """Follows the waits of a run from moment to moment.

    A decision's cost does not grow with the queue: passed-over requests share one list of reasons.
    """

    def __init__(self) -> None:
        self.waits = Waits()
        self._open: dict[str, _Open] = {}
        self._alone: set[str] = set()  # waiting requests with a reason of their own
        self._following: tuple[set[str], set[str]] = (set(), set())  # requests that share each list of `passed`
        self._unasked: set[str] = set()  # waiting requests that no decision has given a reason yet

    def begin(self, name: str, wait: Wait) -> None:
        """Begin a wait."""
        if name in self._open:  # evicted while it waited to join
            self.end(wait.start_s, name, self._open[name].wait)
        told = Told(wait.start_s, *(UNTOLD if wait.kind == "suspended" else UNASKED))
        self._open[name] = _Open(wait, wait.start_s, [told], 0)
        self._alone.add(name)
        self._unasked.add(name)

    def end(self, at_s: float, name: str, wait: Wait) -> None:
        """End a wait, unless it ended when another wait began."""
        if name in self._open and self._open[name].wait is wait:
            self._close(at_s, name)
            del self._open[name]

    def ask(self, decision: Decision, at_once: Collection[str]) -> None:
        """Give a decision's reasons to the waiting requests.

        Args:
            at_once: requests that arrived and joined at the time of the decision.
        """
        number, at_s, told, choice, joining = decision
        named = {name for _, name, _ in told if (name in self._open or name in at_once) and name not in joining}
        own = self.waits.given[number] = told_by_policy(told, choice, named)
        for code, name, text in own:
            if name in named and name in self._open and self._open[name].told[-1][1:] != (code, text):
                self._change(at_s, name, [Told(at_s, code, text)], 0)
                self._alone.add(name)
        code, text = choice.passed_over(own, named)
        which = 1 if code in UNCERTAIN else 0
        passed = self._unasked if which else self._alone | self._following[1]
        passed = passed - {name for _, name, _ in own} - joining - {*choice.evicted}
        shared, followers = self.waits.passed[which], self._following[which]
        followed = passed or len(followers) > len(followers & joining)
        if followed and (not shared or shared[-1][1:] != (code, text)):
            shared.append(Told(at_s, code, text))
        for name in sorted(passed):
            self._change(at_s, name, shared, len(shared) - 1)
            followers.add(name)

    def _change(self, at_s: float, name: str, told: list[Told], first: int) -> None:
        """Change what a request waits for."""
        self._close(at_s, name)
        self._open[name] = _Open(self._open[name].wait, at_s, told, first)

    def _close(self, at_s: float, name: str) -> None:
        """Add the piece of a request's wait that ends now."""
        _, since_s, told, first = self._open[name]
        if at_s > since_s:
            stop = max(first + 1, bisect_left(told, at_s, key=lambda one: one.at_s))
            self.waits.pieces.setdefault(name, []).append(Piece(since_s, at_s, told, first, stop))
        for names in (self._alone, self._unasked, *self._following):
            names.discard(name)


def _at_once(history: History) -> dict[float, set[str]]:
    """Return, by time, the requests that joined an iteration when they arrived."""
    found: dict[float, set[str]] = {}
    for decision in history.decisions:
        for name in decision.joining:
            if history.stories[name].arrival_s == decision.at_s:
                found.setdefault(decision.at_s, set()).add(name)
    return found


def _moments(history: History) -> list[tuple[float, int, tuple[str, Wait] | Decision]]:
    """Sort the starts and ends of waits, and the decisions."""
    moments: list[tuple[float, int, tuple[str, Wait] | Decision]] = []
    for name, story in history.stories.items():
        for wait in story.waits:
            moments += [(wait.start_s, START, (name, wait)), (wait.end_s, END, (name, wait))]
    moments += [(decision.at_s, ASKED, decision) for decision in history.decisions]
    return sorted(moments, key=lambda moment: moment[:2])

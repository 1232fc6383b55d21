"""Who waited for what, and for how long: every second that a request waited, by the code of its reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from minifuse.views.history import Decision, History

__all__ = ["Segment", "Waited", "reasons_of_waits", "waited_for"]

UNASKED = ("not-asked", "came while an iteration ran or was chosen: nothing is decided before that has ended")
SILENT = ("no-reason", "not admitted: others ran or waited, and no reason was given")
END, START, ASKED = range(3)  # at one moment, in this order: who is admitted waits no longer, and is given no reason


class Segment(NamedTuple):
    """A time for which a request waited, for one reason."""

    request: str
    code: str
    text: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(slots=True)
class Waited:
    """What requests waited for, under one code."""

    code: str
    seconds: dict[str, float] = field(default_factory=dict)  # of each request
    told: dict[str, Segment] = field(default_factory=dict)  # of each request the longest

    def add(self, segment: Segment) -> None:
        name = segment.request
        self.seconds[name] = self.seconds.get(name, 0.0) + segment.seconds
        if name not in self.told or segment.seconds > self.told[name].seconds:
            self.told[name] = segment

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def longest(self) -> tuple[str, float]:
        """The request that waited longest for it, and how long."""
        return max(self.seconds.items(), key=lambda one: one[1])

    @property
    def sentence(self) -> str:
        """A reason of that one, as the trace tells it."""
        segment = self.told[self.longest[0]]
        return f"{segment.request} {segment.text}"


@dataclass(slots=True)
class _Open:
    """A wait that has not ended, and what it is for at present."""

    since_s: float
    code: str
    text: str


def waited_for(segments: Iterable[Segment]) -> list[Waited]:
    """Every code for which requests waited, that of the longest total first."""
    found: dict[str, Waited] = {}
    for segment in segments:
        found.setdefault(segment.code, Waited(segment.code)).add(segment)
    return sorted(found.values(), key=lambda one: (-one.total_s, one.code))


def reasons_of_waits(history: History) -> list[Segment]:
    """All time for which requests waited, cut up by its reasons, in the order in which the pieces end.

    A policy names the first that it cannot admit, and stops there; the reason holds until the request is given another
    one or is admitted. Of the others that wait it is known that they were behind that one. From its arrival until
    a policy is asked for the first time, a request waits for that (`not-asked`).
    """
    found: list[Segment] = []
    waiting: dict[str, _Open] = {}
    ahead: set[str] = set()  # those that wait and are not counted as being behind another

    def close(name: str, at_s: float, reason: tuple[str, str] | None = None) -> None:
        """What a request waits for changes to a reason, or it waits no longer."""
        one = waiting[name]
        if reason is not None and reason == (one.code, one.text):
            return
        if at_s > one.since_s:
            found.append(Segment(name, one.code, one.text, one.since_s, at_s))
        if reason is None:
            del waiting[name]
            ahead.discard(name)
        else:
            waiting[name] = _Open(at_s, *reason)

    for at_s, kind, subject in _moments(history):
        if isinstance(subject, Decision):
            _ask(subject, waiting, ahead, close)
        elif kind == START:
            waiting[subject] = _Open(at_s, *UNASKED)
            ahead.add(subject)
        elif subject in waiting:
            close(subject, at_s)
    return found


def _ask(
    decision: Decision, waiting: dict[str, _Open], ahead: set[str], close: Callable[[str, float, tuple[str, str]], None]
) -> None:
    """Give those that wait the reasons of a decision."""
    given = {name: (code, text) for code, name, text in decision.reasons if name in waiting}
    for name, reason in given.items():
        close(name, decision.at_s, reason)
        ahead.add(name)
    others = ahead - given.keys()
    stopped_at = [name for name in given if name not in decision.evicted]  # what is evicted waits only from now on
    if stopped_at:
        last = stopped_at[-1]
        behind = ("behind", f"not considered: none is admitted behind {last}")
        for name in sorted(others):
            close(name, decision.at_s, behind)
        ahead -= others
    else:
        for name in sorted(others):
            if waiting[name].code == UNASKED[0]:
                close(name, decision.at_s, SILENT)


def _moments(history: History) -> Iterable[tuple[float, int, str | Decision]]:
    """When waits begin and end, and when a policy was asked, in the order in which that counts."""
    moments: list[tuple[float, int, str | Decision]] = []
    for name, story in history.stories.items():
        for wait in story.waits:
            moments += [(wait.start_s, START, name), (wait.end_s, END, name)]
    moments += [(decision.at_s, ASKED, decision) for decision in history.decisions]
    return sorted(moments, key=lambda moment: moment[:2])

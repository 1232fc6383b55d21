"""Finds the longest gaps between two tokens of a request, and what happened in each."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from minifuse.core.plan import TRANSFORMER
from minifuse.trace.history import History, Iteration, Story
from minifuse.trace.waits import Segment, Waits

EVICTING = ("evicted", "displaced")  # codes of reasons that say why a wait began


@dataclass(slots=True)
class Gap:
    """The time between two successive tokens of a request.

    In a run without tokens, it is the time between the ends of two iterations with work of the request. Five parts do
    not overlap, and add up to the gap: `own_s` in iterations with work of the request, `suspended_s` while the request
    was evicted, `ready_s` while it waited, with its prompt already computed, to join the batch, `others_s` in other
    requests' iterations, and `nothing_s` while nothing ran.
    """

    requests: list[str]  # all requests with tokens at both times; the other fields describe the first request
    index: int  # number of the later token, or iteration, from 0
    start_s: float
    end_s: float
    own_s: float = 0.0
    own: int = 0  # iterations with work of the request
    computed: int = 0  # the request's tokens in those iterations
    suspended_s: float = 0.0
    ready_s: float = 0.0
    why: list[str] = field(default_factory=list)  # reasons for being suspended, or not joining
    others_s: float = 0.0
    others: int = 0  # all iterations in the gap without work of the request
    nothing_s: float = 0.0
    prompts: dict[str, int] = field(default_factory=dict)  # prompt tokens of others computed meanwhile, by request
    moves: Counter[str] = field(default_factory=Counter)  # tokens moved in the request's own iterations, by kind
    moving_s: float = 0.0  # how long the request's own iterations waited for moves
    exposed_s: float = 0.0  # how long these waited for transfers between tiers

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


def longest_gaps(history: History, waits: Waits, most: int = 10) -> list[Gap]:
    """Return the `most` longest gaps of all requests, longest first, then earliest first.

    Args:
        waits: the result of `reasons_of_waits` for the same history.
    """
    together: dict[tuple[float, float], Gap] = {}
    for story in history.stories.values():
        for index, times in _gaps(history, story):
            if times in together:
                together[times].requests.append(story.id)
            else:
                together[times] = Gap([story.id], index, *times)
    found = heapq.nsmallest(most, together.values(), key=lambda gap: (-gap.seconds, gap.start_s))
    starts = [one.start_s for one in history.iterations]
    longest = max((one.seconds for one in history.iterations), default=0.0)
    for gap in found:
        # Iterations are sorted by start: one that began more than `longest` before the gap has ended by then.
        first = bisect_left(starts, gap.start_s - longest)
        last = bisect_left(starts, gap.end_s)
        name = gap.requests[0]
        _explain(gap, history.stories[name], history.iterations[first:last], waits.of(name))
    return found


def _gaps(history: History, story: Story) -> Iterator[tuple[int, tuple[float, float]]]:
    """Yield a request's gaps longer than 0 s, each with the later token's index."""
    if history.has_tokens:
        times = [at_s for at_s, _ in story.tokens]
    else:
        times = sorted({history.iterations[index].end_s for index in story.iterations})
    for index, (early_s, late_s) in enumerate(pairwise(times), start=1):
        if late_s > early_s:
            yield index, (early_s, late_s)


def _explain(gap: Gap, story: Story, iterations: Sequence[Iteration], reasons: Iterable[Segment]) -> None:
    """Fill in what happened in a gap."""
    own: list[tuple[float, float]] = []
    others: list[tuple[float, float]] = []
    for one in iterations:
        start_s, end_s = max(one.start_s, gap.start_s), min(one.end_s, gap.end_s)
        if not one.work or end_s <= start_s:
            continue
        computed = one.tokens_of(story.id)
        if not computed:
            others.append((start_s, end_s))
            gap.others += 1
        elif one.end_s <= gap.end_s:
            own.append((start_s, end_s))
            gap.own += 1
            gap.computed += computed
            _count_moves(gap, one)
        for name, start, stop, cell in one.work:
            if name != story.id and cell == TRANSFORMER and stop - start > 1:
                gap.prompts[name] = gap.prompts.get(name, 0) + stop - start
    waits = {
        kind: [
            (max(wait.start_s, gap.start_s), min(wait.end_s, gap.end_s))
            for wait in story.waits
            if wait.kind == kind and wait.start_s < gap.end_s and wait.end_s > gap.start_s
        ]
        for kind in ("suspended", "ready")
    }
    gap.why = _longest_reasons(gap, reasons)
    parts = [own, waits["suspended"], waits["ready"], others]
    totals = [_covered([span for part in parts[: i + 1] for span in part]) for i in range(len(parts))]
    gap.own_s = totals[0]
    gap.suspended_s, gap.ready_s, gap.others_s = (late - early for early, late in pairwise(totals))
    gap.nothing_s = max(0.0, gap.seconds - totals[-1])


def _longest_reasons(gap: Gap, reasons: Iterable[Segment]) -> list[str]:
    """Return the texts of up to two reasons why the request waited in a gap.

    Reasons for evictions come first, then the codes that held longest. Each code has the text of its longest reason.
    """
    seconds: dict[str, float] = defaultdict(float)
    texts: dict[str, tuple[float, str]] = {}
    for one in reasons:
        within_s = min(one.end_s, gap.end_s) - max(one.start_s, gap.start_s)
        if within_s > 0:
            seconds[one.code] += within_s
            texts[one.code] = max(texts.get(one.code, (0.0, "")), (within_s, one.text))
    order = [code for code in texts if code in EVICTING]
    order += sorted(texts.keys() - {*order}, key=lambda code: (-seconds[code], code))
    return [texts[code][1] for code in order[:2]]


def _count_moves(gap: Gap, one: Iteration) -> None:
    for kind, _, _, num_tokens, *_ in one.event["moves"]:
        gap.moves[kind] += num_tokens
    wall = one.event["wall"]
    gap.moving_s += wall.get("moving_s", 0.0)
    gap.exposed_s += wall.get("transfers", {}).get("exposed_s", 0.0)


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the time that the spans cover; overlaps count once.

    >>> _covered([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, until_s = 0.0, float("-inf")
    for start_s, end_s in sorted(spans):
        total += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return total

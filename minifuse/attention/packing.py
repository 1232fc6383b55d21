"""Packs the work of a wave into lanes of one or more pieces (FluidInfer, 4.2)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heapify, heapreplace
from operator import itemgetter
from typing import NamedTuple

from minifuse.core.plan import Plan, Span

Lanes = tuple[tuple[int, ...], ...]  # per lane, the indices of its pieces of work, in order


def seconds_of(num_queries: int, num_context: int, *, hidden_size: int, flops: float, bandwidth: float) -> float:
    """Estimate a piece's attention time in a layer: the longer of arithmetic and reading.

    The paper (4.1) counts 4 L^2 H operations for a prompt of L tokens, which is compute-bound, and 4 x H + 8 x + 4 H
    bytes for a single token after x others, which is memory-bound. Here L queries attend to x tokens, themselves
    included: 4 L x H operations, and 4 x H + L (8 x + 4 H) bytes. The longer of the two times counts, because a few
    queries at the end of a long context, or a very short prompt, are memory-bound, too.

    Args:
        num_queries: L.
        num_context: x; for a whole prompt, x = L.
        hidden_size: H.
        flops: operations per second.
        bandwidth: bytes per second.

    >>> f"{seconds_of(1000, 1000, hidden_size=4096, flops=165e12, bandwidth=1.008e12) * 1e6:.0f} us"  # of an RTX 4090
    '99 us'
    >>> f"{seconds_of(1, 1000, hidden_size=4096, flops=165e12, bandwidth=1.008e12) * 1e6:.0f} us"
    '16 us'
    """
    arithmetic = 4 * num_queries * num_context * hidden_size / flops
    moved = 4 * num_context * hidden_size + num_queries * (8 * num_context + 4 * hidden_size)
    return max(arithmetic, moved / bandwidth)


def pack(seconds: Sequence[float], most: int | None = None) -> Lanes:
    """Divide pieces of work among lanes, greedily (4.2), with O(n log n) comparisons.

    No lane may be longer than the longest piece. The longest piece left opens a lane. Then the longest piece that still
    fits is added to this lane, until no piece fits, and the next lane is opened. Among equal pieces, the first is
    taken. This is first-fit decreasing for bins of the size of the longest piece: it needs at most 11/9 of the minimum
    number of lanes, plus 6/9 (Dosa, 2007).

    >>> # Figure 9b: 1 and 4 are prompts of 5 tokens, 2 is a prompt of 2, and 3, 5, 6 are single tokens. Here from 0:
    >>> pack([25, 4, 1, 25, 1, 1])
    ((0,), (3,), (1, 2, 4, 5))

    Args:
        seconds: the duration of each piece, in the order of arrival. Because of rounding, a lane of very many pieces
            may be a little longer than the longest piece.
        most: the maximum number of lanes, or None for no maximum. Pieces left over go, longest first, to the lane that
            ends first. Such lanes may be longer than the longest piece.

    Raises:
        ValueError: `most` is less than 1.
    """
    if most is not None and most < 1:
        raise ValueError(f"work cannot be packed into {most} lanes: give at least 1, or None")
    left = sorted(range(len(seconds) - 1, -1, -1), key=lambda piece: seconds[piece])  # of equals, the first is last
    lengths = [seconds[piece] for piece in left]
    longest = lengths[-1] if lengths else 0.0
    lanes: list[list[int]] = []
    ends: list[float] = []
    while left and len(lanes) != most:
        lane, end = list[int](), 0.0
        while place := bisect_right(lengths, longest - end):
            lane.append(left.pop(place - 1))
            end += lengths.pop(place - 1)
        lanes.append(lane)
        ends.append(end)
    heap = [(end, number) for number, end in enumerate(ends)]
    heapify(heap)
    for piece in reversed(left):
        end, number = heap[0]
        lanes[number].append(piece)
        heapreplace(heap, (end + seconds[piece], number))
    return tuple(map(tuple, lanes))


def lanes_of(plan: Plan, wave: Span) -> Sequence[Sequence[int]]:
    """Return a wave's lanes, as indices of work. The default is one lane per piece.

    >>> # waves [0, 3), [3, 5), lanes (1,), (0, 2), (4, 3): the second wave has the lane (4, 3)
    """
    lanes = plan.layout.lanes
    if not lanes:
        return [(index,) for index in range(*wave)]
    first, last = (bisect_left(lanes, end, key=itemgetter(0)) for end in wave)  # lanes lie in the order of the waves
    return lanes[first:last]


class Bubbles(NamedTuple):
    """The seconds that lanes are idle until the longest lane ends, by cause (4.2)."""

    busy_s: float  # of all lanes together
    prompts_s: float  # type A: a lane with a prompt ends before the longest
    tokens_s: float  # type B: a lane of single tokens ends before one with a prompt
    others_s: float  # no lane has a prompt, but contexts differ: "less significant"

    @property
    def idle(self) -> float:
        """Return the idle fraction of the time of all lanes."""
        idle_s = self.prompts_s + self.tokens_s + self.others_s
        return idle_s / (self.busy_s + idle_s) if idle_s else 0.0

    def __add__(self, other: tuple[float, ...]) -> Bubbles:  # type: ignore[override]  # of two waves, not of tuples
        return Bubbles(*(a + b for a, b in zip(self, other, strict=True)))


def bubbles_of(seconds: Sequence[float], prompts: Sequence[bool], lanes: Lanes) -> Bubbles:
    """Count the bubbles of lanes, from estimated or measured seconds of the pieces.

    Args:
        prompts: whether each piece computes several tokens.

    >>> # Figure 9a: one lane each for a prompt of 5 tokens, a prompt of 2, and a single token
    >>> bubbles_of([25, 4, 1], [True, True, False], ((0,), (1,), (2,)))
    Bubbles(busy_s=30, prompts_s=21, tokens_s=24, others_s=0)
    """
    ends = [sum([seconds[piece] for piece in lane]) for lane in lanes]
    longest = max(ends, default=0)
    with_prompt = [any(prompts[piece] for piece in lane) for lane in lanes]
    idle: dict[str, float] = dict.fromkeys(("prompts_s", "tokens_s", "others_s"), 0)
    for end, has_prompt in zip(ends, with_prompt, strict=True):
        kind = "prompts_s" if has_prompt else "tokens_s" if any(with_prompt) else "others_s"
        idle[kind] += longest - end
    return Bubbles(sum(ends), **idle)

"""Sizes what an iteration attends beyond the device, by simulating iterations (FluidInfer)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from minifuse.core.places import Pages
from minifuse.core.plan import Layout, Move, Plan, Span, Work
from minifuse.execute.link import Link

CONTEXT, MOST = 256, 128  # tokens of each sequence in the simulated iterations, or more if these exceed `MOST`
SHARES = tuple(2 ** (number / 2) for number in range(-8, 7))  # of the device's KV: from a 16th to 8 times
BETWEEN = (2**-0.25, 2**0.25)  # two more shares beside the best


class OnHost(NamedTuple):
    """How many KV tokens the host attends in an iteration, and in how many passes."""

    tokens: int
    passes: int = 1


class Sized(NamedTuple):
    """Describes what a host attends.

    Attributes:
        tokens: KV tokens with which tokens per second are the most, the device being full of KV.
        split: KV tokens from which on two passes are faster than one; None: never.
    """

    tokens: int
    split: int | None


def on_host(cost: Callable[[Plan], float], link: Link, capacity: int) -> Sized:
    """Find what the host attends beside a device that has KV of `capacity` tokens."""
    seconds: dict[OnHost, float] = {}

    def best() -> OnHost:
        return max(seconds, key=lambda one: (capacity + one.tokens) / seconds[one])

    def simulate(shares: Iterable[float]) -> None:
        for share in shares:
            for passes in (1, 2):
                one = OnHost(max(1, round(share * capacity)), passes)
                seconds[one] = _seconds(cost, link, capacity, one)

    simulate(SHARES)
    simulate([share * best().tokens / capacity for share in BETWEEN])
    faster = [count for count, passes in seconds if passes == 2 and seconds[OnHost(count, 2)] < seconds[OnHost(count)]]
    return Sized(best().tokens, min(faster, default=None))


def through_the_link(cost: Callable[[Plan], float], link: Link, capacity: int) -> int:
    """Count the KV tokens that the link uploads during an iteration of a full device."""
    seconds = cost(_iteration(capacity, OnHost(0)))
    uploading_s = link.seconds([Move("upload", 0, 0, capacity, "host")])
    return int(capacity * seconds / uploading_s) if uploading_s else 0


def _seconds(cost: Callable[[Plan], float], link: Link, capacity: int, beyond: OnHost) -> float:
    """Return how long an iteration takes in which the host attends `beyond`."""
    plan = _iteration(capacity, beyond)
    seconds = cost(plan)
    return seconds + link.run(plan, seconds, 0.0).awaited_s


def _iteration(capacity: int, beyond: OnHost) -> Plan:
    """Return a plan of single tokens, with contexts that fill the device and `beyond`."""
    context = max(CONTEXT, -(-capacity // MOST))
    here, there = _lengths(capacity, context), _lengths(beyond.tokens, context)
    work = tuple([Work(f"s{i}", length - 1, length) for i, length in enumerate((*here, *there))])
    places = tuple([Pages((0,), context, "device" if i < len(here) else "host") for i in range(len(work))])
    cut = len(here) + (len(there) + 1) // 2
    ends = sorted({len(here), len(work)} | ({cut} if beyond.passes == 2 else set()))
    waves = tuple(map(Span, [0, *ends[:-1]], ends))
    passes = (Span(0, cut), Span(cut, len(work))) if beyond.passes == 2 and cut < len(work) else ()
    return Plan(0, 0, work, places, layout=Layout(waves, passes=passes))


def _lengths(tokens: int, context: int) -> list[int]:
    """Divide tokens into sequences of equal contexts; the last may be shorter.

    >>> _lengths(10, 4)
    [4, 4, 2]
    """
    whole, rest = divmod(tokens, context)
    return [context] * whole + [rest] * bool(rest)

"""Finds how much KV beyond the device can be attended in an iteration, by simulating iterations (FluidInfer)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from minifuse.core.places import Pages
from minifuse.core.plan import Layout, Move, Plan, Span, Work
from minifuse.execute.link import Link

CONTEXT = 256  # tokens of each sequence in the simulated iterations
SHARES = tuple(2 ** (number / 4) for number in range(-20, 25))  # of the device's KV: from a 32nd to 64 times


class OnHost(NamedTuple):
    """How many KV tokens the host attends in an iteration, and in how many passes."""

    tokens: int
    passes: int = 1


class Sized(NamedTuple):
    """What a host attends.

    Attributes:
        tokens: KV tokens with which tokens per second are the most, the device being full of KV.
        split: KV tokens from which on two passes are faster than one; None: never.
    """

    tokens: int
    split: int | None


def on_host(cost: Callable[[Plan], float], link: Link, capacity: int) -> Sized:
    """Find what the host attends beside a device that has KV of `capacity` tokens."""
    counts = sorted({max(1, round(share * capacity)) for share in SHARES})
    seconds = {
        one: _seconds(cost, link, capacity, one) for count in counts for one in (OnHost(count), OnHost(count, 2))
    }
    best = max(seconds, key=lambda one: (capacity + one.tokens) / seconds[one])
    faster = (count for count in counts if seconds[OnHost(count, 2)] < seconds[OnHost(count)])
    return Sized(best.tokens, next(faster, None))


def through_the_link(cost: Callable[[Plan], float], link: Link, capacity: int) -> int:
    """Count the KV tokens that the link uploads during an iteration with a device full of KV."""
    seconds = cost(_iteration(capacity, OnHost(0)))
    uploading_s = link.seconds([Move("upload", 0, 0, capacity, "host")])
    return int(capacity * seconds / uploading_s) if uploading_s else 0


def _seconds(cost: Callable[[Plan], float], link: Link, capacity: int, beyond: OnHost) -> float:
    """Return how long an iteration takes in which the host attends `beyond`."""
    plan = _iteration(capacity, beyond)
    seconds = cost(plan)
    return seconds + link.run(plan, seconds, 0.0).awaited_s


def _iteration(capacity: int, beyond: OnHost) -> Plan:
    """Return a plan of single tokens; sequences of `CONTEXT` tokens fill the device, the host has others."""
    here, there = _lengths(capacity), _lengths(beyond.tokens)
    work = tuple([Work(f"s{i}", length - 1, length) for i, length in enumerate((*here, *there))])
    places = tuple([Pages((0,), CONTEXT, "device" if i < len(here) else "host") for i in range(len(work))])
    cut = len(here) + (len(there) + 1) // 2
    ends = sorted({len(here), len(work)} | ({cut} if beyond.passes == 2 else set()))
    waves = tuple(map(Span, [0, *ends[:-1]], ends))
    passes = (Span(0, cut), Span(cut, len(work))) if beyond.passes == 2 and cut < len(work) else ()
    return Plan(0, 0, work, places, layout=Layout(waves, passes=passes))


def _lengths(tokens: int) -> list[int]:
    """Divide tokens into sequences of `CONTEXT` tokens; the last may be shorter."""
    whole, rest = divmod(tokens, CONTEXT)
    return [CONTEXT] * whole + [rest] * bool(rest)

"""Outcomes of Flover's runs, against counts made without the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from helpers import asks, make_engine, run_all
from hypothesis import given
from hypothesis import strategies as st

from minifuse.core.plan import Plan
from minifuse.core.report import StepReport
from minifuse.core.request import Phase, Request
from minifuse.papers.contest import Raced
from minifuse.papers.flover.outcome import observe

Count = tuple[int, float, float]  # iterations of the main stream, mean number of running requests, end of the last


def iterate(ready: list[float], tokens: list[int]) -> Count:
    """Unit-time iterations: a request joins at the first boundary after it is ready, and takes exactly its tokens."""
    left, running, now = list(tokens), [], 0.0
    while any(left):
        fused = [i for i, n in enumerate(left) if n and ready[i] <= now]
        if not fused:
            now = min(ready[i] for i, n in enumerate(left) if n)
            continue
        running.append(len(fused))
        now += 1
        for i in fused:
            left[i] -= 1
    return len(running), sum(running) / len(running), now


def beside(arrivals: list[float], tokens: list[int], seconds: float) -> Count:
    """One worker prepares a request at a time beside the main stream, first come, first served."""
    ready, free = [], 0.0
    for arrival in arrivals:
        free = max(free, arrival) + seconds
        ready.append(free)
    return iterate(ready, tokens)


def between(arrivals: list[float], tokens: list[int], seconds: float) -> Count:
    """The main stream itself prepares all requests that have arrived, then runs an iteration."""
    left, prepared, running, now = list(tokens), set[int](), [], 0.0
    while any(left):
        new = {i for i, arrival in enumerate(arrivals) if arrival <= now} - prepared
        if new:
            prepared |= new
            now += seconds
        fused = [i for i in prepared if left[i]]
        if fused:
            running.append(len(fused))
            now += 1
            for i in fused:
                left[i] -= 1
        else:
            now = min(arrival for arrival in arrivals if arrival > now)
    return len(running), sum(running) / len(running), now


def served(requests: list[Request], preprocess: str, seconds: float = 0.5, **settings: Any) -> list[StepReport]:
    """Fusion with iterations of one second, and so many for what it pre-processes at once."""

    def cost(plan: Plan) -> float:
        return seconds if plan.phase is Phase.PREPROCESSING else 1.0

    options = {"batching.preprocess": preprocess, "memory.slots": len(requests), **settings}
    return run_all(make_engine("fusion", capacity=20 * len(requests), settings=options, cost=cost), requests)


QUARTERS = st.integers(0, 16).map(lambda n: n / 4)


@given(
    gaps=st.lists(QUARTERS, min_size=1, max_size=8),
    tokens=st.lists(st.integers(1, 12), min_size=8, max_size=8),
    seconds=st.sampled_from([0.25, 0.5, 1.0, 2.75]),
    where=st.sampled_from([("worker", beside), ("inline", between)]),
)
def test_iterations_and_overlap_are_those_counted_by_hand(
    gaps: list[float], tokens: list[int], seconds: float, where: tuple[str, Callable[..., Count]]
) -> None:
    arrivals = list(accumulate(gaps))
    tokens = tokens[: len(arrivals)]
    requests = [
        asks(f"r{i}", new=n, at=at, ignore_eos=True) for i, (at, n) in enumerate(zip(arrivals, tokens, strict=True))
    ]
    found = observe(requests, served(requests, where[0], seconds))
    iterations, running, end = where[1](arrivals, tokens, seconds)
    assert found.iterations == iterations
    assert found.overlap == pytest.approx(running / len(requests))
    assert found.latency_s == end - arrivals[0]
    assert found.iteration_s == 1.0


def test_the_prompts_of_one_request_count_as_one() -> None:
    requests = [*(asks(f"a{i}", new=2, group="a") for i in range(3)), asks("b", new=4)]
    found = observe(requests, served(requests, "inline"))
    assert found.overlap == (2 + 2 + 1 + 1) / 4 / 2  # two requests for two iterations, one for two more


def test_only_the_main_streams_iterations_count() -> None:
    requests = [asks("a", new=3), asks("b", new=5)]
    engine = make_engine("instances", settings={"batching.instances": 2})
    found = observe(requests, run_all(engine, requests))
    assert (found.iterations, found.latency_s) == (3, 5.0)


def test_idle_tokens_and_moves_are_counted() -> None:
    requests = [asks(f"r{i}", new=new, ignore_eos=True) for i, new in enumerate((6, 2, 6))]
    off = observe(requests, served(requests, "inline", **{"memory.shuffle": False}))
    on = observe(requests, served(requests, "inline", **{"memory.shuffle": True}))
    # The middle one leaves after two iterations: without shuffle its slot is computed in the four that remain.
    assert (off.idle_tokens, off.num_moves) == (4, 0)
    assert off.idle_share == 4 / (3 + 2 * 3 + 4 * 3)  # three contexts of a token, and six iterations of three rows
    assert (on.idle_tokens, on.num_moves) == (0, 1)
    assert on.moved_tokens == 3  # the context, and the first two tokens that were fed back
    assert on.iterations == off.iterations == 6


def test_the_run_with_the_median_latency_counts_of_an_even_number_the_lower() -> None:
    requests = [asks("r0")]
    one = observe(requests, served(requests, "inline"))
    for latencies, middle in (((5.0, 1.0, 3.0), 3.0), ((4.0, 2.0), 2.0)):
        runs = [replace(one, latency_s=latency) for latency in latencies]
        found = Raced.of(runs, lambda run: run.latency_s)
        assert (found.run.latency_s, found.rounds_s) == (middle, latencies)

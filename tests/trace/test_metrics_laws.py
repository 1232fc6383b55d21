"""Metrics of random traces: sums that must agree, and latencies against brute force."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from events import request, step
from hypothesis import given
from hypothesis import strategies as st

from minifuse.trace.lives import Spans
from minifuse.trace.log import Event
from minifuse.trace.metrics import compute_metrics
from minifuse.trace.tally import percentile


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_percentile_agrees_with_numpy(values: list[float], percent: float) -> None:
    values.sort()
    got = percentile(values, percent)
    assert values[0] <= got <= values[-1]
    assert got == pytest.approx(float(np.percentile(values, percent)), rel=1e-9, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=12))
def test_spans_against_the_plainest_books(spans: list[tuple[int, int]]) -> None:
    """A byte for each token."""
    computed, plain = Spans(), bytearray(40)
    for start, length in spans:
        stop = start + length
        assert computed.add(start, stop) == sum(plain[start:stop])
        plain[start:stop] = b"\1" * length
        bounds = computed.bounds
        assert bounds == sorted(set(bounds)), "spans are apart"
        inside = {i for a, b in zip(bounds[::2], bounds[1::2], strict=True) for i in range(a, b)}
        assert inside == {i for i, one in enumerate(plain) if one}


def random_trace(seed: int) -> list[Event]:
    """Requests served in random batches, some steps overlapping as on several workers, some requests unfinished."""
    rng = random.Random(seed)
    events: list[Event] = [{"event": "run", "kv_bytes_per_token": 3}]
    left = {f"r{i}": rng.randint(1, 5) for i in range(rng.randint(1, 5))}
    length = {name: rng.randint(1, 6) for name in left}
    events += [request(name, rng.random() / 2, length[name]) for name in left]
    done = dict.fromkeys(left, 0)
    now = 1.0
    for _ in range(rng.randint(0, 12)):
        chosen = [name for name in left if rng.random() < 0.6]
        work: list[list[Any]] = []
        for name in chosen:
            work.append([name, rng.choice((0, done[name])) if done[name] else 0, length[name]])
            done[name], length[name], left[name] = length[name], length[name] + 1, left[name] - 1
        ended = {name: rng.choice(("stop", "length")) for name in chosen if not left[name]}
        left = {name: count for name, count in left.items() if count}
        start, now = now - rng.random() / 10, now + rng.random()
        used = rng.randint(0, 50)
        events.append(step(start, now, work, {name: [1] for name in chosen}, finished=ended, idle=rng.randint(0, 3),
                           kv=[used, used + rng.randint(0, 50), 100, 0]))  # fmt: skip
    return events


@given(st.integers(0, 10_000))
def test_sums_agree(seed: int) -> None:
    events = random_trace(seed)
    metrics = compute_metrics(events, {"e2e": 1e9})
    steps = [event for event in events if event["event"] == "step"]
    tokens, requests, kv = metrics["tokens"], metrics["requests"], metrics["kv"]
    assert tokens["computed"] == tokens["prefill"] + tokens["decode"] + tokens["idle"]
    distinct = {(name, token) for s in steps for name, start, stop in s["work"] for token in range(start, stop)}
    assert tokens["recomputed"] == tokens["prefill"] + tokens["decode"] - len(distinct)
    assert tokens["output"] == sum(len(produced) for s in steps for produced in s["tokens"].values())
    assert requests["total"] == sum(event["event"] == "request" for event in events)
    finished = requests["stop"] + requests["length"]
    assert requests["total"] == finished + requests["interrupted"]
    assert metrics["goodput"]["requests"] == finished
    if finished:
        parts = metrics["queueing_s"]["mean"] + metrics["computing_s"]["mean"]
        assert parts == pytest.approx(metrics["e2e_s"]["mean"])
        assert metrics["ttft_s"]["max"] <= metrics["e2e_s"]["max"]
        assert metrics["latency_bound_s"] == (metrics["itl_s"]["max"] if metrics["itl_s"] else None)
    for found in metrics.values():
        if isinstance(found, dict) and "p50" in found:
            assert found["p50"] <= found["p90"] <= found["p99"] <= found["max"]
            assert found["mean"] <= found["max"] * (1 + 1e-12)
    if steps:
        assert kv["mean_used_tokens"] <= kv["peak_used_tokens"] * (1 + 1e-12)
        assert kv["peak_used_bytes"] == 3 * kv["peak_used_tokens"]
        assert kv["peak_used_tokens"] <= kv["peak_reserved_tokens"] <= kv["capacity_tokens"]


@given(st.integers(0, 10_000))
def test_latencies_against_brute_force(seed: int) -> None:
    events = random_trace(seed)
    metrics = compute_metrics(events)
    gaps, tpots = [], []
    for event in events:
        if event["event"] == "request":
            mine = [e for e in events if e["event"] == "step" and event["id"] in e["tokens"]]
            if mine and event["id"] in mine[-1]["finished"]:
                times = [e["wall"]["end_s"] for e in mine]
                gaps += [late - early for early, late in pairwise(times)]
                tpots += [(times[-1] - times[0]) / (len(times) - 1)] if len(times) > 1 else []
    assert (metrics["itl_s"] or {"mean": math.nan})["mean"] == pytest.approx(
        sum(gaps) / len(gaps) if gaps else math.nan, nan_ok=True
    )
    assert (metrics["tpot_s"] or {"p50": math.nan})["p50"] == pytest.approx(
        float(np.median(tpots)) if tpots else math.nan, nan_ok=True
    )


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), max_size=9))
def test_overtaking_against_brute_force(drawn: list[tuple[int, int, int, int]]) -> None:
    """Requests that wait after their arrival, and once more after an eviction; of some the first wait never ends."""
    waits: dict[str, list[tuple[float, float]]] = {}
    began: dict[str, float] = {}
    events: list[Event] = [{"event": "run"}]
    for i, (arrival, wait, ran, away) in enumerate(drawn):
        name = f"r{i}"
        events.append(request(name, arrival, 1))
        waits[name] = [(arrival, math.inf if wait == 6 else arrival + wait)]
        if wait < 6:
            began[name] = arrival + wait
            events.append(step(began[name], 99, [], {}, admitted=[name]))
            if ran:
                waits[name].append((began[name] + ran, began[name] + ran + away))
                events.append(step(began[name] + ran, 99, [], {}) | {"evicted": [name]})
                events.append(step(began[name] + ran + away, 99, [], {}, admitted=[name]))
    plain = [
        sum(
            drawn[int(other[1:])][0] > drawn[int(name[1:])][0] and any(start <= at_s < stop for start, stop in spans)
            for other, at_s in began.items()
        )
        for name, spans in waits.items()
    ]
    assert compute_metrics(events)["most_overtaken"] == max(plain, default=0)

"""Pensieve's Figure 3.17 (section 3.6.6): attention of a few query tokens over past KV that lies in blocks."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from math import log
from statistics import linear_regression
from typing import Any

from minifuse.reproduce.experiment import Column, Experiment, Finding, Panel, Point, Say, Value
from minifuse.reproduce.pensieve.setting import BATCH, Setting

PAST = Column("past\ntokens", "at", "past_tokens", "{:,}")
IDEAL = Column("ideal\nms", "measured", "ideal_ms")
INDEX = Column("index\nms", "measured", "ours_index_ms")
NAMES = {"ours": "ours", "copied": "copying out", "rounds": "rounds"}


def _columns(first: Column, paper: bool = False) -> tuple[Column, ...]:
    columns = [first, IDEAL]
    for name, head in (("ours", "ours"), ("copied", "copy-out"), ("rounds", "rounds")):
        columns.append(Column(f"{head}\nms", "measured", f"{name}_ms"))
        if paper:
            columns.append(Column(f"{head}\npaper", "paper", name, "{}x"))
        columns.append(Column(f"{head}\nhere", "measured", name, "{:.2f}x"))
    return *columns, INDEX


def draw(setting: Setting, say: Say) -> Finding:
    """The paper's equal contexts; uneven ones, and other numbers of query tokens, which the paper does not show."""
    scale, tokens = setting.scale, setting.tokens
    equal: list[Point] = []
    uneven: list[Point] = []
    varied: list[Point] = []
    counts = (tokens // 2, tokens, 2 * tokens)

    def measure(points: list[Point], at: Mapping[str, Value], count: int, pasts: Sequence[int]) -> None:
        points.append(setting.point(at, count, pasts, paper=points is equal))
        for panel in panels():
            if panel.points:
                say.keep(panel)

    def panels() -> tuple[Panel, ...]:
        queries = Column("query\ntokens", "at", "tokens", "{}")
        return (
            Panel(f"Fig. 3.17: {BATCH} requests of {tokens} query tokens", _columns(PAST, paper=True), tuple(equal)),
            Panel("Not in the paper: uneven contexts of the same mean", _columns(PAST), tuple(uneven)),
            Panel(
                f"Not in the paper: other numbers of query tokens, {scale.queries_at:,} past tokens",
                _columns(queries),
                tuple(varied),
            ),
        )

    say.expect(len(scale.pasts) + len(scale.uneven) + len(counts))
    for past in scale.pasts:
        say(f"{past} past tokens")
        measure(equal, {"past_tokens": past}, tokens, [past] * BATCH)
    for mean in scale.uneven:
        pasts = spread(mean, BATCH, setting.conditions.seed)
        say(f"{min(pasts)} to {max(pasts)} past tokens")
        measure(uneven, {"past_tokens": mean, "shortest": min(pasts), "longest": max(pasts)}, tokens, pasts)
    for count in counts:
        say(f"{count} query tokens")
        measure(varied, {"past_tokens": scale.queries_at, "tokens": count}, count, [scale.queries_at] * BATCH)
    slopes = {
        "copied": slope([(p.at["past_tokens"], _extra(p)) for p in equal]),
        "rounds": slope([(p.at["tokens"], p.measured["rounds_ms"]) for p in varied]),
    }
    facts = {**setting.facts(), "copied_exponent": slopes["copied"], "rounds_exponent": slopes["rounds"]}
    return Finding(facts, panels(), notes(facts, slopes, equal, (*uneven, *varied)))


def _extra(point: Point) -> float:
    """Milliseconds that copying adds to the ideal."""
    copied, ideal = point.measured["copied_ms"], point.measured["ideal_ms"]
    assert isinstance(copied, float)
    assert isinstance(ideal, float)
    return copied - ideal


def spread(mean: int, count: int, seed: int) -> list[int]:
    """Lengths between a quarter and seven quarters of `mean`, in pairs about it, so that it is their mean.

    >>> sum(spread(100, 32, 0))
    3200
    """
    rng = random.Random(f"pensieve lengths {seed}")
    off = [rng.randint(0, 3 * mean // 4) for _ in range(count // 2)]
    lengths = [*(mean - n for n in off), *(mean + n for n in off)]
    rng.shuffle(lengths)
    return lengths


def slope(points: Sequence[tuple[Any, Any]]) -> float | None:
    """The exponent p of the power law y = c x^p that fits best; None without two points to tell.

    >>> slope([(1, 3.0), (2, 6.0), (4, 12.0)])  # proportional
    1.0
    """
    positive = [(log(x), log(y)) for x, y in points if y > 0]
    if len({x for x, _ in positive}) < 2:
        return None
    return linear_regression(*zip(*positive, strict=True)).slope


def notes(
    facts: Mapping[str, Any], slopes: Mapping[str, float | None], equal: Sequence[Point], others: Sequence[Point]
) -> tuple[str, ...]:
    """How it was measured, what the paper says, and what was found."""
    gpu = facts["device"] == "cuda"
    ways = " or ".join(f'"{name}"' for name in dict.fromkeys(point.measured["fused"] for point in (*equal, *others)))
    where = "a GPU, whose own time is given, launches left out" if gpu else "a CPU"
    ours = (
        "Ours is the Triton kernel for many query tokens, rounds call the one for single tokens"
        if gpu
        else "On a CPU ours, and each of the rounds, is made of torch's operators, which gather KV a cacheful at a "
        "time, as there is no kernel that reads it in place"
    )
    return (
        f"One layer's attention with the heads of {facts['model']} ({facts['num_heads']} of {facts['head_dim']}, "
        f"{facts['num_kv_heads']} KV heads) in {facts['dtype']}, on {where}; medians of {facts['rounds']} rounds, in "
        f"which the contenders take turns. KV lies in blocks in a random order.",
        'The paper\'s text gives no numbers for its bars, only their order: "<1x" stands for "slightly better '
        'performance than the ideal", ">1x" for "significant overhead compared to the ideal". Paper and here: times '
        "the ideal's time.",
        f"{ours}. The ideal is the fastest of torch's fused attentions here, on KV that is contiguous already: {ways}. "
        "Copy-out copies the contexts into contiguous memory, then does the same. Rounds attend one query token of "
        "every request at a time. Each was checked against float64 before it was timed.",
        f"Index: what ours builds from the block tables once an iteration, on the CPU, for all {facts['num_layers']} "
        "layers. It is not in the other times, which are those of one layer; nor are the masks, offsets and slots of "
        "the other three contenders, which are built once too.",
        f"What copying adds to the ideal grows with the past tokens to the power {_power(slopes['copied'])} (paper: "
        f"proportional, 1), and the time of the rounds with the query tokens to the power {_power(slopes['rounds'])} "
        "(paper: linear, 1).",
        _judged(equal),
        "Uneven contexts lie between a quarter and seven quarters of their mean.",
    )


def _power(exponent: float | None) -> str:
    return "(too few points to tell)" if exponent is None else f"{exponent:.2f}"


def _judged(points: Sequence[Point]) -> str:
    """Where the order of the bars is not the paper's: ours, the ideal, then copying out and rounds."""
    missed = []
    for name, wants in (("ours", "slower"), ("copied", "faster"), ("rounds", "faster")):
        off = [point for point in points if (_times(point, name) > 1) == (wants == "slower")]
        if off:
            at = ", ".join(f"{point.at['past_tokens']:,} ({_times(point, name):.2f}x)" for point in off)
            missed.append(f"{NAMES[name]} {'are' if name == 'rounds' else 'is'} {wants} than the ideal at {at}")
    worse = [point for point in points if _times(point, "ours") > min(_times(point, n) for n in ("copied", "rounds"))]
    if worse:
        at = ", ".join(f"{point.at['past_tokens']:,}" for point in worse)
        missed.append(f"ours is slower than copying out or rounds at {at}")
    return (
        f"Not as in the paper: {'; '.join(missed)}." if missed else "The order of the bars is the paper's everywhere."
    )


def _times(point: Point, name: str) -> float:
    times = point.measured[name]
    assert isinstance(times, float)
    return times


EXPERIMENT = Experiment(
    "Pensieve",
    "3.17",
    "attention of 8 query tokens over past KV in blocks, against copying it out, rounds and contiguous KV",
    lambda conditions: partial(draw, Setting(conditions)),
)

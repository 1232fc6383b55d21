"""The sentences below Pensieve's Figure 3.17: what the contenders are here, and where the paper's shape was missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minifuse.reproduce.experiment import Point

__all__ = ["notes"]

NAMES = {"ours": "ours", "copied": "copying out", "rounds": "rounds"}


def notes(
    facts: Mapping[str, Any], slopes: Mapping[str, float | None], equal: Sequence[Point], others: Sequence[Point]
) -> tuple[str, ...]:
    """What was measured how, what the paper says, what was found."""
    gpu = facts["device"] == "cuda"
    ways = " or ".join(f'"{name}"' for name in dict.fromkeys(point.measured["fused"] for point in (*equal, *others)))
    where = "a GPU, whose own time is told, launches left out" if gpu else "a CPU"
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
        "every request at a time. Each was found to compute what float64 does before it was timed.",
        f"Index: what ours makes of the block tables once an iteration, on the CPU, for all {facts['num_layers']} "
        "layers. It is not in the other times, which are those of one layer; nor are the masks, offsets and slots of "
        "the other three, which are made once too.",
        f"What copying adds to the ideal grows with the past tokens to the power {_power(slopes['copied'])} (paper: "
        f"proportional, 1), and the time of the rounds with the query tokens to the power {_power(slopes['rounds'])} "
        "(paper: linear, 1).",
        _judged(equal),
        "Uneven contexts lie between a quarter and seven quarters of their mean.",
    )


def _power(exponent: float | None) -> str:
    return "(too few points to tell)" if exponent is None else f"{exponent:.2f}"


def _judged(points: Sequence[Point]) -> str:
    """Where the order of the bars is not the paper's: ours before the ideal, and that before the other two."""
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

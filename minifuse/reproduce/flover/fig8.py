"""Flover's Figure 8: requests that arrive as a Poisson process, their overlap, the iterations, and the speed-up."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import minifuse.reproduce.flover.paper as paper
from minifuse.reproduce.experiment import Column, Conditions, Experiment, Finding, Panel, Point, Run, Say, beside
from minifuse.reproduce.flover.setting import FUSION, INSTANCES, SPEEDUP, Setting
from minifuse.reproduce.verdict import against_paper
from minifuse.workload.laws import Arrival

REQUESTS = 32
# By scale, in the paper's milliseconds.
INTERVALS = {"quick": (20, 200, 1000), "cpu": paper.INTERVALS_8, "paper": paper.INTERVALS_8}
RACED = {**INTERVALS, "cpu": (*paper.SPEEDUP_8, 1000, 5000)}  # where instances run too
TOKENS = {"quick": 16, "cpu": 64, "paper": paper.TOKENS}

COLUMNS = (
    Column("interval\nms", "at", "interval_ms", "{}"),
    *beside("overlap", "overlap", "{:.1%}"),
    *beside("iter.", "iterations", "{:,}"),
    *beside("/token", "iterations_per_token", "{:.2f}"),
    *(FUSION, INSTANCES, *SPEEDUP),
)


def draw(setting: Setting, say: Say) -> Finding:
    """Overlap, iterations and speed-up of 32 requests that arrive as a Poisson process."""
    setting.start(say)
    scale = setting.conditions.scale
    points: list[Point] = []
    say.expect(len(INTERVALS[scale]))
    for interval in INTERVALS[scale]:
        say(f"Poisson, {interval} ms on average, {REQUESTS} requests")
        arrivals = Arrival(setting.seconds(interval), cv=1.0).times(REQUESTS, setting.rng("arrivals"))
        outcomes, values = setting.race(arrivals, first=len(points), instances=interval in RACED[scale])
        fused, iterations = outcomes["fusion"], paper.ITERATIONS_8.get(interval)
        measured = {
            "overlap": fused.overlap,
            "iterations": fused.iterations,
            "iterations_per_token": fused.iterations / setting.tokens,
            **values,
        }
        published = {
            "overlap": paper.OVERLAP_8.get(interval),
            "iterations": iterations,
            "iterations_per_token": None if iterations is None else iterations / paper.TOKENS,
            "speedup": paper.SPEEDUP_8.get(interval),
        }
        at = {"interval_ms": interval, "interval_s": setting.seconds(interval)}
        points.append(Point(at, measured, published))
        say.keep(_panel(points))
    notes = (
        *setting.notes(),
        f"Iterations are those of the main stream. The paper's are for {paper.TOKENS} tokens a request: compare them "
        "divided by a request's tokens. The arrivals are one draw, stretched to each mean interval.",
        bound(setting, points[0]),
        against_paper(points, "speedup", lambda at: f"{at['interval_ms']} ms"),
    )
    return Finding(setting.facts(), (_panel(points),), notes)


def _panel(points: Sequence[Point]) -> Panel:
    return Panel(f"Fig. 8: {REQUESTS} requests, a Poisson process", COLUMNS, tuple(points))


def bound(setting: Setting, densest: Point) -> str:
    """The throughputs of a batch and of instances where requests overlap most: their ratio bounds the speed-up."""
    seconds = densest.measured["instances_s"]
    assert isinstance(seconds, float)
    together = REQUESTS * setting.alone_s / seconds
    fused = setting.throughput[REQUESTS] / setting.throughput[1]
    return (
        f"At {densest.at['interval_ms']} ms, {REQUESTS} instances together make {together:.2f} times the tokens/s of "
        f"one request alone, and a fused batch of {REQUESTS} makes {fused:.1f} times: fusion cannot be more than "
        f"{fused / together:.1f} times as fast here."
    )


def prepare(conditions: Conditions) -> Run:
    return partial(draw, Setting(conditions, TOKENS[conditions.scale], [(REQUESTS, 1.0)]))


EXPERIMENT = Experiment(
    "Flover",
    "8",
    "32 requests as a Poisson process: their overlap, the iterations, the speed-up over instances",
    prepare,
)

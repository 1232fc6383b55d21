"""Flover's Figure 7: requests at constant intervals, the speed-up of fusion over concurrent instances."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import minifuse.reproduce.flover.paper as paper
from minifuse.reproduce.experiment import Column, Conditions, Experiment, Finding, Panel, Point, Run, Say
from minifuse.reproduce.flover.setting import FUSION, INSTANCES, SPEEDUP, Setting
from minifuse.reproduce.verdict import against_paper
from minifuse.workload.laws import Arrival

# By scale; intervals in the paper's milliseconds. `quick` and `cpu` leave out what takes longest.
REQUESTS = {"quick": (2, 4), "cpu": (2, 4, 8), "paper": (2, 4, 8)}
BATCHES = {"quick": (1,), "cpu": (1, 4), "paper": (1, 2, 3, 4)}
INTERVALS = {"quick": (500, 5000), "cpu": (500, 2500, 5000), "paper": (500, 2500, 5000)}
TOKENS = {"quick": 16, "cpu": 128, "paper": paper.TOKENS}
CROWD = max(REQUESTS["paper"]) * max(BATCHES["paper"])

COLUMNS = (
    Column("interval\nms", "at", "interval_ms", "{}"),
    Column("r_p\npaper", "paper", "r_p", "{:.1%}"),
    Column("r_p\nhere", "at", "r_p", "{:.1%}"),
    Column("\nbatch", "at", "batch", "{}"),
    Column("\nrequests", "at", "requests", "{}"),
    *(FUSION, INSTANCES, *SPEEDUP),
    Column("at\nbest", "measured", "limit", "{:.2f}x"),
)


def overlapped_portion(interval_s: float) -> float:
    """Equation 1: how much of a request overlaps with the next one, `r_p`, in the paper's seconds.

    >>> f"{overlapped_portion(0.5):.1%}"
    '84.1%'
    """
    return max(0.0, (paper.ALONE_S - interval_s) / (paper.ALONE_S + interval_s))


def draw(setting: Setting, say: Say) -> Finding:
    """Overall latency of 2 to 8 requests at constant intervals, each of 1 to 4 prompts."""
    setting.start(say)
    scale = setting.conditions.scale
    points: list[Point] = []
    say.expect(len(INTERVALS[scale]) * len(BATCHES[scale]) * len(REQUESTS[scale]))
    for interval in INTERVALS[scale]:
        for batch in BATCHES[scale]:
            for count in REQUESTS[scale]:
                say(f"every {interval} ms, {count} requests of batch {batch}")
                arrivals = Arrival(setting.seconds(interval)).times(count, setting.rng("arrivals"))
                _, measured = setting.race(arrivals, batch=batch, first=len(points))
                at = {
                    "interval_ms": interval,
                    "interval_s": setting.seconds(interval),
                    "r_p": overlapped_portion(interval / 1e3),
                    "requests": count,
                    "batch": batch,
                }
                published = {"r_p": paper.R_P_7[interval], "speedup": paper.SPEEDUP_7[interval].get(count)}
                points.append(Point(at, measured, published))
                say.keep(_panel(points))
    batches = BATCHES[scale]
    left_out = "" if len(batches) == 4 else f" Here only batch {' and '.join(map(str, batches))}, to save time."
    notes = (
        *setting.notes(),
        "At best: the speed-up if every request, from its arrival on, took as long as it does alone.",
        f"The paper's r_p are those of a request that takes 6 s alone, not {paper.ALONE_S} s.",
        "The paper gives one speed-up for all batches of 1 to 4, and for 5000 ms only the words that the pipeline is "
        f"almost sequential: 1.0x stands for them.{left_out}",
        against_paper(
            points, "speedup", lambda at: f"{at['interval_ms']} ms, {at['requests']} requests of batch {at['batch']}"
        ),
    )
    return Finding(setting.facts(), (_panel(points),), notes)


def _panel(points: Sequence[Point]) -> Panel:
    return Panel("Fig. 7: overall latency at constant intervals", COLUMNS, tuple(points))


def prepare(conditions: Conditions) -> Run:
    return partial(draw, Setting(conditions, TOKENS[conditions.scale], [(CROWD, 1.0)]))


EXPERIMENT = Experiment(
    "Flover",
    "7",
    "2 to 8 requests at constant intervals: the speed-up over concurrent instances",
    prepare,
)

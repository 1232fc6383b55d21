"""Flover's Figure 8: overlap, iterations and speed-up when requests arrive as a Poisson process."""

from __future__ import annotations

from functools import partial

import minifuse.papers.flover.paper as paper
from minifuse.core.request import Request
from minifuse.papers.experiment import Plot, Say, Values
from minifuse.papers.flover.setting import Setting, experiment
from minifuse.papers.page import Drawn, tables
from minifuse.papers.verdict import against_paper
from minifuse.workload.laws import Arrival

REQUESTS = paper.REQUESTS_8
# By scale, in the paper's milliseconds.
INTERVALS = {"quick": (20, 200, 1000), "cpu": paper.INTERVALS_8, "paper": paper.INTERVALS_8}
RACED = {**INTERVALS, "cpu": (*paper.SPEEDUP_8, 1000, 5000)}  # the intervals at which instances run, too
TOKENS = {"quick": 16, "cpu": 64, "paper": paper.TOKENS}


def _drawn(setting: Setting, law: Arrival, number: int) -> list[Request]:
    """Draw a round's arrivals, and make its requests."""
    return setting.requests(law.times(REQUESTS, setting.rng("arrivals", number)))


@experiment(
    "8",
    "32 requests as a Poisson process: their overlap, the iterations, the speed-up over instances",
    TOKENS,
    [(REQUESTS, 1.0)],
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure overlap, iterations and speed-up of 32 requests that arrive as a Poisson process."""
    machines, intervals = setting.machines(), INTERVALS[setting.conditions.scale]
    say.expect(len(intervals) * len(machines))
    plots = {where: _plot(own, say, where) for where, own in machines.items()}
    densest = next(iter(plots.values())).points[0]
    together = REQUESTS * densest.measured["alone_s"] / densest.measured["instances_s"]
    fusion = setting.throughput[REQUESTS] / setting.throughput[1]
    return Drawn(
        [plot.panel for plot in plots.values()],
        requests=REQUESTS,
        densest=densest,
        together=together,
        fusion=fusion,
        bound=fusion / together,
        verdicts=[f"{plot.title}. {against_paper(plot.points, 'speedup', _name)}" for plot in plots.values()],
    )


def _plot(setting: Setting, say: Say, where: str) -> Plot:
    """Measure every mean interval on one machine."""
    scale = setting.conditions.scale
    plot = Plot(say, f"Fig. 8: {REQUESTS} requests, a Poisson process{where}", tables("flover/fig8")[0])
    for number, interval in enumerate(INTERVALS[scale]):
        say(f"Poisson, {interval} ms on average, {REQUESTS} requests")
        law = Arrival(setting.seconds(interval), cv=1.0)
        outcomes, values = setting.contest(partial(_drawn, setting, law), number, instances=interval in RACED[scale])
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
        plot.add({"interval_ms": interval, "interval_s": setting.seconds(interval)}, measured, published)
    return plot


def _name(at: Values) -> str:
    return f"{at['interval_ms']} ms"

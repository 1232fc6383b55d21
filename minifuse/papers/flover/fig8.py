"""Flover's Figure 8: overlap, iterations and speed-up when requests arrive as a Poisson process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import minifuse.papers.flover.paper as paper
from minifuse.core.request import Request
from minifuse.papers.experiment import Plot, Say, Values
from minifuse.papers.flover.setting import Setting, experiment, gains
from minifuse.papers.page import Drawn, tables
from minifuse.papers.verdict import against_paper
from minifuse.workload.laws import Arrival

REQUESTS = paper.REQUESTS_8
# By scale, in the paper's milliseconds.
INTERVALS = {"quick": (20, 200, 1000), "cpu": (20, 100, 400, 1000, 5000), "paper": paper.INTERVALS_8}
RACED = {**INTERVALS, "cpu": (20, 100, 400)}  # the intervals at which instances run, too
TOKENS = {"quick": 16, "cpu": 32, "paper": paper.TOKENS}
CROWD = (REQUESTS, 1.0)
JUDGED = {"speedup": "{:.2f}x", "overlap": "{:.1%}", "iterations_per_token": "{:.2f}"}
LLAMA = "random:llama-7b"  # the size is ours


def _drawn(setting: Setting, law: Arrival, number: int) -> list[Request]:
    """Draw a round's arrivals, and make its requests."""
    return setting.requests(law.times(REQUESTS, setting.rng("arrivals", number)))


@experiment(
    "8",
    "32 requests as a Poisson process: their overlap, the iterations, the speed-up over instances",
    TOKENS,
    [CROWD],
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure overlap, iterations and speed-up of 32 requests that arrive as a Poisson process."""
    machines, intervals = setting.machines(), INTERVALS[setting.conditions.scale]
    llama = setting.virtual and setting.conditions.model is None and setting.tokens <= paper.TOKENS
    say.expect(len(intervals) * len(machines) + llama * (1 + len(machines)))
    title = f"Fig. 8: {REQUESTS} requests, a Poisson process"
    plots = [_plot(own, say, title + where, intervals) for where, own in machines.items()]
    if llama:
        other = Setting(replace(setting.conditions, model=LLAMA), setting.tokens, [CROWD])
        other.start(say)
        title = f"LLaMA-7B, {REQUESTS} requests, Fig. 8's shortest interval"
        plots += [
            _plot(own, say, title + where, intervals[:1], paper.SPEEDUP_LLAMA)
            for where, own in other.machines().items()
        ]
    return Drawn(
        [plot.panel for plot in plots],
        llama=llama,
        instances=setting.about_instances(),
        verdicts=[
            f"{plot.title}. {against_paper(plot.points, key, _name, form)}"
            for plot in plots
            for key, form in JUDGED.items()
            if key == "speedup" or any(point.paper.get(key) for point in plot.points)
        ],
    )


def _plot(setting: Setting, say: Say, title: str, intervals: Sequence[int], claimed: float | None = None) -> Plot:
    """Measure mean intervals on one machine.

    Args:
        claimed: the paper's speed-up of another model; None: compare with Fig. 8.
    """
    raced = RACED[setting.conditions.scale]
    plot = Plot(say, title, tables("flover/fig8")[0])
    for number, interval in enumerate(intervals):
        say(f"Poisson, {interval} ms on average, {REQUESTS} requests")
        law = Arrival(setting.seconds(interval), cv=1.0)
        outcomes, values = setting.contest(partial(_drawn, setting, law), number, instances=interval in raced)
        fused, iterations = outcomes["fusion"].runs, paper.ITERATIONS_8.get(interval)
        measured = {
            "iterations": median(run.iterations for run in fused),
            **gains("overlap", [run.overlap for run in fused]),
            **gains("iterations_per_token", [run.iterations / setting.tokens for run in fused]),
            **values,
        }
        published = {
            "overlap": paper.OVERLAP_8.get(interval),
            "iterations": iterations,
            "iterations_per_token": None if iterations is None else iterations / paper.TOKENS,
            "speedup": paper.SPEEDUP_8.get(interval),
        }
        at = {"interval_ms": interval, "interval_s": setting.seconds(interval)}
        plot.add(at, measured, setting.published(published) if claimed is None else {"speedup": claimed})
    return plot


def _name(at: Values) -> str:
    return f"{at['interval_ms']} ms"

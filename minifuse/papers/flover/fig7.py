"""Flover's Figure 7: speed-up of fusion over concurrent instances, at constant intervals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

import minifuse.papers.flover.paper as paper
from minifuse.core.request import Request
from minifuse.papers.experiment import Plot, Point, Say, Values
from minifuse.papers.flover.setting import Setting, experiment
from minifuse.papers.page import Drawn, tables
from minifuse.papers.verdict import against_paper
from minifuse.workload.laws import Arrival

# By scale; intervals in the paper's milliseconds. `quick` and `cpu` leave out what takes longest.
REQUESTS = {"quick": (2, 4), "cpu": (2, 8), "paper": (2, 4, 8)}
BATCHES = {"quick": (1,), "cpu": (1, 4), "paper": (1, 2, 3, 4)}
INTERVALS = {"quick": (500, 5000), "cpu": (500, 5000), "paper": (500, 2500, 5000)}
TOKENS = {"quick": 16, "cpu": 32, "paper": paper.TOKENS}
CROWD = max(REQUESTS["paper"]) * max(BATCHES["paper"])


def overlapped_portion(interval_s: float) -> float:
    """Return `r_p` (equation 1), the part of a request that overlaps with the next one.

    Args:
        interval_s: the interval between requests, in the paper's seconds.

    >>> f"{overlapped_portion(0.5):.1%}"
    '84.1%'
    """
    return max(0.0, (paper.ALONE_S - interval_s) / (paper.ALONE_S + interval_s))


def _always(requests: list[Request], number: int) -> list[Request]:
    """Return the same requests in every round, as the intervals are constant."""
    return requests


@experiment(
    "7",
    "2 to 8 requests at constant intervals: the speed-up over concurrent instances",
    TOKENS,
    [(CROWD, 1.0)],
    partial(Setting, drawn=False),
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure requests at constant intervals: 2 to 8 requests of 1 to 4 prompts."""
    scale = setting.conditions.scale
    axes = list(product(INTERVALS[scale], BATCHES[scale], REQUESTS[scale]))
    machines = setting.machines()
    say.expect(len(axes) * len(machines))
    plots = [_plot(own, say, where, axes) for where, own in machines.items()]
    return Drawn(
        [plot.panel for plot in plots],
        left_out=len(BATCHES[scale]) < 4,
        batches=" and ".join(map(str, BATCHES[scale])),
        instances=setting.about_instances(),
        verdicts=[
            f"{plot.title}. {said}{against_paper(points, 'speedup', _name)}"
            for plot in plots
            for said, points in _by_claim(plot.points)
        ],
    )


def _plot(setting: Setting, say: Say, where: str, axes: Sequence[tuple[int, int, int]]) -> Plot:
    """Measure every interval, batch and number of requests on one machine."""
    plot = Plot(say, f"Fig. 7: overall latency at constant intervals{where}", tables("flover/fig7")[0])
    for number, (interval, batch, count) in enumerate(axes):
        say(f"every {interval} ms, {count} requests of batch {batch}")
        arrivals = Arrival(setting.seconds(interval)).times(count, setting.rng("arrivals"))
        requests = setting.requests(arrivals, prompts=batch)
        _, measured = setting.contest(partial(_always, requests), number)
        at = {
            "name": f"{interval} ms, {count} of {batch}",
            "interval_ms": interval,
            "interval_s": setting.seconds(interval),
            "r_p": overlapped_portion(interval / 1e3),
            "requests": count,
            "batch": batch,
        }
        sequential = paper.AS_SEQUENTIAL if interval == paper.SEQUENTIAL_7 else None
        speedup = paper.SPEEDUP_7.get(interval, {}).get(count, sequential)
        published = {"r_p": paper.R_P_7[interval], "speedup": speedup}
        plot.add(at, measured, setting.published(published))
    return plot


def _by_claim(points: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    """Divide the points into those with a number of the paper and those with words."""
    words = [point for point in points if point.at["interval_ms"] == paper.SEQUENTIAL_7]
    numbers = [point for point in points if point not in words]
    return [("", numbers), ("Almost sequential, for which 1.0x is ours: ", words)]


def _name(at: Values) -> str:
    return f"{at['interval_ms']} ms, {at['requests']} requests of batch {at['batch']}"

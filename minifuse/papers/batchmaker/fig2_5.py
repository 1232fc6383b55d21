"""BatchMaker's Figure 2.5: the timeline of eight requests, with graph or cellular batching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean
from typing import Any

import minifuse.papers.batchmaker.paper as paper
from minifuse.core.report import StepReport
from minifuse.core.request import Request
from minifuse.model.cells.config import CellConfig
from minifuse.model.cells.source import CellSource
from minifuse.papers.contest import Bench
from minifuse.papers.experiment import Conditions, Panel, Point, Say, Values
from minifuse.papers.page import Drawn, spec, tables
from minifuse.simulate.cost import Hardware

# The lengths and arrivals of req5 to req8 are made up to fit the thesis' text: they arrive before the first batch ends,
# req5 by 2, req6 and req7 by 3, and the second batch takes 7.
REQUESTS = {
    **{name: (length, 0.0) for name, length in paper.LENGTHS_5.items()},
    "req5": (4, 1.0),
    "req6": (paper.LONGEST_5, 2.0),
    "req7": (3, 3.0),
    "req8": (6, 4.0),
}
UNIT = Hardware(bandwidth=inf, flops=inf, overhead_s=1.0)  # a batch of cells takes one unit of time
SOURCE = CellSource("lstm", CellConfig("lstm", hidden_size=1, vocab_size=8))
CONTENDERS: dict[str, tuple[str, Mapping[str, object]]] = {
    "graph": ("graph-padded", {"batching.pad": "longest", "batching.bucket_width": paper.LONGEST_5}),
    "cellular": ("cellular", {"batching.max_tasks": 1}),
}
PUBLISHED_ENDS = {"graph": paper.GRAPH_ENDS_5, "cellular": paper.CELLULAR_ENDS_5}


@dataclass(frozen=True, slots=True)
class Life:
    """When a request begins and ends, and when its own cells are computed."""

    start: float
    end: float
    steps: tuple[float, ...]

    def line(self, arrival: float, until: int) -> str:
        """Draw a letter for each unit of time.

        . means not here, w waits, # is computed, - waits for the rest of its batch.

        >>> Life(1.0, 4.0, (1.0, 2.0)).line(0.0, 5)
        'w##-.'
        """
        return "".join(
            "." if now < arrival or now >= self.end else "w" if now < self.start else "#" if now in self.steps else "-"
            for now in range(until)
        )


class Setting(Bench[CellSource]):
    """Serves in virtual time at every scale; each batch of cells takes one unit."""

    def __init__(self, conditions: Conditions) -> None:
        super().__init__(conditions, SOURCE, UNIT, virtual_dtype="float32", real_dtype="float32")

    def timeline(self, contender: str) -> tuple[dict[str, Life], dict[int, str]]:
        """Return the life of each request, and the requests computed at each time."""
        technique, options = CONTENDERS[contender]
        requests = [
            Request(name, (3,) * length, ignore_eos=True, arrival_s=arrival)
            for name, (length, arrival) in REQUESTS.items()
        ]
        reports: list[StepReport] = []
        slots = len(REQUESTS) * (paper.LONGEST_5 + 1)
        options = {"batching.max_batch": paper.TIMELINE_BATCH, **options}
        self.serve(technique, requests, slots, options, on_step=reports.append, machine=UNIT)
        return _timeline(reports)

    def described(self) -> dict[str, Any]:
        """Return the conditions, as plain values."""
        conditions = self.conditions
        return {
            "scale": conditions.scale,
            "clock": "virtual",
            "seed": conditions.seed,
            "batch": paper.TIMELINE_BATCH,
        }


@spec(
    "BatchMaker",
    "2.5",
    "the timeline of eight requests: when each joins and leaves, graph against cellular",
    Setting,
    takes=(),
    paper=paper,
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Draw both timelines, and list the requests computed at each time."""
    lives, tasks = {}, {}
    say.expect(len(CONTENDERS))
    for name, (technique, _) in CONTENDERS.items():
        say(f"{technique} in units of a cell")
        lives[name], tasks[name] = setting.timeline(name)
    until = int(max(life.end for own in lives.values() for life in own.values()))
    points = []
    for request, (length, arrival) in REQUESTS.items():
        measured: Values = {}
        published: Values = {}
        for name, own in lives.items():
            life = own[request]
            measured |= {
                f"{name}_start": life.start,
                f"{name}_end": life.end,
                f"{name}_line": life.line(arrival, until),
            }
            published[f"{name}_end"] = PUBLISHED_ENDS[name].get(request)
        points.append(Point({"request": request, "length": length, "arrival": arrival}, measured, published))
    steps = [Point({"time": now}, {f"{name}_task": tasks[name].get(now) for name in tasks}, {}) for now in range(until)]
    columns, task_columns = tables("batchmaker/fig2_5")
    panels = (
        Panel("Fig. 2.5: when each request ends", columns, tuple(points)),
        Panel("Fig. 2.5: the requests computed at each time", task_columns, tuple(steps)),
    )
    graph, cellular = lives["graph"], lives["cellular"]
    left = {name: cellular[name].end for name in paper.CELLULAR_ENDS_5}
    joined = {name: cellular[name].start for name in paper.CELLULAR_STARTS_5}
    return Drawn(
        panels,
        graph_met=all(graph[name].end == end for name, end in paper.GRAPH_ENDS_5.items()),
        graph_ends=" and ".join(f"{end:g}" for end in sorted({life.end for life in graph.values()})),
        cellular_met=left == paper.CELLULAR_ENDS_5 and joined == paper.CELLULAR_STARTS_5,
        left=list(left.values()),
        joined=[joined[name] for name in ("req5", "req6", "req7")],
        means={
            name: fmean(life.end - REQUESTS[request][1] for request, life in own.items()) for name, own in lives.items()
        },
        ends={name: max(life.end for life in own.values()) for name, own in lives.items()},
    )


def _timeline(reports: Sequence[StepReport]) -> tuple[dict[str, Life], dict[int, str]]:
    lives: dict[str, Life] = {}
    tasks = {}
    for report in reports:
        for number, (start, stop) in enumerate(report.plan.waves or ((0, len(report.plan.work)),)):
            now = round(report.started_s) + number
            names = [work.sequence for work in report.plan.work[start:stop]]
            tasks[now] = " ".join(name.removeprefix("req") for name in sorted(names)) or "-"
            for name in names:
                life = lives.setdefault(name, Life(report.started_s, inf, ()))
                lives[name] = replace(life, steps=(*life.steps, float(now)))
        for name in report.finished:
            lives[name] = replace(lives[name], end=report.ended_s)
    return lives, tasks

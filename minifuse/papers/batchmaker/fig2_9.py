"""BatchMaker's Figure 2.9: the queueing and computing time of LSTM requests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.contenders import BASELINES, PADDED
from minifuse.papers.batchmaker.load import num_reports, sweep
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.curve import PERCENTILES, Outcome
from minifuse.papers.experiment import Column, Panel, Point, Say, Values
from minifuse.papers.numbers import shown, told
from minifuse.papers.page import Drawn, tables
from minifuse.papers.verdict import LOWER, by_rate, verdict

QUARTER = paper.RATE_9 / paper.PEAK_7  # the load, as a part of the peak
PUBLISHED: Values = {
    "cellular": paper.QUEUEING_P99_9,
    "baseline": paper.BASELINE_QUEUEING_P99_9,
}


@experiment(
    "2.9",
    "LSTM: queueing and computing time at a quarter of the peak",
    "lstm",
    ("hidden", "requests"),
    {scale: {"least": 1.0} for scale in ("cpu", "paper")},
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure the queueing and computing time of requests at a quarter of the peak."""
    say.expect(num_reports(setting, rates=(QUARTER,)))
    load = sweep(setting, say, PADDED, "wmt15", rates=(QUARTER,))
    (rate,) = load.curves["cellular"].points
    outcomes = {key: curve.points[rate] for key, curve in load.curves.items()}
    times = [best / mine if mine else math.inf for mine, best in _pairs(outcomes, "queueing_p99")]
    best = min(outcomes[name]["queueing_p99"] for name in BASELINES)
    here = f"{told(times, '{:,.0f}x')}, {best * 1e3:,.0f} ms against {outcomes['cellular']['queueing_p99'] * 1e3:.3g}"
    panels = [
        _percentiles(f"Fig. 2.9{part}: {what} at {shown(rate)} requests/s", columns, what, outcomes)
        for part, what, columns in zip("ab", ("queueing", "computing"), tables("batchmaker/fig2_9"), strict=True)
    ]
    return Drawn(
        panels,
        chosen=load.notes()[:1],
        rate=rate,
        quarter=QUARTER,
        ours=outcomes["cellular"],
        many_times=verdict("99th percentile of queueing, the baselines' over ours", times, paper.TIMES_9, here),
        faster=by_rate("Computing time, ours over the better baseline's", _computing(outcomes), LOWER, by="percentile"),
    )


def _computing(outcomes: Mapping[str, Outcome]) -> dict[float, list[float]]:
    """Return cellular batching's computing time over the better baseline's, by percentile and round."""
    return {
        float(percent): [mine / best for mine, best in _pairs(outcomes, f"computing_p{percent}")]
        for percent in PERCENTILES
    }


def _pairs(outcomes: Mapping[str, Outcome], value: str) -> list[tuple[float, float]]:
    """Return a value of cellular batching and the better baseline's, in every round."""
    ours, *theirs = (outcomes[name].each(value) for name in ("cellular", *BASELINES))
    return [(mine, min(rest)) for mine, *rest in zip(ours, *theirs, strict=True)]


def _percentiles(title: str, columns: tuple[Column, ...], what: str, outcomes: Mapping[str, Outcome]) -> Panel:
    """Return three points of the CDF that the thesis draws; its text gives one."""
    points = []
    for percent in PERCENTILES:
        measured: Values = {}
        for key, outcome in outcomes.items():
            rounds = tuple(seconds * 1e3 for seconds in outcome.each(f"{what}_p{percent}"))
            measured |= {f"{key}_ms": median(rounds), f"{key}_ms_rounds": rounds}
        points.append(Point({"percent": percent}, measured, PUBLISHED if (what, percent) == ("queueing", 99) else {}))
    return Panel(title, columns, tuple(points))

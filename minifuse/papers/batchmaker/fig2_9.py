"""BatchMaker's Figure 2.9: the queueing and computing time of LSTM requests."""

from __future__ import annotations

from collections.abc import Mapping

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.load import BASELINES, PADDED, num_reports, sweep
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.curve import PERCENTILES, Outcome
from minifuse.papers.experiment import Column, Panel, Point, Say, Values
from minifuse.papers.page import Drawn, shown, tables

QUARTER = paper.RATE_9 / paper.PEAK_7  # the load, as a part of the peak
WANTED = paper.BASELINE_QUEUEING_P99_9 / paper.QUEUEING_P99_9
PUBLISHED: Values = {
    "cellular": f"{paper.QUEUEING_P99_9:g}",
    "baseline": f">{paper.BASELINE_QUEUEING_P99_9:g}",
}


@experiment("2.9", "LSTM: queueing and computing time at a quarter of the peak", "lstm", ("hidden", "requests"))
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure the queueing and computing time of requests at a quarter of the peak."""
    say.expect(num_reports(setting, rates=(QUARTER,)))
    load = sweep(setting, say, PADDED, "wmt15", rates=(QUARTER,))
    (rate,) = load.curves["cellular"].points
    outcomes = {key: curve.points[rate] for key, curve in load.curves.items()}
    queueing = outcomes["cellular"]["queueing_p99"]
    theirs = min(outcomes[name]["queueing_p99"] for name in BASELINES)
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
        queueing=queueing,
        theirs=theirs,
        times=theirs / queueing if queueing else None,
        wanted=WANTED,
        many_times=theirs >= WANTED * queueing,
    )


def _percentiles(title: str, columns: tuple[Column, ...], what: str, outcomes: Mapping[str, Outcome]) -> Panel:
    """Return three points of the CDF that the thesis draws; its text gives one."""
    points = []
    for percent in PERCENTILES:
        measured = {f"{key}_ms": outcome[f"{what}_p{percent}"] * 1e3 for key, outcome in outcomes.items()}
        points.append(Point({"percent": percent}, measured, PUBLISHED if (what, percent) == ("queueing", 99) else {}))
    return Panel(title, columns, tuple(points))

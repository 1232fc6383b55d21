"""BatchMaker's Figure 2.9: LSTM, the time that requests queue and the time that they are computed."""

from __future__ import annotations

from collections.abc import Mapping

import minifuse.reproduce.batchmaker.paper as paper
from minifuse.reproduce.batchmaker.contenders import ABOUT_PADDED, BASELINES, PADDED
from minifuse.reproduce.batchmaker.setting import BY_FIG_3, Setting, experiment
from minifuse.reproduce.curve import Outcome
from minifuse.reproduce.experiment import Column, Finding, Panel, Point, Say, Value
from minifuse.reproduce.load import num_reports, sweep
from minifuse.reproduce.verdict import aim, shown, sweep_notes

QUARTER = paper.RATE_9 / paper.PEAK_7  # of the peak: the load


def draw(setting: Setting, say: Say) -> Finding:
    """Queueing and computing time of requests at a quarter of the peak."""
    setting.start(say)
    say.expect(num_reports(setting, rates=(QUARTER,)))
    load = sweep(setting, say, PADDED, "wmt15", rates=(QUARTER,))
    (rate,) = load.curves["cellular"].points
    outcomes = {key: curve.points[rate] for key, curve in load.curves.items()}
    panels = tuple(
        _percentiles(f"Fig. 2.9{part}: {what} at {shown(rate)} requests/s", what, outcomes)
        for part, what in (("a", "queueing"), ("b", "computing"))
    )
    ours = outcomes["cellular"].queueing_p99
    theirs = min(outcomes[name].queueing_p99 for name in BASELINES)
    wanted = paper.BASELINE_QUEUEING_P99_9 / paper.QUEUEING_P99_9
    notes = (
        *setting.notes(),
        ABOUT_PADDED,
        sweep_notes(load, BY_FIG_3)[0],
        f"At {shown(rate)} requests/s, {QUARTER:.0%} of the largest capacity (thesis: {paper.RATE_9:,.0f} of "
        f"{paper.PEAK_7:,.0f}). Cellular batching then computes {outcomes['cellular'].mean_batch:.1f} rows a task; a "
        f"newcomer waits for up to {paper.MAX_TASKS} tasks, which were submitted before it came.",
        aim(
            "99th percentile of queueing, the baselines' over ours",
            f"{theirs / ours:.3g} times, {theirs * 1e3:.3g} ms against {ours * 1e3:.3g}" if ours else "ours is nothing",
            f"more than {wanted:.0f} times, >{paper.BASELINE_QUEUEING_P99_9:g} ms against {paper.QUEUEING_P99_9:g}",
            theirs >= wanted * ours,
        ),
    )
    return Finding(setting.facts(), panels, notes)


def _percentiles(title: str, what: str, outcomes: Mapping[str, Outcome]) -> Panel:
    """What the thesis draws as a CDF, at three of its heights; it gives one of them."""
    points = []
    published: dict[str, Value] = {
        "cellular": f"{paper.QUEUEING_P99_9:g}",
        "baseline": f">{paper.BASELINE_QUEUEING_P99_9:g}",
    }
    for percent in (50, 90, 99):
        measured = {f"{key}_ms": getattr(outcome, f"{what}_p{percent}") * 1e3 for key, outcome in outcomes.items()}
        points.append(Point({"percent": percent}, measured, published if (what, percent) == ("queueing", 99) else {}))
    paper_columns = (
        Column("paper, ms\ncellular", "paper", "cellular", "{}"),
        Column("paper, ms\npadded", "paper", "baseline", "{}"),
    )
    columns = (
        Column("\npercent", "at", "percent", "{}"),
        *(paper_columns if what == "queueing" else ()),
        *(Column(f"here, ms\n{key}", "measured", f"{key}_ms") for key in outcomes),
    )
    return Panel(title, columns, tuple(points))


EXPERIMENT = experiment(
    "2.9", "LSTM: queueing and computing time at a quarter of the peak", "lstm", draw, ("hidden", "requests")
)

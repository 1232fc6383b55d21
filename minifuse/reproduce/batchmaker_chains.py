"""BatchMaker's experiments with an LSTM: Figs. 2.7, 2.8, 2.9 and 2.11, cellular batching against padded graphs."""

from __future__ import annotations

from collections.abc import Mapping

import minifuse.reproduce.batchmaker_paper as paper
from minifuse.reproduce.batchmaker_load import Contender, Outcome
from minifuse.reproduce.batchmaker_notes import aim, bounds, chosen, cut_aim, gain_aim, load_notes, shown
from minifuse.reproduce.batchmaker_panels import Load, curve_panel, measure, peak_panel
from minifuse.reproduce.batchmaker_setting import Setting
from minifuse.reproduce.experiment import Column, Finding, Panel, Point, Say, Value

__all__ = ["PADDED", "fig7", "fig8", "fig9", "fig11", "padded"]

QUARTER = paper.RATE_9 / paper.PEAK_7  # the load of Fig. 2.9


def padded(key: str, head: str, pad: str, width: int = paper.BUCKET_WIDTH, **options: object) -> Contender:
    """A baseline that pads the chains of a bucket, to the bucket's end or to the longest of the batch."""
    given = {f"batching.{name}": value for name, value in {"pad": pad, "bucket_width": width, **options}.items()}
    return Contender(key, head, "graph-padded", given)


CELLULAR = Contender("cellular", "cellular", "cellular")
PADDED = (padded("longest", "longest", "longest"), padded("bucket", "bucket", "bucket"))
BASELINES = tuple(contender.key for contender in PADDED)
WHO = (
    "longest and bucket are graph-padded, buckets of width 10 in turn: padded to the longest request of a batch, and "
    "to the bucket's end as the thesis' baselines are. Gains are over the one of them that is better."
)


def fig7(setting: Setting, say: Say) -> Finding:
    """Latency against throughput: (a) with the largest batch that suits each, (b) with 64."""
    small = min(paper.SMALL_BATCH_7, max(setting.scale.sizes))
    loads = {
        "a": measure(setting, say, (CELLULAR, *PADDED), "wmt15", setting.scale.sizes),
        "b": measure(setting, say, (CELLULAR, *PADDED), "wmt15", (small,)),
    }
    told: dict[str, dict[str, Value]] = {
        "cellular": {"max_batch": paper.MAX_BATCH, "peak": paper.PEAK_7, "p90_ms": paper.P90_7},
        "bucket": {"max_batch": paper.MAX_BATCH, "p90_ms": paper.BASELINE_P90_7},
    }
    titles = {"a": "each with its best largest batch", "b": f"batches of up to {small}"}
    panels: list[Panel] = []
    own: list[str] = [WHO]
    for part, load in loads.items():
        panels += (
            curve_panel(f"Fig. 2.7{part}: {titles[part]}", load),
            peak_panel(f"Fig. 2.7{part}: peaks", load, told if part == "a" else {}),
        )
        ours, baselines = load.curves["cellular"], [load.curves[name] for name in BASELINES]
        own += (f"(2.7{part}) {chosen(load)}", f"(2.7{part}) {bounds(load)}")
        if part == "a":
            own += (
                gain_aim("LSTM,", ours, load.stronger(*BASELINES), paper.GAIN_7),
                cut_aim("LSTM,", ours, baselines, paper.CUTS_7),
                f"In the thesis the baselines' latency exceeds 500 ms at {paper.SLOWEST_7:,.0f} requests/s, and "
                f"BatchMaker's does not change up to {paper.FLAT_7:,.0f}.",
            )
    return Finding(setting.facts(), tuple(panels), (*load_notes(setting), *own))


def fig8(setting: Setting, say: Say) -> Finding:
    """Padding with buckets of several widths, to the bucket's end."""
    widths = paper.WIDTHS_8 if setting.conditions.scale != "quick" else (1, 10, 40)
    contenders = [padded(f"w{width}", f"width {width}", "bucket", width) for width in widths]
    sizes = setting.scale.sizes if setting.conditions.scale == "quick" else setting.scale.sizes[-3:]
    load = measure(setting, say, contenders, "wmt15", sizes)
    narrow, middle, wide = (load.curves[f"w{width}"] for width in (1, paper.BUCKET_WIDTH, 40))
    lowest = min(rate for rate in narrow.points)
    latencies = [curve.points[lowest].p90 * 1e3 for curve in (narrow, middle, wide)]
    best = max(load.curves.values(), key=lambda curve: curve.peak)
    own = (
        chosen(load),
        bounds(load),
        aim(
            "width 1 has the best peak",
            f"{shown(narrow.peak)} requests/s, and the best is {best.contender.head} with {shown(best.peak)}",
            "width 1",
            narrow.peak >= 0.98 * best.peak,
        ),
        aim(
            "wider buckets have the lower latency at low load, and the lower peak",
            f"90th percentiles at {shown(lowest)} requests/s of widths 1, {paper.BUCKET_WIDTH} and 40: "
            f"{', '.join(f'{ms:.3g}' for ms in latencies)} ms; peaks {shown(narrow.peak)}, {shown(middle.peak)} and "
            f"{shown(wide.peak)} requests/s",
            "the same order, without numbers",
            latencies[2] < latencies[0] and wide.peak < narrow.peak,
        ),
    )
    panels = (curve_panel("Fig. 2.8: bucket widths", load), peak_panel("Fig. 2.8: peaks", load, {}))
    return Finding(setting.facts(), panels, (*load_notes(setting), *own))


def fig9(setting: Setting, say: Say) -> Finding:
    """How long requests queue, and how long they are computed, at a quarter of the peak."""
    load = measure(setting, say, (CELLULAR, *PADDED), "wmt15", setting.scale.sizes, (QUARTER,))
    (rate,) = load.curves["cellular"].points
    outcomes = {key: curve.points[rate] for key, curve in load.curves.items()}
    panels = tuple(
        _percentiles(f"Fig. 2.9{part}: {what} at {shown(rate)} requests/s", what, outcomes)
        for part, what in (("a", "queueing"), ("b", "computing"))
    )
    ours = outcomes["cellular"].queueing_p99
    theirs = min(outcomes[name].queueing_p99 for name in BASELINES)
    wanted = paper.BASELINE_QUEUEING_P99_9 / paper.QUEUEING_P99_9
    own = (
        WHO,
        chosen(load),
        f"At {shown(rate)} requests/s, {QUARTER:.0%} of the largest capacity (thesis: {paper.RATE_9:,.0f} of "
        f"{paper.PEAK_7:,.0f}). {_tasks(outcomes['cellular'])}",
        aim(
            "99th percentile of queueing, the baselines' over ours",
            f"{theirs / ours:.3g} times, {theirs * 1e3:.3g} ms against {ours * 1e3:.3g}" if ours else "ours is nothing",
            f"more than {wanted:.0f} times, >{paper.BASELINE_QUEUEING_P99_9:g} ms against {paper.QUEUEING_P99_9:g}",
            theirs >= wanted * ours,
        ),
    )
    return Finding(setting.facts(), panels, (*load_notes(setting), *own))


def _percentiles(title: str, what: str, outcomes: Mapping[str, Outcome]) -> Panel:
    """What the thesis draws as a CDF, at three of its heights; it gives one of them."""
    points = []
    told: dict[str, Value] = {
        "cellular": f"{paper.QUEUEING_P99_9:g}",
        "baseline": f">{paper.BASELINE_QUEUEING_P99_9:g}",
    }
    for percent in (50, 90, 99):
        measured: dict[str, Value] = {
            f"{key}_ms": getattr(outcome, f"{what}_p{percent}") * 1e3 for key, outcome in outcomes.items()
        }
        points.append(Point({"percent": percent}, measured, told if (what, percent) == ("queueing", 99) else {}))
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


def _tasks(ours: Outcome) -> str:
    return (
        f"Cellular batching then computes {ours.mean_batch:.1f} rows a task; a newcomer waits for up to "
        f"{paper.MAX_TASKS} of them, those that were submitted before it came."
    )


def fig11(setting: Setting, say: Say) -> Finding:
    """Lengths of growing variance; and at a fixed length, how near to the ideal cellular batching comes."""
    panels: list[Panel] = []
    own: list[str] = [WHO]
    loads: dict[str, Load] = {}
    for workload in paper.DATASETS_11:
        load = loads[workload] = measure(setting, say, (CELLULAR, *PADDED), workload, setting.scale.sizes)
        name = workload.removeprefix("wmt15:").replace("=", " ")
        panels += (curve_panel(f"Fig. 2.11: {name}", load), peak_panel(f"Fig. 2.11: peaks, {name}", load, {}))
        own += (chosen(load), bounds(load))
    fixed = loads[paper.DATASETS_11[0]]
    say("the ideal: chains of 24 steps, batch after batch, without any scheduling")
    ideals = {size: size / ideal_s(setting, size) for size in setting.scale.sizes}
    size = max(ideals, key=lambda size: ideals[size])
    ideal, ours = ideals[size], fixed.curves["cellular"]
    share = ours.peak / ideal
    points = [
        Point(
            {"max_batch": size},
            {"ideal": rate, "cellular": fixed.capacities["cellular"][size]},
            {"ideal": paper.IDEAL_11 if size == paper.MAX_BATCH else None},
        )
        for size, rate in ideals.items()
    ]
    columns = (
        Column("\nbatch", "at", "max_batch", "{}"),
        Column("ideal req/s\npaper", "paper", "ideal"),
        Column("ideal req/s\nhere", "measured", "ideal"),
        Column("cellular\nreq/s", "measured", "cellular"),
    )
    panels.append(Panel(f"Fig. 2.11: the ideal of {paper.MEAN_LENGTH} steps, and all at once", columns, tuple(points)))
    gathering = max(outcome.gathering_share for outcome in ours.points.values())
    where = "in virtual time they are the thesis' own" if setting.virtual else f"gathers take up to {gathering:.1%}"
    own += (
        f"The ideal is at batch {size}: chains of {paper.MEAN_LENGTH} steps, batch after batch, nothing else.",
        aim(
            "share of the ideal at a fixed length",
            f"{share:.1%}, {shown(ours.peak)} of {shown(ideal)} requests/s",
            f"{paper.SHARE_11:.0%}",
            share >= paper.SHARE_11,
        ),
        aim(
            "overhead of scheduling and gathering",
            f"{1 - share:.1%} of the ideal's throughput is lost; {where}",
            f"{1 - paper.SHARE_11:.0%}",
            1 - share < 1 - paper.SHARE_11,
        ),
        _variance(loads),
    )
    return Finding(setting.facts(), tuple(panels), (*load_notes(setting), *own))


def _variance(loads: dict[str, Load]) -> str:
    """How the gain over padding grows with the variance of lengths."""
    gains = [load.curves["cellular"].peak / load.stronger(*BASELINES).peak for load in loads.values()]
    text = ", ".join(f"{name.removeprefix('wmt15:')} {gain:.2f}x" for name, gain in zip(loads, gains, strict=True))
    return aim(
        "the gain in peak throughput grows with the variance of lengths",
        text,
        "it does; below 1 at the fixed length",
        gains == sorted(gains),
    )


def ideal_s(setting: Setting, rows: int) -> float:
    """Seconds of one batch of chains of 24 steps, without any scheduling."""
    if setting.virtual:
        return paper.MEAN_LENGTH * setting.cost_s("lstm", rows)
    words = [setting.words(rows) for _ in range(paper.MEAN_LENGTH)]

    def run() -> None:
        h = c = setting.zeros(rows)
        for word in words:
            h, c = setting.model.run("lstm", word, h, c)

    return setting.timed(run)

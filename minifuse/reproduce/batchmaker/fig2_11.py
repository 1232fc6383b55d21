"""BatchMaker's Figure 2.11: LSTM, lengths of growing variance, and the share of the ideal at a fixed length."""

from __future__ import annotations

import minifuse.reproduce.batchmaker.paper as paper
from minifuse.reproduce.batchmaker.contenders import ABOUT_PADDED, BASELINES, PADDED
from minifuse.reproduce.batchmaker.setting import BY_FIG_3, Setting, experiment
from minifuse.reproduce.experiment import Column, Finding, Panel, Point, Say, beside
from minifuse.reproduce.load import Load, curve_panel, num_reports, peak_panel, sweep
from minifuse.reproduce.verdict import aim, shown, sweep_notes

IDEAL_COLUMNS = (
    Column("\nbatch", "at", "max_batch", "{}"),
    *beside("ideal req/s", "ideal"),
    Column("cellular\nreq/s", "measured", "cellular"),
)


def draw(setting: Setting, say: Say) -> Finding:
    """Lengths of growing variance; and at a fixed length, how near to the ideal cellular batching comes."""
    setting.start(say)
    panels: list[Panel] = []
    notes = [*setting.notes(), ABOUT_PADDED]
    loads: dict[str, Load] = {}
    say.expect(len(paper.DATASETS_11) * num_reports(setting) + 1)
    for workload in paper.DATASETS_11:
        load = loads[workload] = sweep(setting, say, PADDED, workload)
        name = workload.removeprefix("wmt15:").replace("=", " ")
        panels += (curve_panel(f"Fig. 2.11: {name}", load), peak_panel(f"Fig. 2.11: peaks, {name}", load))
        notes += sweep_notes(load, BY_FIG_3)
    fixed = loads[paper.DATASETS_11[0]]
    say("the ideal: chains of 24 steps, batch after batch, without any scheduling")
    ideals = {size: size / ideal_s(setting, size) for size in setting.sizes}
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
    title = f"Fig. 2.11: the ideal of {paper.MEAN_LENGTH} steps, and all at once"
    panels.append(Panel(title, IDEAL_COLUMNS, tuple(points)))
    gathering = max(outcome.gathering_share for outcome in ours.points.values())
    where = "in virtual time they are the thesis' own" if setting.virtual else f"gathers take up to {gathering:.1%}"
    notes += (
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
    return Finding(setting.facts(), tuple(panels), tuple(notes))


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


EXPERIMENT = experiment(
    "2.11",
    "LSTM: lengths of growing variance, and the share of the ideal",
    "lstm",
    draw,
    other={"cpu": {"requests": 1000, "shares": (0.25, 0.5, 0.9, 1.2)}, "paper": {"requests": 4000}},
)

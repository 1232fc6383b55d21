"""BatchMaker's Figure 2.11: LSTM, lengths of growing variance, and the share of the ideal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.contenders import BASELINES, padded_contenders
from minifuse.papers.batchmaker.ideal import against_ideal
from minifuse.papers.batchmaker.load import Load, num_reports, sweep
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.curve import ALIKE, Curve
from minifuse.papers.experiment import Panel, Point, Say
from minifuse.papers.numbers import told
from minifuse.papers.page import Drawn, tables
from minifuse.papers.verdict import Claim, verdict

SAME = Claim("the same, within 10%", 0.9, 1.1)
LOST = 1 - paper.SHARE_11


@experiment(
    "2.11",
    "LSTM: lengths of growing variance, and the share of the ideal",
    "lstm",
    other={
        "cpu": {"shares": (0.25, 0.5, 1.2)},
        "paper": {"sizes": (256, 512), "shares": (0.25, 0.5, 0.8, 1.2)},
    },
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure lengths of growing variance; at a fixed length, also the ideal."""
    say.expect(len(paper.DATASETS_11) * num_reports(setting) + 1)
    loads = {
        workload: sweep(setting, say, padded_contenders(setting.virtual), workload) for workload in paper.DATASETS_11
    }
    panels: list[Panel] = []
    for workload, load in loads.items():
        name = workload.removeprefix("wmt15:").replace("=", " ")
        panels += load.panels("Fig. 2.11", name, where=f", {name}")
    fixed = loads[paper.DATASETS_11[0]]
    say("the ideal: chains of 24 steps, batch after batch, without any scheduling")
    ideals = {size: size / ideal_s(setting, size) for size in setting.sizes}
    points = [
        Point(
            {"max_batch": size},
            {"ideal": rate, "cellular": fixed.capacities["cellular"][size]},
            {"ideal": paper.IDEAL_11 if size == paper.MAX_BATCH else None},
        )
        for size, rate in ideals.items()
    ]
    title = f"Fig. 2.11: the ideal of {paper.MEAN_LENGTH} steps, and all at once"
    panels.append(Panel(title, tables("batchmaker/fig2_11")[0], tuple(points)))
    size = max(ideals, key=lambda size: ideals[size])
    ours = fixed.curves["cellular"]
    ideal = against_ideal(setting, fixed, size, partial(ideal_s, setting, size))
    gains = _gains(loads, *BASELINES)
    return Drawn(
        panels,
        sweeps=[note for load in loads.values() for note in load.notes()],
        size=size,
        ideal=ideal,
        near=ideal.judged("Share of the ideal at a fixed length", paper.NEAR_11),
        theirs_lost=LOST,
        gathering=max(outcome["gathering_share"] for outcome in ours.points.values()),
        gains=_told(gains),
        same=_same_latency({name: load.curves["cellular"] for name, load in loads.items()}),
        fullest=_told(_gains(loads, "fullest")) if setting.virtual else (),
        grows=[
            all(after > (1 + ALIKE) * before for before, after in pairwise(of_round))
            for of_round in zip(*gains.values(), strict=True)
        ],
    )


def _same_latency(curves: Mapping[str, Curve]) -> list[str]:
    """Judge cellular batching's lowest p90 by that of a fixed length, for each other workload."""
    (_, fixed), *others = curves.items()
    rounds = range(len(fixed.last.rounds))
    found = []
    for name, curve in others:
        times = [curve.of_round(number).lowest() / fixed.of_round(number).lowest() for number in rounds]
        what = f"Lowest 90th percentile of cellular batching, {name.removeprefix('wmt15:')} over the fixed length"
        found.append(verdict(what, times, SAME))
    return found


def _gains(loads: Mapping[str, Load], *baselines: str) -> dict[str, list[float]]:
    """Return the gains in peak throughput over the better of several baselines, by workload."""
    return {name: load.curves["cellular"].over(load.stronger(*baselines)) for name, load in loads.items()}


def _told(gains: Mapping[str, Sequence[float]]) -> list[str]:
    return [f"{name.removeprefix('wmt15:')} {told(gain)}" for name, gain in gains.items()]


def ideal_s(setting: Setting, rows: int) -> float:
    """Return the seconds of one batch of chains of 24 steps, without any scheduling."""
    if setting.virtual:
        return paper.MEAN_LENGTH * setting.cost_s("lstm", rows)
    words = [setting.words(rows) for _ in range(paper.MEAN_LENGTH)]

    def run() -> None:
        h = c = setting.zeros(rows)
        for word in words:
            h, c = setting.model.run("lstm", word, h, c)

    return setting.timed(run)

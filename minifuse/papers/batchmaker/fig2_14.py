"""BatchMaker's Figure 2.14: latency and throughput of TreeLSTM, cellular or in merged graphs."""

from __future__ import annotations

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.contenders import CELLULAR, MERGED, RIVALS, tree_contenders
from minifuse.papers.batchmaker.load import (
    Load,
    equal_caps,
    equal_panel,
    higher_peak,
    judged_equal,
    lower_p90,
    num_reports,
    num_requests,
    sweep,
)
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.curve import run_rounds
from minifuse.papers.experiment import Mark, Panel, Point, Say, Values
from minifuse.papers.numbers import told
from minifuse.papers.page import Drawn, tables
from minifuse.papers.verdict import Claim, verdict

PUBLISHED: dict[str, Values] = {
    "cellular": {"max_batch": paper.TREE_BATCH, "peak": paper.PEAK_14},
    "dynet": {"max_batch": paper.TREE_BATCH, "peak": paper.DYNET_PEAK_14},
    "fold": {"max_batch": paper.TREE_BATCH, "peak": paper.PEAK_14 / paper.TIMES_FOLD_14},
}
CLAIMS = (
    ((paper.GAIN_DYNET_14, paper.PEAK_GAIN_DYNET_14), paper.CUT_DYNET_14),
    ((paper.GAIN_FOLD_14,), paper.CUT_FOLD_14),
)
NEAR = 0.1  # rates that differ by a smaller part are compared
MODERATE = paper.MODERATE_14 / paper.PEAK_14  # as a share of the peak


@experiment(
    "2.14",
    "TreeLSTM: cellular against merged graphs, which pay for merging, or at equal caps",
    "treelstm",
    other={"cpu": {"requests": 400, "shares": (0.1, 0.25, 0.5, 1.2)}, "paper": {"shares": (0.1, MODERATE, 0.6, 1.2)}},
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure latency against throughput on trees like TreeBank's."""
    one_size = (paper.TREE_BATCH,)
    say.expect(num_reports(setting, one_size) + 1 + setting.virtual)
    contenders = tree_contenders(setting.virtual)
    load = sweep(setting, say, contenders, "treebank", one_size)
    even = equal_caps(setting, say, "treebank")
    equal_s = 2 * max(curve.lowest() for curve in load.curves.values())
    points = [
        Point({"contender": curve.contender.head}, {"peak": curve.peak, "equal": curve.load_at(equal_s)}, {})
        for curve in load.curves.values()
    ]
    title = f"Fig. 2.14: throughput at a 90th percentile of {equal_s * 1e3:.3g} ms"
    equal = Panel(title, tables("batchmaker/fig2_14")[0], tuple(points))
    ours, *rivals = load.curves.values()
    aims = []
    for theirs, rival, (claims, cut) in zip(rivals, RIVALS, CLAIMS, strict=True):
        aims += [
            *(higher_peak(f"TreeLSTM against {rival.head},", ours, theirs, claim) for claim in claims),
            lower_p90(f"TreeLSTM against {rival.head},", ours, [theirs], cut),
        ]
    thesis = [
        Mark(paper.MODERATE_14, paper.P90_14, "thesis: cellular"),
        Mark(paper.MODERATE_14, paper.DYNET_P90_14, "thesis: DyNet"),
    ]
    return Drawn(
        (
            *load.panels(
                "Fig. 2.14",
                "trees like TreeBank's",
                setting.published(PUBLISHED),
                marks=thesis if setting.virtual else (),
            ),
            equal,
            equal_panel(even, "Fig. 2.14"),
        ),
        sweep=load.notes(),
        equal_s=equal_s,
        batches=load.batch_sizes,
        aims=aims,
        latencies=_latencies(setting, load, say) if setting.virtual else (),
        even=judged_equal(even),
        narrow=[f"{ours.capacity / even.curves[one.key].capacity:.2f}x that of {one.head}" for one in MERGED],
    )


def _latencies(setting: Setting, load: Load, say: Say) -> list[str]:
    """Judge latencies at the thesis' moderate rate, on the slowed machine and on the LSTM's.

    On the LSTM's machine all times are shorter, and all rates higher, by the same factor.
    """
    slowdown, rate = setting.slowdown, paper.MODERATE_14
    say(f"{rate / slowdown:.0f} requests/s, for the machine as fitted to the LSTM")
    count = num_requests(setting.num_requests, rate, load.peak, setting.least)

    def run(number: int) -> dict[str, float]:
        served = setting.run(CELLULAR, paper.TREE_BATCH, "treebank", count, rate / slowdown, number)
        return {"p90": served["p90"] / slowdown}

    unslowed = run_rounds({"cellular": run}, setting.rounds, 0)["cellular"]
    measured = {"machine as fitted to the LSTM, cellular": (unslowed.each("p90"), paper.P90_14)}
    moderate = min(load.curves["cellular"].points, key=lambda one: abs(one - rate))
    for key, published in (("cellular", paper.P90_14), ("dynet", paper.DYNET_P90_14)):
        outcome = load.curves[key].points.get(moderate)
        if outcome is not None and abs(moderate - rate) < NEAR * rate:
            measured[f"slowed machine, {load.curves[key].contender.head}"] = (outcome.each("p90"), published)
    return [
        verdict(
            f"90th percentile near {rate:,.0f} requests/s, {name}",
            [1e3 * seconds for seconds in found],
            Claim.about(published, "{:g} ms"),
            told([1e3 * seconds for seconds in found], "{:.3g} ms"),
        )
        for name, (found, published) in measured.items()
    ]

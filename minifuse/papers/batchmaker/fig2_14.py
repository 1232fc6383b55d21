"""BatchMaker's Figure 2.14: latency and throughput of TreeLSTM, cellular or in merged graphs."""

from __future__ import annotations

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.load import MERGED, higher_peak, lower_p90, num_reports, sweep
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.experiment import Panel, Point, Say, Values
from minifuse.papers.page import Drawn, tables

PUBLISHED: dict[str, Values] = {
    "cellular": {"max_batch": paper.TREE_BATCH, "peak": paper.PEAK_14},
    "dynet": {"max_batch": paper.TREE_BATCH, "peak": paper.DYNET_PEAK_14},
    "fold": {"max_batch": paper.TREE_BATCH},
}
RIVALS = (
    ("dynet", "DyNet", (paper.GAIN_DYNET_14, paper.PEAK_GAIN_DYNET_14), paper.CUT_DYNET_14),
    ("fold", "Fold", (paper.GAIN_FOLD_14,), paper.CUT_FOLD_14),
)


@experiment(
    "2.14",
    "TreeLSTM: cellular against merged graphs, per operator and per cell",
    "treelstm",
    other={"cpu": {"requests": 800}, "paper": {"requests": 3000}},
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure latency against throughput on trees like TreeBank's."""
    say.expect(num_reports(setting, (paper.TREE_BATCH,)))
    load = sweep(setting, say, MERGED, "treebank", (paper.TREE_BATCH,))
    equal_s = 2 * max(curve.lowest() for curve in load.curves.values())
    points = [
        Point({"contender": curve.contender.head}, {"peak": curve.peak, "equal": curve.load_at(equal_s)}, {})
        for curve in load.curves.values()
    ]
    title = f"Fig. 2.14: throughput at a 90th percentile of {equal_s * 1e3:.3g} ms"
    equal = Panel(title, tables("batchmaker/fig2_14")[0], tuple(points))
    aims = []
    for key, name, claims, cut in RIVALS:
        ours, theirs = load.curves["cellular"], load.curves[key]
        aims += [
            *(higher_peak(f"TreeLSTM against {name},", ours, theirs, claim) for claim in claims),
            lower_p90(f"TreeLSTM against {name},", ours, [theirs], cut),
        ]
    return Drawn(
        (*load.panels("Fig. 2.14", "trees like TreeBank's", PUBLISHED), equal),
        sweep=load.notes(),
        equal_s=equal_s,
        batches=load.batch_sizes,
        aims=aims,
    )

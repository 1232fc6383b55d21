"""BatchMaker's Figure 2.14: TreeLSTM, latency against throughput, cellular batching against merged graphs."""

from __future__ import annotations

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.load import MERGED, cut_aim, num_reports, sweep
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.curve import Curve
from minifuse.papers.experiment import Panel, Point, Say, Values
from minifuse.papers.page import Drawn, tables
from minifuse.papers.verdict import aim

PUBLISHED: dict[str, Values] = {
    "cellular": {"max_batch": paper.TREE_BATCH, "peak": paper.PEAK_14},
    "dynet": {"max_batch": paper.TREE_BATCH, "peak": paper.DYNET_PEAK_14},
    "fold": {"max_batch": paper.TREE_BATCH},
}
RIVALS = (
    ("dynet", "DyNet", paper.GAIN_DYNET_14, paper.CUT_DYNET_14),
    ("fold", "Fold", paper.GAIN_FOLD_14, paper.CUT_FOLD_14),
)


@experiment(
    "2.14",
    "TreeLSTM: cellular against merged graphs, per operator and per cell",
    "treelstm",
    other={"cpu": {"requests": 800}, "paper": {"requests": 3000}},
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Latency against throughput on trees like TreeBank's."""
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
    for key, name, gain, cut in RIVALS:
        ours, theirs = load.curves["cellular"], load.curves[key]
        aims += [
            _gain_aim(name, ours, theirs, equal_s, gain),
            cut_aim(f"TreeLSTM against {name},", ours, [theirs], cut),
        ]
    return Drawn(
        (*load.panels("Fig. 2.14", "trees like TreeBank's", PUBLISHED), equal),
        sweep=load.notes(),
        equal_s=equal_s,
        batches=load.batch_sizes,
        aims=aims,
    )


def _gain_aim(name: str, ours: Curve, theirs: Curve, equal_s: float, published: float) -> str:
    """Throughput in times the baseline's: at the peak, and at equal latency."""
    gain, mine, other = ours.peak / theirs.peak, ours.load_at(equal_s), theirs.load_at(equal_s)
    equal = "" if mine is None or other is None else f", and {mine / other:.2f}x at equal latency"
    here = f"{gain:.2f}x at the peak{equal}"
    return aim(f"TreeLSTM, throughput over {name}", here, f"{published:g}x", gain >= published)

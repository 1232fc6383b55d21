"""BatchMaker's Figure 2.15: TreeLSTM on identical trees, against an ideal written by hand."""

from __future__ import annotations

from functools import partial

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.contenders import CELLULAR, tree_contenders
from minifuse.papers.batchmaker.ideal import against_ideal
from minifuse.papers.batchmaker.load import at_once, equal_caps, equal_panel, judged_equal, num_reports, sweep
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.experiment import Panel, Point, Say
from minifuse.papers.page import Drawn, tables


@experiment(
    "2.15",
    "TreeLSTM: identical trees, and the share of a hand-written ideal",
    "treelstm",
    other={"cpu": {"requests": 400, "shares": (0.1, 0.5, 1.2)}, "paper": {"shares": (0.1, 0.3, 1.2)}},
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure identical trees; a graph written by hand is the ideal."""
    one_size = (paper.TREE_BATCH,)
    say.expect(num_reports(setting, one_size) + 2 + 2 * setting.virtual)
    load = sweep(setting, say, tree_contenders(setting.virtual), "identical-trees", one_size)
    even = equal_caps(setting, say, "identical-trees")
    say(f"the ideal: {paper.CELLS_15} cells, batch after batch")
    ideal = against_ideal(setting, load, paper.TREE_BATCH, partial(ideal_s, setting, paper.TREE_BATCH))
    ours, dynet, _ = load.curves.values()
    peaks = {**{curve.contender.head: curve.peak for curve in load.curves.values()}, "ideal": ideal.rate}
    points = [
        Point(
            {"contender": name},
            {"peak": peak, "share": peak / ideal.rate},
            {"share": paper.SHARE_15 if name == "cellular" else None},
        )
        for name, peak in peaks.items()
    ]
    panels = (
        *load.panels("Fig. 2.15", "complete trees of 16 leaves"),
        Panel("Fig. 2.15: against the ideal", tables("batchmaker/fig2_15")[0], tuple(points)),
        equal_panel(even, "Fig. 2.15"),
    )
    return Drawn(
        panels,
        sweep=load.notes(),
        batches=load.batch_sizes,
        ideal=ideal,
        near=ideal.judged("Share of the ideal on identical trees", paper.NEAR_15),
        faster=_with_lstms_scheduling(setting, say) if setting.virtual else "",
        batch_s=paper.TREE_BATCH / ideal.rate,
        lowest=ours.lowest(),
        theirs=dynet.lowest(),
        dynet=dynet,
        # The ideal does not batch the cells of one tree with each other.
        ideal_is_slower=[
            paper.TREE_BATCH / rate > max(curve.of_round(number).lowest() for curve in (ours, dynet))
            for number, rate in enumerate(ideal.ideal)
        ],
        even=judged_equal(even),
    )


def _with_lstms_scheduling(setting: Setting, say: Say) -> str:
    """Judge the share of the ideal if scheduling takes as long as for the LSTM."""
    say("scheduling and gathering as fast as for the LSTM")
    other, one_size = setting.with_lstms_scheduling(), (paper.TREE_BATCH,)
    load = at_once(other, say, (CELLULAR,), "identical-trees", one_size)
    ideal = against_ideal(other, load, paper.TREE_BATCH, partial(ideal_s, other, paper.TREE_BATCH))
    what = f"Share of the ideal if they are not slowed, and the device {other.slowdown:.2f} times"
    return ideal.judged(what, paper.NEAR_15)


def ideal_s(setting: Setting, trees: int) -> float:
    """Return the seconds of one batch of trees, computed by hand-written code.

    It runs 16 leaf and 15 internal cells; each computes one node of all trees.
    """
    leaves = paper.LEAVES_15
    if setting.virtual:
        return leaves * setting.cost_s("leaf", trees) + (leaves - 1) * setting.cost_s("internal2", trees)
    words = [setting.words(trees) for _ in range(leaves)]

    def tree() -> None:
        run = setting.model.run
        level = [run("leaf", word) for word in words]
        while len(level) > 1:
            level = [run("internal2", *left, *right) for left, right in zip(level[::2], level[1::2], strict=True)]

    return setting.timed(tree)

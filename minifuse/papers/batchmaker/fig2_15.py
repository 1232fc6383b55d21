"""BatchMaker's Figure 2.15: TreeLSTM on identical trees, against an ideal written by hand."""

from __future__ import annotations

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.load import MERGED, num_reports, sweep
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.experiment import Panel, Point, Say
from minifuse.papers.page import Drawn, tables
from minifuse.papers.verdict import verdict


@experiment(
    "2.15",
    "TreeLSTM: identical trees, and the share of a hand-written ideal",
    "treelstm",
    other={"cpu": {"requests": 800}, "paper": {"requests": 3000}},
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure identical trees; a graph written by hand is the ideal."""
    say.expect(num_reports(setting, (paper.TREE_BATCH,)) + 1)
    load = sweep(setting, say, MERGED, "identical-trees", (paper.TREE_BATCH,))
    say(f"the ideal: {paper.CELLS_15} cells, batch after batch")
    batch_s = ideal_s(setting, paper.TREE_BATCH)
    ideal, ours = paper.TREE_BATCH / batch_s, load.curves["cellular"]
    peaks = {**{curve.contender.head: curve.peak for curve in load.curves.values()}, "ideal": ideal}
    points = [
        Point(
            {"contender": name},
            {"peak": peak, "share": peak / ideal},
            {"share": paper.SHARE_15 if name == "cellular" else None},
        )
        for name, peak in peaks.items()
    ]
    panels = (
        *load.panels("Fig. 2.15", "complete trees of 16 leaves"),
        Panel("Fig. 2.15: against the ideal", tables("batchmaker/fig2_15")[0], tuple(points)),
    )
    return Drawn(
        panels,
        sweep=load.notes(),
        batches=load.batch_sizes,
        ours=ours,
        ideal=ideal,
        share=ours.peak / ideal,
        near=verdict(
            "Share of the ideal on identical trees",
            [peak / ideal for peak in ours.peaks],
            paper.NEAR_15,
            f"{ours.peak / ideal:.1%}",
        ),
        batch_s=batch_s,
        lowest=ours.lowest(),
        ideal_is_slower=batch_s > ours.lowest(),  # the ideal does not batch the cells of one tree with each other
    )


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

"""BatchMaker's Figure 2.15: TreeLSTM on identical trees, and the share of an ideal that was written by hand."""

from __future__ import annotations

import minifuse.reproduce.batchmaker.paper as paper
from minifuse.reproduce.batchmaker.contenders import ABOUT_MERGED, MERGED, batch_sizes
from minifuse.reproduce.batchmaker.setting import BY_FIG_3, Setting, experiment
from minifuse.reproduce.experiment import Column, Finding, Panel, Point, Say, beside
from minifuse.reproduce.load import curve_panel, num_reports, peak_panel, sweep
from minifuse.reproduce.verdict import aim, shown, sweep_notes

IDEAL_COLUMNS = (
    Column("\n", "at", "contender", "{}"),
    Column("peak\nreq/s", "measured", "peak"),
    *beside("of the ideal", "share", "{:.0%}"),
)


def draw(setting: Setting, say: Say) -> Finding:
    """Identical trees, for which a graph written by hand is the ideal."""
    setting.start(say)
    say.expect(num_reports(setting, (paper.TREE_BATCH,)) + 1)
    load = sweep(setting, say, MERGED, "identical-trees", (paper.TREE_BATCH,))
    say(f"the ideal: {paper.CELLS_15} cells, batch after batch")
    batch_s = ideal_s(setting, paper.TREE_BATCH)
    ideal = paper.TREE_BATCH / batch_s
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
        curve_panel("Fig. 2.15: complete trees of 16 leaves", load),
        peak_panel("Fig. 2.15: peaks", load),
        Panel("Fig. 2.15: against the ideal", IDEAL_COLUMNS, tuple(points)),
    )
    least = load.curves["cellular"].lowest_p90
    notes = (
        *setting.notes(),
        ABOUT_MERGED,
        *sweep_notes(load, BY_FIG_3),
        batch_sizes(load),
        aim(
            "share of the ideal on identical trees",
            f"{peaks['cellular'] / ideal:.1%}, {shown(peaks['cellular'])} of {shown(ideal)} requests/s",
            f"about {paper.SHARE_15:.0%}",
            peaks["cellular"] >= paper.SHARE_15 * ideal,
        ),
        aim(  # which batches nothing of a tree with the rest of it
            "the ideal's latency is higher than ours",
            f"a batch of {paper.TREE_BATCH} trees takes it {batch_s * 1e3:.3g} ms, a request by cellular batching "
            f"{least * 1e3:.3g} ms at the 90th percentile of the lowest load",
            "it is, without numbers",
            batch_s > least,
        ),
    )
    return Finding(setting.facts(), panels, notes)


def ideal_s(setting: Setting, trees: int) -> float:
    """Seconds of the tree written by hand: 16 leaf and 15 internal cells, each for all of a batch of trees."""
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


EXPERIMENT = experiment(
    "2.15",
    "TreeLSTM: identical trees, and the share of a hand-written ideal",
    "treelstm",
    draw,
    other={"cpu": {"requests": 800}, "paper": {"requests": 3000}},
)

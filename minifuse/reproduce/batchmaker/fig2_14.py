"""BatchMaker's Figure 2.14: TreeLSTM, latency against throughput, cellular batching against merged graphs."""

from __future__ import annotations

import minifuse.reproduce.batchmaker.paper as paper
from minifuse.reproduce.batchmaker.contenders import ABOUT_MERGED, MERGED, batch_sizes
from minifuse.reproduce.batchmaker.setting import BY_FIG_3, Setting, experiment
from minifuse.reproduce.curve import Curve
from minifuse.reproduce.experiment import Column, Finding, Panel, Point, Say, Value
from minifuse.reproduce.load import curve_panel, num_reports, peak_panel, sweep
from minifuse.reproduce.verdict import aim, cut_aim, sweep_notes

PUBLISHED: dict[str, dict[str, Value]] = {
    "cellular": {"max_batch": paper.TREE_BATCH, "peak": paper.PEAK_14},
    "dynet": {"max_batch": paper.TREE_BATCH, "peak": paper.DYNET_PEAK_14},
    "fold": {"max_batch": paper.TREE_BATCH},
}
EQUAL_COLUMNS = (
    Column("\n", "at", "contender", "{}"),
    Column("peak\nreq/s", "measured", "peak"),
    Column("at equal p90\nreq/s", "measured", "equal"),
)


def draw(setting: Setting, say: Say) -> Finding:
    """Latency against throughput on trees like TreeBank's."""
    setting.start(say)
    say.expect(num_reports(setting, (paper.TREE_BATCH,)))
    load = sweep(setting, say, MERGED, "treebank", (paper.TREE_BATCH,))
    ours, dynet, fold = (load.curves[key] for key in ("cellular", "dynet", "fold"))
    equal_s = 2 * max(curve.lowest_p90 for curve in load.curves.values())
    points = [
        Point({"contender": curve.contender.head}, {"peak": curve.peak, "equal": curve.throughput_at(equal_s)}, {})
        for curve in load.curves.values()
    ]
    panels = (
        curve_panel("Fig. 2.14: trees like TreeBank's", load),
        peak_panel("Fig. 2.14: peaks", load, PUBLISHED),
        Panel(f"Fig. 2.14: throughput at a 90th percentile of {equal_s * 1e3:.3g} ms", EQUAL_COLUMNS, tuple(points)),
    )
    notes = (
        *setting.notes(),
        ABOUT_MERGED,
        *sweep_notes(load, BY_FIG_3),
        f"Throughput at equal latency: where the 90th percentile is {equal_s * 1e3:.3g} ms, twice the highest of the "
        "contenders' lowest, on straight lines between neighbouring rates of each curve; where a curve ends below "
        "that, its last rate's.",
        batch_sizes(load),
        f"Thesis, at {paper.MODERATE_14:,.0f} requests/s: {paper.P90_14} ms against {paper.DYNET_P90_14} ms of DyNet.",
        _gain_aim("DyNet", ours, dynet, equal_s, paper.GAIN_DYNET_14),
        cut_aim("TreeLSTM against DyNet,", ours, [dynet], paper.CUT_DYNET_14),
        _gain_aim("Fold", ours, fold, equal_s, paper.GAIN_FOLD_14),
        cut_aim("TreeLSTM against Fold,", ours, [fold], paper.CUT_FOLD_14),
    )
    return Finding(setting.facts(), panels, notes)


def _gain_aim(name: str, ours: Curve, theirs: Curve, equal_s: float, published: float) -> str:
    """Throughput in times the baseline's: at the peak, and at equal latency."""
    gain, mine, other = ours.peak / theirs.peak, ours.throughput_at(equal_s), theirs.throughput_at(equal_s)
    equal = "" if mine is None or other is None else f", and {mine / other:.2f}x at equal latency"
    here = f"{gain:.2f}x at the peak{equal}"
    return aim(f"TreeLSTM, throughput over {name}", here, f"{published:g}x", gain >= published)


EXPERIMENT = experiment(
    "2.14",
    "TreeLSTM: cellular against merged graphs, per operator and per cell",
    "treelstm",
    draw,
    other={"cpu": {"requests": 800}, "paper": {"requests": 3000}},
)

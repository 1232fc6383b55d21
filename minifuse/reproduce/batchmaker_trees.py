"""BatchMaker's experiments with a TreeLSTM: Figs. 2.14 and 2.15, cellular batching against merged graphs."""

from __future__ import annotations

import minifuse.reproduce.batchmaker_paper as paper
from minifuse.reproduce.batchmaker_load import Contender, Curve, throughput_at
from minifuse.reproduce.batchmaker_notes import aim, bounds, chosen, cut_aim, load_notes, shown
from minifuse.reproduce.batchmaker_panels import Load, curve_panel, measure, peak_panel
from minifuse.reproduce.batchmaker_setting import Setting
from minifuse.reproduce.experiment import Column, Finding, Panel, Point, Say, Value

__all__ = ["fig14", "fig15", "ideal_s"]


def merged(key: str, head: str, per: str) -> Contender:
    return Contender(key, head, "graph-merged", {"batching.per": per, "batching.overlap": True})


CONTENDERS = (
    Contender("cellular", "cellular", "cellular"),
    merged("dynet", "per operator", "operator"),
    merged("fold", "per cell", "cell"),
)
WHO = (
    "per operator and per cell are graph-merged: sets of input trees merged operator by operator as DyNet does, and "
    "cell by cell as TensorFlow Fold does. Both merge the next set while one runs, which the thesis' DyNet did not."
)


def fig14(setting: Setting, say: Say) -> Finding:
    """Latency against throughput on trees like TreeBank's."""
    load = measure(setting, say, CONTENDERS, "treebank", (paper.TREE_BATCH,))
    ours, dynet, fold = (load.curves[key] for key in ("cellular", "dynet", "fold"))
    told: dict[str, dict[str, Value]] = {
        "cellular": {"max_batch": paper.TREE_BATCH, "peak": paper.PEAK_14},
        "dynet": {"max_batch": paper.TREE_BATCH, "peak": paper.DYNET_PEAK_14},
        "fold": {"max_batch": paper.TREE_BATCH},
    }
    equal_s = 2 * max(curve.lowest_p90 for curve in load.curves.values())
    own = [
        WHO,
        chosen(load),
        bounds(load),
        f"Throughput at equal latency: where the 90th percentile is {equal_s * 1e3:.3g} ms, twice the highest of the "
        "contenders' lowest, on straight lines between neighbouring rates of each curve; where a curve ends below "
        "that, its last rate's.",
        _batches(load),
        f"Thesis, at {paper.MODERATE_14:,.0f} requests/s: {paper.P90_14} ms against {paper.DYNET_P90_14} ms of DyNet.",
    ]
    for name, theirs, gain, cut in (
        ("DyNet", dynet, paper.GAIN_DYNET_14, paper.CUT_DYNET_14),
        ("Fold", fold, paper.GAIN_FOLD_14, paper.CUT_FOLD_14),
    ):
        own += (_gain(name, ours, theirs, equal_s, gain), cut_aim(f"TreeLSTM against {name},", ours, [theirs], cut))
    points = [
        Point({"contender": curve.contender.head}, {"peak": curve.peak, "equal": throughput_at(curve, equal_s)}, {})
        for curve in load.curves.values()
    ]
    columns = (
        Column("\n", "at", "contender", "{}"),
        Column("peak\nreq/s", "measured", "peak"),
        Column("at equal p90\nreq/s", "measured", "equal"),
    )
    panels = (
        curve_panel("Fig. 2.14: trees like TreeBank's", load),
        peak_panel("Fig. 2.14: peaks", load, told),
        Panel(f"Fig. 2.14: throughput at a 90th percentile of {equal_s * 1e3:.3g} ms", columns, tuple(points)),
    )
    return Finding(setting.facts(), panels, (*load_notes(setting), *own))


def _batches(load: Load) -> str:
    """What 64 bounds: nodes of a task, or trees of a set whose batches are then larger."""
    sizes = ", ".join(
        f"{curve.contender.head} {curve.points[max(curve.points)].mean_batch:.1f}" for curve in load.curves.values()
    )
    return (
        f"{paper.TREE_BATCH} bounds the nodes of a cellular task, and the trees of a merged set, whose batches of "
        f"nodes may be larger, as in the thesis. Mean rows of a batch at each one's highest rate: {sizes}."
    )


def _gain(name: str, ours: Curve, theirs: Curve, equal_s: float, told: float) -> str:
    """Throughput in times the baseline's: at the peak, and at equal latency."""
    gain, mine, other = ours.peak / theirs.peak, throughput_at(ours, equal_s), throughput_at(theirs, equal_s)
    equal = "" if mine is None or other is None else f", and {mine / other:.2f}x at equal latency"
    return aim(f"TreeLSTM, throughput over {name}", f"{gain:.2f}x at the peak{equal}", f"{told:g}x", gain >= told)


def fig15(setting: Setting, say: Say) -> Finding:
    """Identical trees, where a graph that was written by hand is the ideal."""
    load = measure(setting, say, CONTENDERS, "identical-trees", (paper.TREE_BATCH,))
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
    columns = (
        Column("\n", "at", "contender", "{}"),
        Column("peak\nreq/s", "measured", "peak"),
        Column("of the ideal\npaper", "paper", "share", "{:.0%}"),
        Column("of the ideal\nhere", "measured", "share", "{:.0%}"),
    )
    panels = (
        curve_panel("Fig. 2.15: complete trees of 16 leaves", load),
        peak_panel("Fig. 2.15: peaks", load, {}),
        Panel("Fig. 2.15: against the ideal", columns, tuple(points)),
    )
    own = (
        WHO,
        chosen(load),
        bounds(load),
        _batches(load),
        aim(
            "share of the ideal on identical trees",
            f"{peaks['cellular'] / ideal:.1%}, {shown(peaks['cellular'])} of {shown(ideal)} requests/s",
            f"about {paper.SHARE_15:.0%}",
            peaks["cellular"] >= paper.SHARE_15 * ideal,
        ),
        _latency(load, batch_s),
    )
    return Finding(setting.facts(), panels, (*load_notes(setting), *own))


def _latency(load: Load, batch_s: float) -> str:
    """What the ideal pays: nothing of a tree is batched with the rest of it."""
    least = load.curves["cellular"].lowest_p90
    return aim(
        "the ideal's latency is higher than ours",
        f"a batch of {paper.TREE_BATCH} trees takes it {batch_s * 1e3:.3g} ms, a request by cellular batching "
        f"{least * 1e3:.3g} ms at the 90th percentile of the lowest load",
        "it is, without numbers",
        batch_s > least,
    )


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

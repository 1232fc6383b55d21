"""BatchMaker's Figure 2.13: Seq2Seq on several workers, with one largest batch and with one for each type of cell."""

from __future__ import annotations

import minifuse.reproduce.batchmaker_paper as paper
from minifuse.reproduce.batchmaker_chains import padded
from minifuse.reproduce.batchmaker_load import Contender
from minifuse.reproduce.batchmaker_notes import aim, bounds, chosen, cut_aim, gain_aim, load_notes
from minifuse.reproduce.batchmaker_panels import curve_panel, measure, peak_panel
from minifuse.reproduce.batchmaker_setting import Setting
from minifuse.reproduce.experiment import Finding, Panel, Say, Value

__all__ = ["WORKERS", "fig13"]

WORKERS = {"quick": (1, 2), "cpu": (1, 2), "paper": tuple(paper.PEAK_13)}
BASELINES = ("longest", "bucket")
SIZES = f"{paper.ENCODER_BATCH_13} for encoders, {paper.DECODER_BATCH_13} for decoders and for padded batches"


def fig13(setting: Setting, say: Say) -> Finding:
    """Latency against throughput for each number of workers."""
    panels: list[Panel] = []
    own: list[str] = []
    scale = setting.conditions.scale
    for workers in WORKERS[scale]:
        contenders = (
            Contender("one", "one size", "cellular", {"batching.workers": workers}),
            Contender("two", "two sizes", "cellular", {"batching.workers": workers}, twice="encoder"),
            *(padded(pad, pad, pad, workers=workers) for pad in BASELINES),
        )
        who = f"{workers} worker{'s' if workers > 1 else ''}"
        say(who)
        load = measure(setting, say, contenders, "wmt15", setting.scale.sizes)
        peak = paper.PEAK_13.get(workers) if scale == "paper" else None
        decoder: dict[str, Value] = {"max_batch": paper.DECODER_BATCH_13, "peak": peak}
        told: dict[str, dict[str, Value]] = {"two": decoder, "one": {"max_batch": paper.DECODER_BATCH_13}}
        panels += (curve_panel(f"Fig. 2.13: {who}", load), peak_panel(f"Fig. 2.13: peaks, {who}", load, told))
        one, two = load.curves["one"], load.curves["two"]
        ours = max(one, two, key=lambda curve: curve.peak)
        gain = two.peak / one.peak - 1
        own += (
            f"({who}) {chosen(load, SIZES)}",
            f"({who}) {bounds(load)}",
            gain_aim(f"Seq2Seq, {who},", ours, load.stronger(*BASELINES), paper.GAIN_13),
            cut_aim(f"Seq2Seq, {who},", ours, [load.curves[name] for name in BASELINES], paper.CUTS_13),
            aim(
                f"two sizes over one, {who}",
                f"{gain:+.1%}",
                f"{paper.TWO_SIZES_13[0]:+.1%} to {paper.TWO_SIZES_13[1]:+.1%}",
                gain >= paper.TWO_SIZES_13[0],
            ),
        )
    sizes = setting.source.config.sizes
    share = sizes["decoder"] / sum(sizes.values())
    devices = (
        "Workers are devices of their own."
        if setting.virtual
        else "Workers share the cores of one machine, each with its part of the threads."
    )
    common = (
        f"One size: the same largest batch for both cells. Two sizes: twice that for the encoder, as the thesis' "
        f"{paper.ENCODER_BATCH_13} and {paper.DECODER_BATCH_13}. longest and bucket are graph-padded. {devices}",
        f"At equal lengths decoding is {share:.0%} of the arithmetic here (thesis: {paper.DECODING_13:.0%}), the "
        f"vocabulary being {setting.source.config.vocab_size:,} words (thesis: {paper.VOCAB:,}).",
    )
    return Finding(setting.facts(), tuple(panels), (*load_notes(setting), *common, *own))

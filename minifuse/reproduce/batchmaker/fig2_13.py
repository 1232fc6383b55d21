"""BatchMaker's Figure 2.13: Seq2Seq on several workers, with one largest batch and with one for each type of cell."""

from __future__ import annotations

import minifuse.reproduce.batchmaker.paper as paper
from minifuse.reproduce.batchmaker.contenders import BASELINES, padded
from minifuse.reproduce.batchmaker.setting import Setting, experiment
from minifuse.reproduce.curve import Contender
from minifuse.reproduce.experiment import Finding, Panel, Say, Value
from minifuse.reproduce.load import curve_panel, num_reports, peak_panel, sweep
from minifuse.reproduce.verdict import aim, cut_aim, gain_aim, sweep_notes

WORKERS = {"quick": (1, 2), "cpu": (1, 2), "paper": tuple(paper.PEAK_13)}
SIZES = f"{paper.ENCODER_BATCH_13} for encoders, {paper.DECODER_BATCH_13} for decoders and for padded batches"


def draw(setting: Setting, say: Say) -> Finding:
    """Latency against throughput for each number of workers."""
    setting.start(say)
    panels: list[Panel] = []
    sizes = setting.source.config.sizes
    share = sizes["decoder"] / sum(sizes.values())
    devices = (
        "Workers are devices of their own."
        if setting.virtual
        else "Workers share the cores of one machine, each with its part of the threads."
    )
    notes = [
        *setting.notes(),
        f"One size: the same largest batch for both cells. Two sizes: twice that for the encoder, as the thesis' "
        f"{paper.ENCODER_BATCH_13} and {paper.DECODER_BATCH_13}. longest and bucket are graph-padded. {devices}",
        f"At equal lengths decoding is {share:.0%} of the arithmetic here (thesis: {paper.DECODING_13:.0%}), the "
        f"vocabulary being {setting.source.config.vocab_size:,} words (thesis: {paper.VOCAB:,}).",
    ]
    scale = setting.conditions.scale
    say.expect(len(WORKERS[scale]) * (1 + num_reports(setting)))
    for workers in WORKERS[scale]:
        contenders = (
            Contender("one", "one size", "cellular", {"batching.workers": workers}),
            Contender("two", "two sizes", "cellular", {"batching.workers": workers}, twice="encoder"),
            *(padded(pad, pad, pad, workers=workers) for pad in BASELINES),
        )
        where = f"{workers} worker{'s' if workers > 1 else ''}"
        say(where)
        load = sweep(setting, say, contenders, "wmt15", where=where)
        peak = paper.PEAK_13.get(workers) if scale == "paper" else None
        published: dict[str, dict[str, Value]] = {
            "one": {"max_batch": paper.DECODER_BATCH_13},
            "two": {"max_batch": paper.DECODER_BATCH_13, "peak": peak},
        }
        panels += (
            curve_panel(f"Fig. 2.13: {where}", load),
            peak_panel(f"Fig. 2.13: peaks, {where}", load, published),
        )
        one, two = load.curves["one"], load.curves["two"]
        ours = max(one, two, key=lambda curve: curve.peak)
        gain = two.peak / one.peak - 1
        notes += (
            *sweep_notes(load, SIZES, where),
            gain_aim(f"Seq2Seq, {where},", ours, load.stronger(*BASELINES), paper.GAIN_13),
            cut_aim(f"Seq2Seq, {where},", ours, [load.curves[name] for name in BASELINES], paper.CUTS_13),
            aim(
                f"two sizes over one, {where}",
                f"{gain:+.1%}",
                f"{paper.TWO_SIZES_13[0]:+.1%} to {paper.TWO_SIZES_13[1]:+.1%}",
                gain >= paper.TWO_SIZES_13[0],
            ),
        )
    return Finding(setting.facts(), tuple(panels), tuple(notes))


EXPERIMENT = experiment(
    "2.13",
    "Seq2Seq on several workers, with one and with two largest batches",
    "seq2seq",
    draw,
    other={"cpu": {"requests": 400}, "paper": {"requests": 4000}},
)

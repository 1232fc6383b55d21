"""BatchMaker's Figure 2.13: Seq2Seq on several workers, with one or two batch-size limits.

With two, encoder and decoder cells have limits of their own.
"""

from __future__ import annotations

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.contenders import BASELINES, fullest, padded
from minifuse.papers.batchmaker.load import (
    Load,
    against_fullest,
    higher_capacity,
    higher_peak,
    lower_p90,
    num_reports,
    sweep,
)
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.curve import Contender
from minifuse.papers.experiment import Panel, Say, Values
from minifuse.papers.numbers import told
from minifuse.papers.page import Drawn
from minifuse.papers.verdict import Claim, verdict

WORKERS = {"quick": (1, 2), "cpu": (1, 2), "paper": tuple(paper.PEAK_13)}
FIRST = (
    Contender("decoder", "decoders first", "cellular", twice="encoder"),
    Contender("encoder", "encoders first", "cellular", {"batching.priorities": "encoder,decoder"}, twice="encoder"),
)
FIRST_SHARES = (0.75, 1.2)
SIZES = f"{paper.ENCODER_BATCH_13} for encoders, {paper.DECODER_BATCH_13} for decoders and for padded batches"


@experiment(
    "2.13",
    "Seq2Seq on several workers, with one and with two largest batches",
    "seq2seq",
    other={
        "cpu": {"hidden": 512, "requests": 300, "shares": (0.15, 0.4, 1.2)},
        "paper": {"sizes": (paper.DECODER_BATCH_13,), "shares": (0.08, 0.4, 1.2)},
    },
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure latency against throughput for each number of workers.

    On one worker, encoders before decoders are an ablation that the thesis does not have.
    """
    scale, sizes = setting.conditions.scale, setting.source.config.sizes
    panels: list[Panel] = []
    verdicts: list[str] = []
    decoder_size = (min(paper.DECODER_BATCH_13, max(setting.sizes)),)
    say.expect(len(WORKERS[scale]) * (1 + num_reports(setting)) + num_reports(setting, decoder_size, FIRST_SHARES))
    for workers in WORKERS[scale]:
        contenders = (
            Contender("one", "one size", "cellular", {"batching.workers": workers}),
            Contender("two", "two sizes", "cellular", {"batching.workers": workers}, twice="encoder"),
            *(padded(pad, pad, pad, workers=workers) for pad in BASELINES),
            *([fullest(workers=workers)] if setting.virtual else ()),
        )
        where = f"{workers} worker{'s' if workers > 1 else ''}"
        say(where)
        load = sweep(setting, say, contenders, "wmt15", where=where)
        published: dict[str, Values] = {
            "one": {"max_batch": paper.DECODER_BATCH_13},
            "two": {"max_batch": paper.DECODER_BATCH_13, "peak": paper.PEAK_13.get(workers)},
        }
        panels += load.panels("Fig. 2.13", where, setting.published(published), f", {where}")
        verdicts += _verdicts(load, where)
        if setting.virtual:
            rounds, claim = load.curves["two"].peaks, Claim.about(paper.PEAK_13[workers], "{:,.0f} requests/s")
            verdicts.append(verdict(f"Peak of two sizes, {where}", rounds, claim, told(rounds, "{:,.0f}")))
    alone = sweep(setting, say, FIRST, "wmt15", decoder_size, FIRST_SHARES, "1 worker")
    panels += alone.panels("Fig. 2.13", "1 worker, which cells go first", where=", which cells go first")
    decoders, encoders = alone.curves.values()
    return Drawn(
        panels,
        first_peaks=told(encoders.over(decoders)),
        first_p90=[f"{one.lowest() * 1e3:.3g} ms {one.contender.head}" for one in (decoders, encoders)],
        first_batches=alone.batch_sizes,
        decoding=sizes["decoder"] / sum(sizes.values()),
        by_workers=verdicts,
    )


def _verdicts(load: Load, where: str) -> tuple[str, ...]:
    """Judge the better of both contenders against padding, and two sizes against one."""
    one, two, filled = load.curves["one"], load.curves["two"], load.curves.get("fullest")
    ours = max(one, two, key=lambda curve: curve.peak)
    more = () if filled is None else against_fullest(f"Seq2Seq, {where},", ours, filled, paper.GAIN_13, paper.CUTS_13)
    return (
        *load.notes(where, SIZES),
        higher_peak(f"Seq2Seq, {where},", ours, load.stronger(*BASELINES), paper.GAIN_13),
        higher_capacity(f"Seq2Seq, {where},", ours, [load.curves[name] for name in BASELINES], paper.GAIN_13),
        lower_p90(f"Seq2Seq, {where},", ours, [load.curves[name] for name in BASELINES], paper.CUTS_13),
        *more,
        higher_peak(f"two sizes over one, {where},", two, one, paper.TWO_SIZES_13),
    )

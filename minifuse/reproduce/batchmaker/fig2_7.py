"""BatchMaker's Figure 2.7: LSTM, latency against throughput, cellular batching against padded batches."""

from __future__ import annotations

import minifuse.reproduce.batchmaker.paper as paper
from minifuse.reproduce.batchmaker.contenders import ABOUT_PADDED, BASELINES, PADDED
from minifuse.reproduce.batchmaker.setting import BY_FIG_3, Setting, experiment
from minifuse.reproduce.experiment import Finding, Say, Value
from minifuse.reproduce.load import curve_panel, num_reports, peak_panel, sweep
from minifuse.reproduce.verdict import cut_aim, gain_aim, sweep_notes

PUBLISHED: dict[str, dict[str, Value]] = {
    "cellular": {"max_batch": paper.MAX_BATCH, "peak": paper.PEAK_7, "p90_ms": paper.P90_7},
    "bucket": {"max_batch": paper.MAX_BATCH, "p90_ms": paper.BASELINE_P90_7},
}


def draw(setting: Setting, say: Say) -> Finding:
    """Latency against throughput: (a) with the largest batch that suits each, (b) with 64."""
    setting.start(say)
    small = min(paper.SMALL_BATCH_7, max(setting.sizes))
    say.expect(num_reports(setting) + num_reports(setting, (small,)))
    best = sweep(setting, say, PADDED, "wmt15")
    equal = sweep(setting, say, PADDED, "wmt15", (small,))
    ours, baselines = best.curves["cellular"], [best.curves[name] for name in BASELINES]
    panels = (
        curve_panel("Fig. 2.7a: each with its best largest batch", best),
        peak_panel("Fig. 2.7a: peaks", best, PUBLISHED),
        curve_panel(f"Fig. 2.7b: batches of up to {small}", equal),
        peak_panel("Fig. 2.7b: peaks", equal),
    )
    notes = (
        *setting.notes(),
        ABOUT_PADDED,
        *sweep_notes(best, BY_FIG_3, "2.7a"),
        gain_aim("LSTM,", ours, best.stronger(*BASELINES), paper.GAIN_7),
        cut_aim("LSTM,", ours, baselines, paper.CUTS_7),
        f"In the thesis the baselines' latency exceeds 500 ms at {paper.SLOWEST_7:,.0f} requests/s, and BatchMaker's "
        f"does not change up to {paper.FLAT_7:,.0f}.",
        *sweep_notes(equal, BY_FIG_3, "2.7b"),
    )
    return Finding(setting.facts(), panels, notes)


EXPERIMENT = experiment("2.7", "LSTM: latency against throughput, cellular against padded batching", "lstm", draw)

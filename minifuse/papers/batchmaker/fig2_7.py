"""BatchMaker's Figure 2.7: latency and throughput of LSTM, cellular or in padded batches."""

from __future__ import annotations

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.load import BASELINES, PADDED, higher_peak, lower_p90, num_reports, sweep
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.experiment import Say, Values
from minifuse.papers.page import Drawn

PUBLISHED: dict[str, Values] = {
    "cellular": {"max_batch": paper.MAX_BATCH, "peak": paper.PEAK_7, "p90_ms": paper.P90_7},
    "bucket": {"max_batch": paper.MAX_BATCH, "p90_ms": paper.BASELINE_P90_7},
}


@experiment(
    "2.7",
    "LSTM: latency against throughput, cellular against padded batching",
    "lstm",
    other={"paper": {"requests": paper.REQUESTS, "shares": (0.1, 0.25, 0.4, 0.7, 0.95, 1.2)}},
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure latency against throughput: (a) with the best batch-size limits, (b) with 64.

    There are no more requests in (b) than for the choice of batch-size limits in (a).
    """
    small = min(paper.SMALL_BATCH_7, max(setting.sizes))
    few = min(setting.num_requests, setting.choosing)
    say.expect(num_reports(setting) + num_reports(setting, (small,)))
    best = sweep(setting, say, PADDED, "wmt15")
    equal = sweep(setting, say, PADDED, "wmt15", (small,), most=few)
    ours, baselines = best.curves["cellular"], [best.curves[name] for name in BASELINES]
    panels = (
        *best.panels("Fig. 2.7a", "each with its best largest batch", PUBLISHED),
        *equal.panels("Fig. 2.7b", f"batches of up to {small}"),
    )
    return Drawn(
        panels,
        best=best.notes("2.7a"),
        aims=(
            higher_peak("LSTM,", ours, best.stronger(*BASELINES), paper.GAIN_7),
            lower_p90("LSTM,", ours, baselines, paper.CUTS_7),
        ),
        equal=equal.notes("2.7b"),
        few=few,
    )

"""BatchMaker's Figure 2.7: latency and throughput of LSTM, cellular or in padded batches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.contenders import BASELINES, PADDED, padded_contenders
from minifuse.papers.batchmaker.load import (
    against_fullest,
    best_p90,
    higher_capacity,
    higher_peak,
    lower_p90,
    num_reports,
    sweep,
)
from minifuse.papers.batchmaker.setting import Setting, experiment
from minifuse.papers.curve import Curve
from minifuse.papers.experiment import Mark, Say, Values
from minifuse.papers.numbers import shown, told
from minifuse.papers.page import Drawn
from minifuse.papers.verdict import Claim, by_rate, verdict

SLOW_S = 0.5  # the 90th percentile that the baselines exceed in the thesis "as the load increases to 16K"
PUBLISHED: dict[str, Values] = {
    "cellular": {"max_batch": paper.MAX_BATCH, "peak": paper.PEAK_7, "p90_ms": paper.P90_7},
    "bucket": {"max_batch": paper.MAX_BATCH, "p90_ms": paper.BASELINE_P90_7},
}


@experiment(
    "2.7",
    "LSTM: latency against throughput, cellular against padded batching",
    "lstm",
    other={"paper": {"requests": paper.REQUESTS, "shares": (0.1, 0.15, 0.25, 0.4, 0.8, 1.2)}},
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure latency against throughput: (a) with the best batch-size limits, (b) with 64.

    In virtual time (a) also has padded batching that serves the fullest bucket first. There are no more requests in (b)
    than for the choice of batch-size limits in (a).
    """
    small = min(paper.SMALL_BATCH_7, max(setting.sizes))
    few = min(setting.num_requests, setting.choosing)
    say.expect(num_reports(setting) + num_reports(setting, (small,)))
    best = sweep(setting, say, padded_contenders(setting.virtual), "wmt15")
    equal = sweep(setting, say, PADDED, "wmt15", (small,), most=few)
    ours, baselines = best.curves["cellular"], [best.curves[name] for name in BASELINES]
    thesis = _marks(ours) if setting.virtual else ()
    panels = (
        *best.panels("Fig. 2.7a", "each with its best largest batch", setting.published(PUBLISHED), marks=thesis),
        *equal.panels("Fig. 2.7b", f"batches of up to {small}"),
    )
    return Drawn(
        panels,
        best=best.notes("2.7a"),
        aims=(
            higher_peak("LSTM,", ours, best.stronger(*BASELINES), paper.GAIN_7),
            lower_p90("LSTM,", ours, baselines, paper.CUTS_7),
            *(_absolute(ours, baselines) if setting.virtual else ()),
        ),
        at_once=higher_capacity("LSTM,", ours, baselines, paper.GAIN_7),
        fullest=against_fullest("LSTM", ours, best.curves["fullest"], paper.GAIN_7, paper.CUTS_7)
        if setting.virtual
        else (),
        equal=equal.notes("2.7b"),
        few=few,
    )


def _marks(ours: Curve) -> list[Mark]:
    """Place the latencies that the thesis' text gives in the picture."""
    low = ours.points[min(ours.points)]["throughput"]
    return [
        Mark(paper.FLAT_7, paper.P90_7, "thesis: cellular, up to here"),
        Mark(low, paper.BASELINE_P90_7, "thesis: the baselines' lowest"),
        Mark(paper.SLOWEST_7, 1e3 * SLOW_S, "thesis: the baselines, from here on"),
    ]


def _absolute(ours: Curve, baselines: Sequence[Curve]) -> list[str]:
    """Judge throughput and latencies by the thesis' own numbers."""
    lowest, best = ours.points[min(ours.points)].each("p90"), best_p90(baselines)
    growth = {
        rate: [p90 / least for p90, least in zip(one.each("p90"), lowest, strict=True)]
        for rate, one in ours.points.items()
        if rate < paper.FLAT_7
    }
    found = [
        ("Peak of cellular batching", ours.peaks, Claim.about(paper.PEAK_7, "{:,.0f} requests/s"), "{:,.0f}"),
        (
            "90th percentile of cellular batching at low load",
            _ms(lowest),
            Claim.about(paper.P90_7, "{:g} ms"),
            "{:.3g} ms",
        ),
        ("The better baseline's", _ms(best[min(best)]), Claim.about(paper.BASELINE_P90_7, "{:g} ms"), "{:.3g} ms"),
    ]
    slow = [slow_from([curve.of_round(number) for curve in baselines]) for number in range(len(lowest))]
    return [
        *(verdict(what, rounds, claim, told(rounds, form)) for what, rounds, claim, form in found),
        by_rate(
            f"90th percentile of cellular batching over the lowest, up to {shown(paper.FLAT_7)}",
            growth,
            Claim("unchanged, within 10%", 0.9, 1.1),
        ),
        verdict(
            f"Load at which the better baseline's 90th percentile reaches {1e3 * SLOW_S:g} ms",
            [least for least, _ in slow],
            Claim.about(paper.SLOWEST_7, "{:,.0f} requests/s"),
            told([least for least, _ in slow], "{:,.0f}"),
            upper=[most for _, most in slow],
        ),
    ]


def slow_from(baselines: Sequence[Curve]) -> tuple[float, float]:
    """Bound the requests per second at which the best p90 reaches `SLOW_S`."""
    least = max(curve.load_at(SLOW_S, "rate") or 0.0 for curve in baselines)
    return least, math.inf if any(curve.last["p90"] < SLOW_S for curve in baselines) else least


def _ms(seconds: Sequence[float]) -> list[float]:
    return [1e3 * one for one in seconds]

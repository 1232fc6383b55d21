"""Pensieve's Figure 3.14 (section 3.6.3): its eviction policy against the least recently used."""

from __future__ import annotations

from collections.abc import Sequence

from minifuse.reproduce.curve import Curve
from minifuse.reproduce.experiment import Column, Panel, Say
from minifuse.reproduce.pensieve.serving import BY_FIG_4, LRU, PENSIEVE, Serving, experiment
from minifuse.reproduce.pensieve.sweeps import Sweep, curves_panel
from minifuse.reproduce.pensieve.talked import Talked
from minifuse.reproduce.verdict import aim

FEWER, HITS = 0.146, 4.4  # recomputed tokens, and points of the hit rate: up to so much better than LRU

# Slow users, so that many conversations are remembered and the host is full: in virtual time rates grow until it is.
OTHER = {"cpu": {"shares": (1.0, 1.3), "second": 1 / 16}}

CONTENDERS = (PENSIEVE, BY_FIG_4, LRU)
COLUMNS = tuple(
    Column(f"{one.head}\n{what}", "measured", f"{one.key}_{name}", form)
    for one in CONTENDERS
    for what, name, form in (("hits", "hits", "{:.1%}"), ("recomp.", "recomputed", "{:,.0f}"))
)


def draw(servings: Sequence[Serving], say: Say) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """Latency against throughput, hit rates and recomputed tokens of both policies."""
    (serving,) = servings
    say.expect(serving.num_reports())
    sweep = serving.sweep(say, f"Fig. 3.14: {serving.source.name.removeprefix('random:')}", CONTENDERS)
    context, share = serving.attention_share()
    about = (
        "Pensieve's policy takes what a chunk costs to compute again from this machine, where attention to "
        f"{context:,} tokens of context adds {share:.0%} to everything else: the less it adds, the more the time alone "
        "decides, as for LRU. Under Fig. 3.4 the same policy takes attention to 4,096 tokens to cost as much as all "
        "the rest, which is what minifuse assumes of the thesis' figure where it knows no machine."
    )
    return (curves_panel(sweep, COLUMNS),), (about, *_verdicts(sweep, "pensieve"), *_verdicts(sweep, "by_fig_4"))


def _verdicts(sweep: Sweep, name: str) -> tuple[str, str]:
    """Recomputed tokens and hit rates of a contender against those of LRU, at the rates at which both were measured."""
    ours, lru = (_talked(sweep.curves[key]) for key in (name, "lru"))
    head = sweep.curves[name].contender.head
    rates = [rate for rate in ours if rate in lru]
    few, many = (sum(outcomes[rate].recomputed for rate in rates) for outcomes in (ours, lru))
    fewer = {rate: 1 - ours[rate].recomputed / lru[rate].recomputed for rate in rates if lru[rate].recomputed}
    more = {rate: 100 * (ours[rate].hits - lru[rate].hits) for rate in rates}
    by_rate = ", ".join(f"{-part:+.1%} at {rate:.3g}" for rate, part in fewer.items())
    best = max(more, key=more.__getitem__)
    return (
        aim(
            f"recomputed tokens, {head} against LRU, of all rates",
            f"{few / many - 1:+.1%} (by requests/s: {by_rate})" if many else "nothing was dropped at any rate",
            f"up to {-FEWER:.1%}",
            1 - few / many >= FEWER if many else None,
        ),
        aim(
            f"hit rate, {head} against LRU, where it is highest",
            f"{more[best]:+.1f} points at {best:.3g} requests/s",
            f"up to {HITS:+.1f} points",
            more[best] >= HITS,
        ),
    )


def _talked(curve: Curve) -> dict[float, Talked]:
    return {rate: outcome for rate, outcome in curve.points.items() if isinstance(outcome, Talked)}


EXPERIMENT = experiment(
    "3.14",
    "eviction policies: latency, hit rates and recomputed tokens, cost-aware against LRU",
    ("opt-13b-16k",),
    draw,
    OTHER,
)

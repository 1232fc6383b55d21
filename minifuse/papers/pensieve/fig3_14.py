"""Pensieve's Figure 3.14 (section 3.6.3): its eviction policy against the least recently used."""

from __future__ import annotations

from minifuse.papers.experiment import Column, Say
from minifuse.papers.page import Drawn
from minifuse.papers.pensieve.serving import BY_FIG_4, LRU, PENSIEVE, Servings, experiment
from minifuse.papers.pensieve.sweeps import Sweep
from minifuse.papers.verdict import aim

FEWER, HITS = 0.146, 4.4  # recomputed tokens, and points of the hit rate: up to so much better than LRU

# Slow users, so that many conversations are remembered and the host is full: in virtual time rates grow until it is.
OTHER = {"cpu": {"shares": (1.0, 1.3), "second": 1 / 16}}

CONTENDERS = (PENSIEVE, BY_FIG_4, LRU)
COLUMNS = tuple(
    Column(f"{one.head}\n{what}", "measured", f"{one.key}_{name}", form)
    for one in CONTENDERS
    for what, name, form in (("hits", "hits", "{:.1%}"), ("recomp.", "recomputed", "{:,.0f}"))
)


@experiment(
    "3.14",
    "eviction policies: latency, hit rates and recomputed tokens, cost-aware against LRU",
    ("opt-13b-16k",),
    OTHER,
    page="pensieve/fig3_14",
)
def figure(servings: Servings, say: Say) -> Drawn:
    """Latency against throughput, hit rates and recomputed tokens of both policies."""
    (serving,) = servings
    say.expect(serving.num_reports())
    sweep = serving.sweep(say, f"Fig. 3.14: {serving.title}", CONTENDERS)
    context, share = serving.attention_share()
    found = (*verdicts(sweep, "pensieve"), *verdicts(sweep, "by_fig_4"))
    return Drawn([sweep.panel(COLUMNS)], context=context, share=share, verdicts=found)


def verdicts(sweep: Sweep, name: str) -> tuple[str, str]:
    """Recomputed tokens and hit rates against LRU, at the rates of both curves."""
    ours, lru = sweep.curves[name], sweep.curves["lru"]
    both = {rate: (ours.points[rate], lru.points[rate]) for rate in ours.points if rate in lru.points}
    few, many = (sum(outcomes[i]["recomputed"] for outcomes in both.values()) for i in range(2))
    fewer = {
        rate: 1 - mine["recomputed"] / theirs["recomputed"]
        for rate, (mine, theirs) in both.items()
        if theirs["recomputed"]
    }
    more = {rate: 100 * (mine["hits"] - theirs["hits"]) for rate, (mine, theirs) in both.items()}
    by_rate = ", ".join(f"{-part:+.1%} at {rate:.3g}" for rate, part in fewer.items())
    best = max(more, key=more.__getitem__)
    return (
        aim(
            f"recomputed tokens, {ours.contender.head} against LRU, of all rates",
            f"{few / many - 1:+.1%} (by requests/s: {by_rate})" if many else "nothing was dropped at any rate",
            f"up to {-FEWER:.1%}",
            1 - few / many >= FEWER if many else None,
        ),
        aim(
            f"hit rate, {ours.contender.head} against LRU, where it is highest",
            f"{more[best]:+.1f} points at {best:.3g} requests/s",
            f"up to {HITS:+.1f} points",
            more[best] >= HITS,
        ),
    )

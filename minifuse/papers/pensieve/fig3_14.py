"""Pensieve's Figure 3.14 (section 3.6.3): its eviction policy against LRU."""

from __future__ import annotations

from minifuse.papers.experiment import Column, Say
from minifuse.papers.page import Drawn
from minifuse.papers.pensieve.serving import BY_FIG_4, LRU, PENSIEVE, Servings, experiment
from minifuse.papers.pensieve.sweeps import Sweep
from minifuse.papers.verdict import Claim, by_rate

FEWER, HITS = 0.146, 4.4  # the thesis' largest gains over LRU: part of recomputed tokens, points of hit rate

# Users are slow, so that many conversations are kept and fill the host. In virtual time, rates grow until it is full.
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
    """Measure latency, hit rates and recomputed tokens of both eviction policies."""
    (serving,) = servings
    say.expect(serving.num_reports())
    sweep = serving.sweep(say, f"Fig. 3.14: {serving.title}", CONTENDERS)
    context, share = serving.attention_share()
    found = (*verdicts(sweep, "pensieve"), *verdicts(sweep, "by_fig_4"))
    return Drawn([sweep.panel(COLUMNS)], context=context, share=share, verdicts=found)


def verdicts(sweep: Sweep, name: str) -> tuple[str, ...]:
    """Judge recomputed tokens, hit rates and p90 against LRU, at each common rate."""
    ours, lru = sweep.curves[name], sweep.curves["lru"]
    fewer, more, faster = ({rate: list[float]() for rate in ours.points if rate in lru.points} for _ in range(3))
    for rate in fewer:
        for mine, theirs in zip(ours.points[rate].rounds, lru.points[rate].rounds, strict=True):
            if theirs["recomputed"]:
                fewer[rate].append(1 - mine["recomputed"] / theirs["recomputed"])
            more[rate].append(100 * (mine["hits"] - theirs["hits"]))
            faster[rate].append(1 - mine["p90"] / theirs["p90"])
    dropped = {rate: rounds for rate, rounds in fewer.items() if rounds}
    whose = f"{ours.contender.head} against LRU"
    return (
        by_rate(f"fewer recomputed tokens, {whose}", dropped, Claim(f"up to {FEWER:.1%}", 0.0, FEWER), "{:.1%}"),
        by_rate(f"higher hit rate, {whose}", more, Claim(f"up to {HITS:g} points", 0.0, HITS), "{:.1f}"),
        by_rate(f"lower p90, {whose}", faster, Claim("lower, without a number", 0.0), "{:.1%}"),
    )

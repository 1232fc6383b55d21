"""Pensieve's Figure 3.14 (section 3.6.3): its eviction policy against the least recently used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minifuse.reproduce.experiment import Column, Panel, Say
from minifuse.reproduce.pensieve.serving import LRU, PENSIEVE, Serving, experiment
from minifuse.reproduce.pensieve.sweeps import Sweep, curves_panel
from minifuse.reproduce.pensieve.talked import Talked
from minifuse.reproduce.verdict import aim

__all__ = ["EXPERIMENT"]

FEWER, HITS = 0.146, 0.044  # recomputed tokens and hit rate: up to so much better than LRU

COLUMNS = tuple(
    Column(f"{head}\n{what}", "measured", f"{key}_{name}", form)
    for key, head in (("pensieve", "pensieve"), ("lru", "LRU"))
    for what, name, form in (("on device", "device_hits", "{:.1%}"), ("on host", "host_hits", "{:.1%}"))
) + tuple(Column(f"{key}\nrecomp.", "measured", f"{key}_recomputed", "{:,.0f}") for key in ("pensieve", "lru"))


def draw(servings: Sequence[Serving], say: Say) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """Latency against throughput, hit rates and recomputed tokens of both policies."""
    (serving,) = servings[:1]
    say.expect(serving.num_reports())
    sweep = serving.sweep(say, f"Fig. 3.14: {serving.source.name.removeprefix('random:')}", (PENSIEVE, LRU))
    panel = curves_panel(sweep, COLUMNS)
    return (panel,), tuple(_verdicts(sweep))


def _verdicts(sweep: Sweep) -> Sequence[str]:
    pairs = _pairs(sweep)
    fewer = {rate: 1 - ours.recomputed / lru.recomputed for rate, (ours, lru) in pairs.items() if lru.recomputed}
    more = {
        rate: ours.device_hits + ours.host_hits - lru.device_hits - lru.host_hits for rate, (ours, lru) in pairs.items()
    }
    return (
        aim(
            "recomputed tokens, at the rate at which they are fewest against LRU's",
            _best(fewer, "fewer") if fewer else "nothing was dropped at any rate",
            f"up to {FEWER:.1%} fewer",
            max(fewer.values()) >= FEWER if fewer else None,
        ),
        aim(
            "hit rate, at the rate at which it is highest against LRU's",
            f"{100 * max(more.values()):+.1f} points at {max(more, key=more.__getitem__):.3g} requests/s",
            f"up to {100 * HITS:.1f} points more",
            max(more.values()) >= HITS,
        ),
    )


def _best(fewer: Mapping[float, float], what: str) -> str:
    best = max(fewer, key=fewer.__getitem__)
    others = ", ".join(f"{part:.1%} at {rate:.3g}" for rate, part in fewer.items())
    return f"{fewer[best]:.1%} {what} at {best:.3g} requests/s (by rate: {others})"


def _pairs(sweep: Sweep) -> dict[float, tuple[Talked, Talked]]:
    """Both outcomes at each rate at which both were measured."""
    found = {}
    for rate, ours in sweep.curves["pensieve"].points.items():
        lru = sweep.curves["lru"].points.get(rate)
        if isinstance(ours, Talked) and isinstance(lru, Talked):
            found[rate] = (ours, lru)
    return found


EXPERIMENT = experiment(
    "3.14",
    "eviction policies: latency, hit rates and recomputed tokens, cost-aware against LRU",
    ("opt-13b-16k",),
    draw,
)

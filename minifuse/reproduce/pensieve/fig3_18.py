"""Pensieve's Figure 3.18 (section 3.6.7): prompts and single tokens in the same iterations, or in their own."""

from __future__ import annotations

from collections.abc import Sequence

from minifuse.reproduce.experiment import Panel, Say
from minifuse.reproduce.pensieve.serving import PENSIEVE, SEPARATE, Serving, experiment
from minifuse.reproduce.pensieve.sweeps import curves_panel, verdict
from minifuse.reproduce.verdict import aim


def draw(servings: Sequence[Serving], say: Say) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """Latency against throughput with and without unification."""
    (serving,) = servings
    say.expect(serving.num_reports())
    title = f"Fig. 3.18: {serving.source.name.removeprefix('random:')}"
    sweep = serving.sweep(say, title, (PENSIEVE, SEPARATE))
    verdicts = [verdict(sweep, "pensieve", "separate", None)]
    if not sweep.paired:
        ours, separate = sweep.curves["pensieve"], sweep.curves["separate"]
        lower = [
            outcome.p90 <= separate.points[rate].p90 for rate, outcome in ours.points.items() if rate in separate.points
        ]
        what = f"{title}, p90 below that without"
        verdicts.append(aim(what, f"at {sum(lower)} of {len(lower)} rates", "at all", all(lower)))
    return (curves_panel(sweep),), tuple(verdicts)


EXPERIMENT = experiment(
    "3.18", "unified scheduling of prompts and single tokens, and without", ("llama-2-13b-gqa-16k",), draw
)

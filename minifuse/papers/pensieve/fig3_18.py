"""Pensieve's Figure 3.18 (section 3.6.7): scheduling prompts and single tokens together or apart."""

from __future__ import annotations

from minifuse.papers.experiment import Say
from minifuse.papers.page import Drawn
from minifuse.papers.pensieve.serving import PENSIEVE, SEPARATE, Servings, experiment
from minifuse.papers.verdict import aim


@experiment("3.18", "unified scheduling of prompts and single tokens, and without", ("llama-2-13b-gqa-16k",))
def figure(servings: Servings, say: Say) -> Drawn:
    """Latency against throughput with and without unification."""
    (serving,) = servings
    say.expect(serving.num_reports())
    sweep = serving.sweep(say, f"Fig. 3.18: {serving.title}", (PENSIEVE, SEPARATE))
    verdicts = [sweep.verdict("pensieve", "separate", None)]
    if not sweep.paired:
        separate = sweep.curves["separate"].points
        lower = [
            outcome["p90"] <= separate[rate]["p90"]
            for rate, outcome in sweep.curves["pensieve"].points.items()
            if rate in separate
        ]
        what = f"{sweep.title}, p90 below that without"
        verdicts.append(aim(what, f"at {sum(lower)} of {len(lower)} rates", "at all", all(lower)))
    return Drawn([sweep.panel()], verdicts=verdicts)

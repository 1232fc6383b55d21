"""Pensieve's Figure 3.18 (section 3.6.7): scheduling prompts and single tokens in common or separate iterations."""

from __future__ import annotations

from minifuse.papers.experiment import Say
from minifuse.papers.page import Drawn
from minifuse.papers.pensieve.contenders import PENSIEVE, SEPARATE
from minifuse.papers.pensieve.serving import Servings, experiment


@experiment("3.18", "unified scheduling of prompts and single tokens, and without", ("llama-2-13b-gqa-16k",))
def figure(servings: Servings, say: Say) -> Drawn:
    """Measure latency against throughput with and without unified scheduling."""
    (serving,) = servings
    say.expect(serving.num_reports())
    sweep = serving.sweep(say, f"Fig. 3.18: {serving.title}", (PENSIEVE, SEPARATE))
    verdicts = [sweep.verdict("pensieve", "separate")]
    if not sweep.paired:
        verdicts.append(sweep.lower_latency("pensieve", "separate"))
    return Drawn([sweep.panel()], verdicts=verdicts)

"""Pensieve's Figures 3.12, 3.13 and 3.15 (3.6.2, 3.6.4): normalized latency against throughput.

Figure 3.12 has one GPU, Figure 3.13 larger models on four GPUs, Figure 3.15 conversations of five turns or more.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from minifuse.papers.experiment import Say
from minifuse.papers.page import Drawn
from minifuse.papers.pensieve.serving import DEVICE, PENSIEVE, STATELESS, VLLM, Servings, experiment

CONTENDERS = (PENSIEVE, DEVICE, STATELESS, VLLM)
IN_REAL_TIME = (PENSIEVE, DEVICE, STATELESS)  # not vllm: it resembles stateless, and takes time

# The thesis' gains in throughput over its baselines, by its models.
GAINS_12 = {"opt-13b-16k": 1.25, "llama-2-13b-gqa-16k": 1.52}
GAINS_13 = {"opt-66b-16k": 1.5, "llama-2-70b-16k": 1.6}
GAINS_15 = {"opt-13b-16k": 1.3, "llama-2-13b-gqa-16k": 1.7}
LEAST_TURNS_15 = 5

# On a CPU, the small models of Fig. 3.12 stand for those of Fig. 3.13, too, with memory for as many conversations as
# four GPUs hold. The rates stay below saturation, where runs can be compared.
OTHER_13 = {"cpu": {"shares": (0.7, 1.1)}}


def draw(
    servings: Servings,
    say: Say,
    figure: str,
    gains: Mapping[str, float],
    min_turns: int = 1,
) -> Drawn:
    """Measure latency against throughput of all contenders; draw a panel for each model."""
    say.expect(sum(serving.num_reports() for serving in servings))
    panels, verdicts = [], []
    for part, serving in zip("abcd", servings, strict=False):
        contenders = CONTENDERS if serving.virtual else IN_REAL_TIME
        sweep = serving.sweep(say, f"Fig. {figure}{part}: {serving.title}", contenders, min_turns=min_turns)
        panels.append(sweep.panel())
        verdicts += [
            sweep.verdict("pensieve", name, gains[serving.published])
            for name in ("stateless", "vllm", "device")
            if name in sweep.curves
        ]
    return Drawn(panels, verdicts=verdicts)


FIG_12 = experiment(
    "3.12",
    "latency against throughput: conversations on two tiers, on the device alone, and stateless",
    tuple(GAINS_12),
)(partial(draw, figure="3.12", gains=GAINS_12))
FIG_13 = experiment(
    "3.13",
    "latency against throughput of larger models on four GPUs",
    tuple(GAINS_13),
    OTHER_13,
)(partial(draw, figure="3.13", gains=GAINS_13))
FIG_15 = experiment(
    "3.15",
    "latency against throughput where every conversation has five turns or more",
    tuple(GAINS_15),
)(partial(draw, figure="3.15", gains=GAINS_15, min_turns=LEAST_TURNS_15))

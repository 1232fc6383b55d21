"""Pensieve's Figure 3.13 (section 3.6.2): normalized latency against throughput of larger models on four GPUs."""

from __future__ import annotations

from functools import partial

from minifuse.reproduce.pensieve.fig3_12 import draw
from minifuse.reproduce.pensieve.serving import experiment

GAINS = {"opt-66b-16k": 1.5, "llama-2-70b-16k": 1.6}

# On a CPU the same small models stand for these as for those of Fig. 3.12, with memory for the conversations that four
# GPUs have room for: at the rates below saturation, where runs can be compared.
OTHER = {"cpu": {"shares": (0.7, 1.1)}}

EXPERIMENT = experiment(
    "3.13",
    "latency against throughput of larger models on four GPUs",
    tuple(GAINS),
    partial(draw, figure="3.13", gains=GAINS, aims={"llama-2-70b-16k": 1.6}),
    OTHER,
)

"""Pensieve's Figure 3.15 (section 3.6.4): conversations of five turns or more."""

from __future__ import annotations

from functools import partial

from minifuse.reproduce.pensieve.fig3_12 import draw
from minifuse.reproduce.pensieve.serving import experiment

LEAST_TURNS = 5
GAINS = {"opt-13b-16k": 1.3, "llama-2-13b-gqa-16k": 1.7}

EXPERIMENT = experiment(
    "3.15",
    "latency against throughput where every conversation has five turns or more",
    tuple(GAINS),
    partial(draw, figure="3.15", gains=GAINS, min_turns=LEAST_TURNS, aims={"llama-2-13b-gqa-16k": 1.6}),
)

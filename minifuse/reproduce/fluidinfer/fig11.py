"""FluidInfer's Figure 11 (6.2): normalized latency against the rate of requests."""

from __future__ import annotations

from minifuse.reproduce.fluidinfer.curves import Measure, experiment

EXPERIMENT = experiment(
    "11", "normalized latency against the rate of requests, part by part", Measure("normalized_s", "ms/\ntoken")
)

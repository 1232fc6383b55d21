"""FluidInfer's Figure 12 (6.3): the latency bound, the largest gap between two tokens, against the rate of requests."""

from __future__ import annotations

from minifuse.reproduce.fluidinfer.curves import Measure, experiment

EXPERIMENT = experiment(
    "12",
    "the largest gap between two tokens of a request, against the rate of requests",
    Measure("bound_s", "bound\nms"),
)

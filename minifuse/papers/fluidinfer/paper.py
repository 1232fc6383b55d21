"""Setup and results from FluidInfer's text (section 6): nothing in this file was measured here."""

from __future__ import annotations

MODELS = ("opt-125m", "opt-1.3b", "opt-6.7b")
MACHINES = (("rtx-4090", 1), ("rtx-4090", 4), ("a100-40g", 4))  # the kind of GPU, and how many
GAINS = 2.0, 4.0  # times the throughput of vllm at equal normalized latency (6.2)
LOWER_BOUND = 3.0  # by so many times the latency bound is lower than that of vllm, approximately (6.3)
ABOUT = 0.25  # what "approximately" allows here; the paper does not say

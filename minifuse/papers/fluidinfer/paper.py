"""Setup and results from FluidInfer's text (section 6): nothing in this file was measured here."""

from __future__ import annotations

MODELS = ("opt-125m", "opt-1.3b", "opt-6.7b")
MACHINES = (("rtx-4090", 1), ("rtx-4090", 4), ("a100-40g", 4))  # the kind of GPU, and how many
GAINS = 2.0, 4.0  # as multiples of vllm's throughput at equal normalized latency (6.2)
LOWER_BOUND = 3.0  # vllm's latency bound is about this many times that of fluid (6.3)
BATCH = 16  # "at most" (4.1)
KV_SHARE = 0.3  # of the memory is for KV (1)
ABOUT = 0.25  # the tolerance for "approximately", which the paper does not define

"""Fits a simulated machine to this one, to show the simulator's error (6, 7)."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, cast

from minifuse.model.text.config import ModelConfig
from minifuse.simulate.cost import Hardware

if TYPE_CHECKING:
    from minifuse.model.text.transformer import Transformer


FEW, MANY = 1, 256  # tokens of the iterations that are timed
COPIED = 1 << 24  # bytes, more than caches hold
CONTEXTS = (64, 512)
ROUNDS = 7


def fitted(model: Transformer) -> Hardware:
    """Fit rates to measurements: two iteration sizes, attention at two contexts, a copy.

    Attention to one more token gives the bandwidth, and a copy between two buffers the rate of the link. Two iteration
    sizes give the time of one more token, and so the arithmetic rate. The overhead is the rest of the small iteration's
    time. On a CPU attention is bound by arithmetic too, so the bandwidth comes out low.
    """
    import torch

    from minifuse.execute.timing import timed
    from minifuse.simulate.chunk_cost import measure

    measured = measure(model, CONTEXTS, chunk=1, rounds=ROUNDS, counts=(FEW, MANY))
    few_s, many_s = (median(measured.layers_s[count]) for count in (FEW, MANY))
    near_s, far_s = (median(measured.attention_s[context]) for context in CONTEXTS)
    config, element = cast(ModelConfig, model.config), model.dtype.itemsize
    weights = config.num_matrix_weights - config.head_weights
    token_s = (many_s - few_s) / (MANY - FEW)
    more = (CONTEXTS[1] - CONTEXTS[0]) * config.kv_elements_per_token * element
    bandwidth = more / max(far_s - near_s, 1e-9)
    source, target = (torch.zeros(COPIED, dtype=torch.uint8) for _ in "st")
    link = COPIED / timed(lambda: target.copy_(source), ROUNDS)
    reading_s = config.num_matrix_weights * element / bandwidth
    overhead_s = max(0.0, few_s + near_s - max(FEW * token_s, reading_s))
    return Hardware(bandwidth, 2 * weights / token_s, overhead_s, link=link)

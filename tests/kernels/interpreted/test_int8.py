"""KV copies in 8 bits, by the operators of Triton's kernels."""

from __future__ import annotations

import torch

from minifuse.core.plan import Move
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.kernels.triton_operators import TritonOperators
from minifuse.testing.texts.models import CONFIGS


def test_copies_in_8_bits_come_back_with_their_scales() -> None:
    cache = TieredStorage(CONFIGS["llama"], 8, torch.float32, torch.device("cpu"), 9, host_dtype="int8")
    for kv in (cache.keys, cache.values):
        kv.normal_(generator=torch.Generator().manual_seed(0))
    before = cache.keys[:, 2:5].clone()
    operators = TritonOperators()
    operators.move(cache, [Move("offload", 2, 5, 3, target_tier="host")])
    operators.move(cache, [Move("upload", 5, 0, 3, "host")])
    off = (cache.keys[:, :3] - before).abs()
    assert 0 < off.max() < 0.51 / 127 * before.abs().max()

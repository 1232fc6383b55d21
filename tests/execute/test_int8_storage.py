"""Copies on the host in 8 bits: what is kept, and how far it is off."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minifuse.core.plan import Move
from minifuse.execute.int8_storage import Int8Storage
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.testing.texts.models import CONFIGS

CONFIG = replace(CONFIGS["llama"], head_dim=16)
OUT, BACK = Move("offload", 2, 5, 3, target_tier="host"), Move("upload", 5, 0, 3, "host")


def _storage(dtype: torch.dtype = torch.float64) -> TieredStorage:
    storage = TieredStorage(CONFIG, 8, dtype, torch.device("cpu"), 9, host_dtype="int8")
    generator = torch.Generator().manual_seed(1)
    for kv, factor in ((storage.keys, 1e-3), (storage.values, 50.0)):
        kv.copy_(factor * torch.randn(kv.shape, generator=generator, dtype=torch.float64))
    return storage


@pytest.mark.parametrize("layer", [None, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_kv_comes_back_within_half_a_step(dtype: torch.dtype, layer: int | None) -> None:
    """A step is the largest number of a token's head, over 127; bfloat16 rounds once more."""
    storage = _storage(dtype)
    before = storage.keys.clone(), storage.values.clone()
    storage.move(OUT, layer)
    storage.move(BACK, layer)
    layers = slice(None) if layer is None else slice(layer, layer + 1)
    for now, was in zip((storage.keys, storage.values), before, strict=True):
        sent, got = was[layers, 2:5].double(), now[layers, :3].double()
        largest = sent.abs().amax(-1, keepdim=True)
        assert (got - sent).abs().le(largest * (0.501 / 127 + torch.finfo(dtype).eps)).all()
        assert not torch.equal(got, sent)
        assert torch.equal(now[:, 3:], was[:, 3:])


def test_zeros_and_what_is_not_finite() -> None:
    storage = _storage()
    storage.keys[0, 2] = 0
    storage.values[1, 3, 0, 5] = float("nan")
    storage.move(OUT)
    storage.move(BACK)
    assert not storage.keys[0, 0].any()
    assert storage.values[1, 1, 0].isnan().any()
    assert storage.values[1, 1, 1].isfinite().all()


def test_bytes_of_a_slot() -> None:
    """2 layers, 2 KV heads of 16: a byte for each number, and 4 for each head's key and value."""
    host = _storage().tiers["host"]
    assert isinstance(host, Int8Storage)
    assert host.slot_bytes == 2 * 2 * 2 * (16 + 4) == CONFIG.kv_bytes_per_token("int8")
    assert _storage().copy_bytes == host.slot_bytes
    plain = TieredStorage(CONFIG, 8, torch.float64, torch.device("cpu"), 9)
    assert plain.copy_bytes == CONFIG.kv_bytes_per_token("float64")

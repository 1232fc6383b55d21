"""The KV tensors: what is written, and what a move takes along."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from minifuse.core.plan import Move
from minifuse.execute.tiered_storage import TieredStorage
from minifuse.testing.texts.models import CONFIGS

CONFIG = CONFIGS["llama"]  # 2 layers, 2 KV heads of 4


def _storage(slots: int = 12) -> TieredStorage:
    return TieredStorage(CONFIG, slots, torch.float64, torch.device("cpu"), num_host_slots=9)


def _numbered(slots: int = 12) -> TieredStorage:
    """Every number encodes its layer, slot, head and dimension."""
    storage = _storage(slots)
    storage.keys.copy_(torch.arange(storage.keys.numel()).view_as(storage.keys))
    storage.values.copy_(-storage.keys - 1)
    return storage


def test_shape_and_zeros() -> None:
    storage = _storage()
    assert storage.keys.shape == storage.values.shape == (2, 12, 2, 4)
    assert not storage.keys.any()
    assert not storage.values.any()


@pytest.mark.parametrize(("source", "target"), [(0, 6), (6, 0), (2, 4), (4, 2), (3, 3)])
def test_move(source: int, target: int) -> None:
    storage, before = _numbered(), _numbered()
    storage.move(Move("shuffle", source, target, 5))
    for now, was in ((storage.keys, before.keys), (storage.values, before.values)):
        assert torch.equal(now[:, target : target + 5], was[:, source : source + 5])
        others = [slot for slot in range(12) if not target <= slot < target + 5]
        assert torch.equal(now[:, others], was[:, others])


def test_a_move_in_one_layer() -> None:
    storage, before = _numbered(), _numbered()
    storage.move(Move("embed", 0, 6, 5, moment="before"), layer=1)
    assert torch.equal(storage.keys[1, 6:11], before.keys[1, :5])
    assert torch.equal(storage.values[1, 6:11], before.values[1, :5])
    assert torch.equal(storage.keys[0], before.keys[0])
    assert torch.equal(storage.values[0], before.values[0])


def test_out_to_the_host_and_back() -> None:
    storage, before = _numbered(), _numbered()
    storage.move(Move("swap_out", 2, 5, 3, target_tier="host"))
    assert torch.equal(storage.keys, before.keys)
    assert torch.equal(storage.tiers["host"].keys[:, 5:8], before.keys[:, 2:5])
    assert torch.equal(storage.tiers["host"].values[:, 5:8], before.values[:, 2:5])
    assert not storage.tiers["host"].keys[:, :5].any()
    storage.move(Move("swap_in", 6, 0, 2, "host"))
    assert torch.equal(storage.keys[:, :2], before.keys[:, 3:5])
    assert torch.equal(storage.values[:, :2], before.values[:, 3:5])
    assert torch.equal(storage.values[:, 2:], before.values[:, 2:])


def test_tensors_are_freed_with_the_storage() -> None:
    """Without a cycle, which would keep them until the garbage collector runs."""
    gc.disable()
    try:
        storage = TieredStorage(CONFIGS["llama"], 4, torch.float32, torch.device("cpu"), 4, 4)
        assert {*storage.tiers} == {"device", "host", "shared"}
        kept = [weakref.ref(tier.keys) for tier in storage.tiers.values()]
        del storage
        assert [one() for one in kept] == [None] * 3
    finally:
        gc.enable()

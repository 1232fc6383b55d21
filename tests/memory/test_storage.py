"""The KV tensors: what is written, and what a move takes along."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minifuse.memory.storage import KVStorage
from minifuse.plan import Move
from minifuse.testing.models import CONFIGS

CONFIG = CONFIGS["llama"]  # 2 layers, 2 KV heads of 4


def _storage(slots: int = 12) -> KVStorage:
    return KVStorage(CONFIG, slots, torch.float64, torch.device("cpu"))


def _numbered(slots: int = 12) -> KVStorage:
    """Every number tells its layer, slot, head and dimension."""
    storage = _storage(slots)
    storage.keys.copy_(torch.arange(storage.keys.numel()).view_as(storage.keys))
    storage.values.copy_(-storage.keys - 1)
    return storage


def test_shape_and_zeros() -> None:
    storage = _storage()
    assert storage.keys.shape == storage.values.shape == (2, 12, 2, 4)
    assert not storage.keys.any()
    assert not storage.values.any()


def test_write_touches_only_its_slots_of_its_layer() -> None:
    storage, before = _numbered(), _numbered()
    k, v = torch.full((2, 2, 4), 1000.0), torch.full((2, 2, 4), 2000.0)
    k[1] += 1
    storage.write(1, torch.tensor([7, 3]), k.double(), v.double())
    assert (storage.keys[1, 7] == 1000).all()
    assert (storage.keys[1, 3] == 1001).all()
    assert (storage.values[1, [3, 7]] == 2000).all()
    others = [slot for slot in range(12) if slot not in (3, 7)]
    assert torch.equal(storage.keys[0], before.keys[0])
    assert torch.equal(storage.keys[1, others], before.keys[1, others])
    assert torch.equal(storage.values[1, others], before.values[1, others])


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
    storage.move(Move("swap_in", 0, 6, 5, wave=0), layer=1)
    assert torch.equal(storage.keys[1, 6:11], before.keys[1, :5])
    assert torch.equal(storage.values[1, 6:11], before.values[1, :5])
    assert torch.equal(storage.keys[0], before.keys[0])
    assert torch.equal(storage.values[0], before.values[0])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 8), st.integers(0, 8), st.integers(1, 4))
def test_any_move_is_a_copy_of_what_was_there(source: int, target: int, count: int) -> None:
    storage = _numbered()
    wanted = storage.keys[0, :, 0, 0].tolist()
    wanted[target : target + count] = wanted[source : source + count]
    storage.move(Move("shuffle", source, target, count))
    assert storage.keys[0, :, 0, 0].tolist() == wanted

"""Packed lanes on a CPU: each computes with one thread, and the caller keeps its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from minifuse.attention.packed import Lane, PackedAttention
from minifuse.attention.ragged import contexts_of
from minifuse.attention.storage import KVStorage
from minifuse.attention.vectorised import RaggedIndex
from minifuse.core.places import Extent
from minifuse.core.plan import Work
from minifuse.testing.texts.models import CONFIGS

CONFIG = CONFIGS["llama"]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_threads_of_lanes() -> None:
    """A loop in a lane runs in one thread: torch sets a thread's number at its first loop, unless it was asked before.

    With a second one, all of OpenMP's threads would sleep while they wait, in later iterations, too.
    """
    seen = []

    class Watched(PackedAttention):
        def attend_lane(self, lane: Lane, q: torch.Tensor, cache: KVStorage, layer: int, out: torch.Tensor) -> None:
            torch.ones(2**20).add_(1)  # large enough for several threads
            seen.append(torch.get_num_threads())
            super().attend_lane(lane, q, cache, layer, out)

    cache = KVStorage(CONFIG, 8, torch.float64, torch.device("cpu"))
    lanes = []
    for first in (0, 4):
        contexts = contexts_of([Work("a", 0, 4)], [Extent(first, 4)])
        index = RaggedIndex.of(*contexts, cache.num_heads, cache.num_kv_heads, cache.device)
        lanes.append(Lane(torch.arange(first, first + 4), index))
    q = torch.ones(8, cache.num_heads, CONFIG.head_dim, dtype=torch.float64)
    assert not Watched().attention(q, cache, 0, lanes).any()
    assert seen == [1, 1]
    assert torch.get_num_threads() == 2

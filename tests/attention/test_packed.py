"""Packed lanes on a CPU: each computes with one thread, and the caller has its threads again."""

from __future__ import annotations

import re

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


def _threads() -> list[str]:
    """Return the numbers of threads that torch, OpenMP and MKL would use here."""
    return re.findall(r"(?:at::get_num|omp_get_max|mkl_get_max)_threads\(\) : (\d+)", torch.__config__.parallel_info())


@pytest.mark.parametrize("fails", [False, True])
def test_threads_of_lanes(fails: bool) -> None:
    """MKL's number holds for the process: lanes whose products start teams leave the process slow ever after."""
    seen = []

    class Watched(PackedAttention):
        def attend_lane(self, lane: Lane, q: torch.Tensor, cache: KVStorage, layer: int, out: torch.Tensor) -> None:
            seen.append(_threads())
            if fails:
                raise ArithmeticError("in a lane")
            super().attend_lane(lane, q, cache, layer, out)

    cache = KVStorage(CONFIG, 8, torch.float64, torch.device("cpu"))
    lanes = []
    for first in (0, 4):
        contexts = contexts_of([Work("a", 0, 4)], [Extent(first, 4)])
        index = RaggedIndex.of(*contexts, cache.num_heads, cache.num_kv_heads, cache.device)
        lanes.append(Lane(torch.arange(first, first + 4), index))
    q = torch.ones(8, cache.num_heads, CONFIG.head_dim, dtype=torch.float64)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        if fails:
            with pytest.raises(ArithmeticError, match="in a lane"):
                Watched().attention(q, cache, 0, lanes)
        else:
            assert not Watched().attention(q, cache, 0, lanes).any()
        assert {*_threads()} == {"2"}
    finally:
        torch.set_num_threads(before)
    assert {count for told in seen for count in told} == {"1"}

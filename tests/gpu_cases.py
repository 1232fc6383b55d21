"""Random inputs for the tests of the kernels on a real device, and the sizes of these tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from kernel_cases import ragged_batch
from torch import Tensor

from minifuse.kernels.launch import INTERPRETED
from minifuse.kernels.ragged import Ragged

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DTYPES = [torch.float32, torch.float16] if INTERPRETED else [torch.float32, torch.float16, torch.bfloat16]
SEEDS = range(2 if INTERPRETED else 25)
REPEATS = 2 if INTERPRETED else 30
LONGEST = 70 if INTERPRETED else 1500
# Few, as each is compiled for every kernel and dtype, which takes seconds.
FORMS = [((8, 2, 128), 16), ((8, 2, 128), 0), ((3, 3, 64), 16), ((7, 1, 80), 5), ((16, 2, 24), 1), ((2, 2, 4), 64)]
SMALL_FORMS = [((4, 2, 16), 16), ((2, 2, 16), 0), ((7, 1, 8), 5), ((6, 2, 24), 1), ((2, 2, 4), 64)]


@dataclass
class Draw:
    """Random tensors on a device, rounded to a dtype. The numbers are drawn on the CPU, the same for every device."""

    rng: random.Random
    device: torch.device
    dtype: torch.dtype

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(self.rng.getrandbits(40))
        return torch.randn(shape, generator=generator).to(dtype or self.dtype).to(self.device)

    def order(self, n: int) -> list[int]:
        return self.rng.sample(range(n), n)

    def int32(self, numbers: Sequence[Any]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=self.device)

    def nan(self, *shape: int) -> Tensor:
        return torch.full(shape, float("nan"), dtype=self.dtype, device=self.device)

    def form(self) -> tuple[tuple[int, int, int], int]:
        """Query heads, KV heads and head_dim, powers of two or not; and the slots in a block."""
        return self.rng.choice(SMALL_FORMS if INTERPRETED else FORMS)


def near(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    """Equal up to rounding: of the output to `dtype`, and of factors inside it."""
    assert got.isfinite().all(), "an element was not written, or an unwritten one was read"
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), want.double(), rtol=2 * eps, atol=max(4 * eps, 2e-5))


@dataclass
class Batch:
    """The arguments of a kernel, and for the twin the same numbers in float64."""

    q: Tensor
    keys: Tensor
    values: Tensor
    ragged: Ragged

    def attend(self, kernel: Callable[..., Tensor], **options: Any) -> Tensor:
        out = torch.full_like(self.q, float("nan"))
        assert kernel(self.q, self.keys, self.values, self.ragged, out, **options) is out
        return out

    def twin(self, twin: Callable[..., Tensor]) -> Tensor:
        return twin(self.q.double(), self.keys.double(), self.values.double(), self.ragged)


def batch_of(
    draw: Draw, parts: Sequence[tuple[int, int]], heads: tuple[int, int, int], page: int, *, padded: bool = False
) -> Batch:
    """(queries, context) pairs; `padded`: contexts begin with empty columns."""
    num_heads, num_kv_heads, dim = heads
    tensors = [
        (draw.normal(queries, num_heads, dim), *(draw.normal(context, num_kv_heads, dim) for _ in "kv"))
        for queries, context in parts
    ]
    first = [draw.rng.randrange(context) for _, context in parts] if padded else None
    return Batch(*ragged_batch(tensors, page, draw.order, first))

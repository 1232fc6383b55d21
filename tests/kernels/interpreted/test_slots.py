"""Attention over adjacent buffers in the interpreter: bit for bit that of decode over consecutive slots."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import SHAPES, as_views, assert_near, assert_refused, shapes_by_layout
from torch import Tensor

from minifuse.kernels.ragged import Ragged
from minifuse.kernels.slots import slots_attention, slots_attention_torch
from minifuse.kernels.split_kv import decode_attention

pytestmark = pytest.mark.usefixtures("poisoned_workspace")


class Buffers:
    """Buffers [offset, offset + size) hold `lengths` tokens each, in float64; all other slots are NaN."""

    def __init__(
        self,
        lengths: list[int],
        offset: int,
        width: int,
        heads: int = 4,
        kv_heads: int = 2,
        dim: int = 16,
        seed: int = 0,
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.lengths, self.region = lengths, {"offset": offset, "size": len(lengths), "width": width}
        shape = ((offset + len(lengths) + 1) * width, kv_heads, dim)
        self.q = torch.randn(len(lengths), heads, dim, generator=draw, dtype=torch.float64)
        self.keys, self.values = (torch.randn(shape, generator=draw, dtype=torch.float64) for _ in "kv")
        held = torch.zeros(shape[0], dtype=torch.bool)
        for begin, length in zip(self.firsts, lengths, strict=True):
            held[begin : begin + length] = True
        self.keys[~held] = self.values[~held] = float("nan")

    @property
    def firsts(self) -> list[int]:
        offset, _, width = self.region.values()
        return [(offset + i) * width for i in range(len(self.lengths))]

    def arguments(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        return self.q.to(dtype), self.keys.to(dtype), self.values.to(dtype), lengths


def attend(buffers: Buffers, dtype: torch.dtype = torch.float32, **options) -> Tensor:
    """The kernel, into an output that held NaN."""
    arguments = buffers.arguments(dtype)
    out = torch.full_like(arguments[0], float("nan"))
    assert slots_attention(*arguments, **buffers.region, out=out, **options) is out
    return out


UNEVEN = [1, 31, 32, 33, 64, 100]


LAYOUTS = [(0, 100, torch.float32), (3, 101, torch.float16), (1, 128, torch.float32)]  # offset, width, dtype


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "layout"), shapes_by_layout(SHAPES, LAYOUTS))
def test_bits_are_those_of_contiguous_sequences(
    heads: int, kv_heads: int, dim: int, layout: tuple[int, int, torch.dtype]
) -> None:
    """Lengths below, at and above the size of one split and of several; a full buffer beside others."""
    *region, dtype = layout
    buffers = Buffers(UNEVEN, *region, heads, kv_heads, dim)
    q, keys, values, lengths = buffers.arguments(dtype)
    tables = torch.tensor(buffers.firsts, dtype=torch.int32)[:, None]
    ragged = Ragged(torch.arange(len(q) + 1, dtype=torch.int32), lengths, tables, 0, 1, max(UNEVEN))
    for split in (32, 512):
        want = decode_attention(q, keys, values, ragged, split=split)
        assert torch.equal(attend(buffers, dtype, split=split), want)
    assert_near(slots_attention_torch(q, keys, values, lengths, **buffers.region), want.double())


def test_bits_do_not_depend_on_max_length() -> None:
    """One split or several in the grid, for the same lengths."""
    short = Buffers([30, 1, 32], 1, 200)
    alone = attend(short, max_length=32, split=32)
    for max_length in (33, 100, None):
        assert torch.equal(attend(short, max_length=max_length, split=32), alone)


def test_views() -> None:
    buffers = Buffers([70, 20], 1, 80)
    *tensors, lengths = buffers.arguments()
    *views, out = as_views(*tensors)
    slots_attention(*views, lengths, **buffers.region, out=out[:, ::2], split=32)
    assert torch.equal(out[:, ::2], attend(buffers, split=32))
    assert (out[:, 1::2] == 7.0).all()


@pytest.mark.parametrize(("offset", "width"), [(0, 3), (2, 1)])
def test_far_slots(offset: int, width: int) -> None:
    """Slot times stride exceeds 2^31, in a buffer or before it. The 4 GiB are reserved, and hardly touched."""
    room = torch.empty(2**31 + 64, dtype=torch.float16)
    keys, values = (room.as_strided((3, 1, 16), (2**30, 16, 1), start) for start in (0, 32))
    buffers = Buffers([width], offset, width, 2, 1)
    keys[offset:], values[offset:] = (kv[offset:3].half() for kv in (buffers.keys, buffers.values))
    lengths = torch.tensor([width], dtype=torch.int32)
    assert torch.equal(
        slots_attention(buffers.q.half(), keys, values, lengths, **buffers.region), attend(buffers, torch.float16)
    )


def test_no_buffers() -> None:
    q, keys, values, lengths = Buffers([7], 0, 10).arguments()
    assert slots_attention(q[:0], keys, values, lengths[:0], offset=1, size=0, width=10).shape == (0, 4, 16)


# Arguments that the launcher refuses.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda q, k, v, n: (q.double(), k, v, n), "q is float64: give float32 or float16 or bfloat16"),
        (lambda q, k, v, n: (q, k, v, n.long()), "lengths is int64: give int32"),
        (lambda q, k, v, n: (q, k, v, n[:1]), "lengths has the shape [1]: give one of [2]"),
        (lambda q, k, v, n: (q, k, v, torch.stack([n, n], 1)[:, 0]), "lengths has the strides (2,)"),
        (lambda q, k, v, n: (q[:1], k, v, n), "size is 2 and there are 1 queries: give one query per buffer"),
    ],
)
def test_refusals(change, sentence: str) -> None:
    buffers = Buffers([20, 4], 1, 20)
    assert_refused(slots_attention, sentence, *change(*buffers.arguments()), **buffers.region)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"offset": -1}, "the buffers are [-1, 1) of 20 slots, and there are 4: stay within them"),
        ({"offset": 3}, "the buffers are [3, 5) of 20 slots, and there are 4"),
        ({"width": 27}, "the buffers are [1, 3) of 27 slots, and there are 2"),
        ({"width": 0}, "the buffers are [1, 3) of 0 slots, and there are 0"),
        ({"max_length": 0}, "max_length is 0: give a length that a buffer of 20 slots holds"),
        ({"max_length": 21}, "max_length is 21"),
        ({"split": 0}, "split is 0: give at least one token"),
        ({"out": torch.zeros(2, 4, 8)}, "out has the shape [2, 4, 8]"),
    ],
)
def test_refused_options(options: dict, sentence: str) -> None:
    buffers = Buffers([20, 4], 1, 20)
    assert_refused(slots_attention, sentence, *buffers.arguments(), **{**buffers.region, **options})

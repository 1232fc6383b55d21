"""Attention over adjacent buffers in the interpreter: against float64, and bit for bit against decode over consecutive
slots.
"""

from __future__ import annotations

import pytest
import torch
from kernel_cases import as_views, assert_near, assert_refused, shapes_by_layout
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

    def expected(self) -> Tensor:
        """Attention in float64, one head of one query at a time."""
        out = torch.empty_like(self.q)
        group = self.q.shape[1] // self.keys.shape[1]
        for i, (begin, length) in enumerate(zip(self.firsts, self.lengths, strict=True)):
            for head, q in enumerate(self.q[i]):
                k, v = (kv[begin : begin + length, head // group] for kv in (self.keys, self.values))
                out[i, head] = torch.softmax(k @ q / len(q) ** 0.5, 0) @ v
        return out


def attend(buffers: Buffers, dtype: torch.dtype = torch.float32, **options) -> Tensor:
    """The kernel, into an output that held NaN."""
    arguments = buffers.arguments(dtype)
    out = torch.full_like(arguments[0], float("nan"))
    assert slots_attention(*arguments, **buffers.region, out=out, **options) is out
    return out


UNEVEN = [1, 31, 32, 33, 64, 100, 1, 97]


SHAPES = {
    "alone": (2, 2, 16),
    "group 4": (4, 1, 16),
    "group 3 d24": (6, 2, 24),
    "group 20 d8": (20, 1, 8),
    "d72": (2, 1, 72),
}


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "region"), shapes_by_layout(SHAPES, [(0, 100), (3, 101), (1, 128)])
)
def test_any_lengths(heads: int, kv_heads: int, dim: int, region: tuple[int, int]) -> None:
    """Lengths below, at and above the size of one split and of several; a full buffer beside others."""
    buffers = Buffers(UNEVEN, *region, heads, kv_heads, dim)
    assert_near(attend(buffers, split=32), buffers.expected())
    assert_near(slots_attention_torch(*buffers.arguments(), **buffers.region), buffers.expected())


def test_long() -> None:
    buffers = Buffers([1500, 3, 512, 1024, 513], 1, 1500, 2, 1)
    assert_near(attend(buffers), buffers.expected())


def test_float16() -> None:
    buffers = Buffers(UNEVEN, 2, 100)
    assert_near(attend(buffers, torch.float16, split=64), buffers.expected())


@pytest.mark.parametrize("split", [32, 512])
def test_bits_are_those_of_contiguous_sequences(split: int) -> None:
    buffers = Buffers(UNEVEN, 3, 110)
    q, keys, values, lengths = buffers.arguments()
    tables = torch.tensor(buffers.firsts, dtype=torch.int32)[:, None]
    ragged = Ragged(torch.arange(len(q) + 1, dtype=torch.int32), lengths, tables, 0, 1, max(UNEVEN))
    assert torch.equal(attend(buffers, split=split), decode_attention(q, keys, values, ragged, split=split))


def test_bits_do_not_depend_on_max_length() -> None:
    """One split or several in the grid, for the same lengths."""
    short = Buffers([30, 1, 32], 1, 200)
    alone = attend(short, max_length=32, split=32)
    for max_length in (33, 100, None):
        assert torch.equal(attend(short, max_length=max_length, split=32), alone)


def test_bits_do_not_depend_on_the_neighbours() -> None:
    buffers = Buffers([90, 7, 33, 64], 2, 100)
    together = attend(buffers, split=32)
    q, keys, values, lengths = buffers.arguments()
    for i in range(4):
        one = slice(i, i + 1)
        got = slots_attention(q[one], keys, values, lengths[one], offset=2 + i, size=1, width=100, split=32)
        assert torch.equal(got, together[one])


def test_views() -> None:
    buffers = Buffers([70, 20], 1, 80)
    *tensors, lengths = buffers.arguments()
    *views, out = as_views(*tensors)
    slots_attention(*views, lengths, **buffers.region, out=out[:, ::2], split=32)
    assert_near(out[:, ::2], buffers.expected())
    assert (out[:, 1::2] == 7.0).all()


@pytest.mark.parametrize(("offset", "width"), [(0, 3), (2, 1)])
def test_far_slots(offset: int, width: int) -> None:
    """Slot times stride exceeds 2^31, in a buffer or before it. The 4 GiB are reserved, and hardly touched."""
    room = torch.empty(2**31 + 64, dtype=torch.float16)
    keys, values = (room.as_strided((3, 1, 16), (2**30, 16, 1), start) for start in (0, 32))
    buffers = Buffers([width], offset, width, 2, 1)
    keys[offset:], values[offset:] = (kv[offset:3].half() for kv in (buffers.keys, buffers.values))
    lengths = torch.tensor([width], dtype=torch.int32)
    assert_near(slots_attention(buffers.q.half(), keys, values, lengths, **buffers.region), buffers.expected())


def test_no_buffers() -> None:
    q, keys, values, lengths = Buffers([7], 0, 10).arguments()
    assert slots_attention(q[:0], keys, values, lengths[:0], offset=1, size=0, width=10).shape == (0, 4, 16)


# Arguments that the launcher refuses.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda q, k, v, n: (q.flatten(1), k, v, n), "q has the shape [2, 64]"),
        (lambda q, k, v, n: (q.double(), k, v, n), "q is float64: give float32 or float16 or bfloat16"),
        (lambda q, k, v, n: (q, k.half(), v, n), "keys is float16: give float32"),
        (lambda q, k, v, n: (q, k, v[1:], n), "values has the shape"),
        (lambda q, k, v, n: (q[:, :3], k, v, n), "there are 3 heads and 2 KV heads"),
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

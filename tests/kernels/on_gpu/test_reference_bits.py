"""Reference mode on a device: a token of a context gets the same bits in every layout, chunk and batch."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch
from gpu_cases import ON_GPU, Batch, Draw
from kernel_cases import ragged_batch
from torch import Tensor

from minifuse.kernels.launch import INTERPRETED

pytest.importorskip("triton", reason="Triton is for Linux only")

from minifuse.kernels.multi_token import multi_token_attention

pytestmark = ON_GPU


TEXT = 35 if INTERPRETED else 300


@pytest.fixture(params=[(1, 1, 16)] if INTERPRETED else [(1, 1, 64), (8, 2, 128), (7, 1, 24)], ids=str)
def heads(request: pytest.FixtureRequest) -> tuple[int, int, int]:
    return request.param


def context_of(draw: Draw, heads: tuple[int, int, int], length: int) -> tuple[Tensor, ...]:
    """The queries, keys and values of one context."""
    num_heads, kv_heads, dim = heads
    return tuple(draw.normal(length, n, dim) for n in (num_heads, kv_heads, kv_heads))


def in_reference(
    draw: Draw, parts: list[tuple[tuple[Tensor, ...], range]], page: int, first: list[int] | None = None
) -> Tensor:
    """Attention in reference mode of some tokens of some contexts."""
    tensors = [(q[r.start : r.stop], k[: r.stop], v[: r.stop]) for (q, k, v), r in parts]
    return Batch(*ragged_batch(tensors, page, draw.order, first)).attend(multi_token_attention, reference=True)


def test_bits_do_not_depend_on_layout_or_chunks(device, dtype, heads) -> None:
    draw = Draw(random.Random(5), device, dtype)
    chat = context_of(draw, heads, TEXT)
    whole = in_reference(draw, [(chat, range(TEXT))], 16)
    for page in (16, 0, 1, 5, 64):
        assert torch.equal(in_reference(draw, [(chat, range(TEXT))], page), whole), f"page {page}"
    for cuts in ((0, 16, 32, TEXT), (0, 1, 20, 21, TEXT)):
        chunks = [in_reference(draw, [(chat, range(*pair))], 16) for pair in pairwise(cuts)]
        assert torch.equal(torch.cat(chunks), whole), f"cut at {cuts}"
    columns = [0, 15, 16, TEXT - 1] if INTERPRETED else [*range(TEXT)]
    for page in (0, 16):
        decoded = in_reference(draw, [(chat, range(column, column + 1)) for column in columns], page)
        assert torch.equal(decoded, whole[columns]), "decode"


def test_bits_do_not_depend_on_the_batch(device, dtype, heads) -> None:
    draw = Draw(random.Random(6), device, dtype)
    chat, other, third = (context_of(draw, heads, n) for n in (TEXT, 20, 3))
    whole = in_reference(draw, [(chat, range(TEXT))], 16)
    for before in (0, 3, 14):
        queries = range(TEXT - 4 - before, TEXT)
        parts = [(other, range(20 - before, 20)), (chat, queries), (third, range(3))]
        got = in_reference(draw, parts, 16)
        assert torch.equal(got[before : before + len(queries)], whole[queries.start :]), f"{before} rows before"
    for shift in (1, 5, 20):
        padded = context_of(draw, heads, TEXT + shift)
        for padded_tensor, tensor in zip(padded, chat, strict=True):
            padded_tensor[shift:] = tensor
        end = TEXT + shift
        for queries in (range(end), range(end - 1, end)):
            got = in_reference(draw, [(padded, queries)], 0, [shift])
            real = max(shift - queries.start, 0)
            assert torch.equal(got[real:], whole[queries.start + real - shift :]), f"{shift} columns of padding"

"""Decode over split KV in the interpreter: against float64, and bit for bit in other batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_cases import (
    REFUSED,
    SHAPES,
    Context,
    Part,
    as_views,
    assert_near,
    assert_refused,
    expected,
    lay_out,
    parts_of,
    shapes_by_layout,
)
from torch import Tensor

from minifuse.core.errors import KernelError
from minifuse.kernels import splits
from minifuse.kernels.multi_token import multi_token_attention_torch
from minifuse.kernels.ragged import Ragged
from minifuse.kernels.split_kv import decode_attention
from minifuse.kernels.splits import SPLIT, grid_of

pytestmark = pytest.mark.usefixtures("poisoned_workspace")


def batch_of(contexts: list[int], heads: int = 4, kv_heads: int = 2, dim: int = 16) -> list[Part]:
    """One query per context, its last token."""
    return parts_of([(1, context) for context in contexts], heads, kv_heads, dim)


def single(seed: int, length: int, heads: int = 2, kv_heads: int = 1) -> Part:
    return Context(seed, length, heads, kv_heads), range(length - 1, length)


def attend(*arguments, split: int = SPLIT) -> Tensor:
    """The kernel, into an output that held NaN."""
    out = torch.full_like(arguments[0], float("nan"))
    assert decode_attention(*arguments, out, split=split) is out
    return out


UNEVEN = [1, 31, 32, 33, 64, 150]


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "page"), shapes_by_layout(SHAPES, [0, 5, 16]))
def test_any_lengths(heads: int, kv_heads: int, dim: int, page: int) -> None:
    """Contexts below, at and above the size of one split and of several."""
    batch = batch_of(UNEVEN, heads, kv_heads, dim)
    assert_near(attend(*lay_out(batch, page), split=32), expected(batch))


@pytest.mark.parametrize("page", [0, 16])
def test_several_tiles_in_a_split(page: int) -> None:
    """A tile has 128 tokens here, the last one of a split 32."""
    batch = batch_of([400, 129, 160, 161, 320, 1])
    assert_near(attend(*lay_out(batch, page), split=160), expected(batch))


@pytest.mark.parametrize("page", [pytest.param(0, marks=pytest.mark.long), 16])
def test_long_and_very_uneven(page: int) -> None:
    batch = batch_of([3000, 1, 2 * SPLIT, SPLIT, SPLIT + 1, 7])
    arguments = lay_out(batch, page)
    assert_near(attend(*arguments), expected(batch))
    assert_near(attend(*arguments), multi_token_attention_torch(*arguments).double())


def test_more_splits_than_are_reduced_at_once() -> None:
    """64 are reduced at once."""
    batch = batch_of([65 * 4 - 1, 3], 1, 1)
    assert_near(attend(*lay_out(batch, 16), split=4), expected(batch))


def test_more_splits_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(UNEVEN)
    arguments = lay_out(batch, 16)
    want = attend(*arguments, split=32)
    monkeypatch.setattr(splits, "grid_of", lambda q, keys, splits: (keys.shape[1], 2, len(q)))
    assert torch.equal(attend(*arguments, split=32), want)


def test_programs() -> None:
    def grid(num_sequences: int, kv_heads: int, splits: int) -> tuple[int, ...]:
        shapes = (num_sequences, 4 * kv_heads, 128), (0, kv_heads, 128)
        return grid_of(*(torch.empty(shape, device="meta") for shape in shapes), splits)

    assert grid(64, 8, 8) == (8, 8, 64)
    assert grid(1, 8, 256) == (8, 256, 1)  # one long context, which may use the whole GPU
    assert grid(8, 1, 2000) == (1, 1024, 8)
    assert grid(256, 8, 256) == (8, 32, 256)


def test_contexts_of_one_split_need_no_second_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    run = splits._reduce_kernel.run
    monkeypatch.setattr(splits._reduce_kernel, "run", lambda *a, **k: (launched.append(1), run(*a, **k)))
    for contexts in ([32, 1], [32, 33]):
        batch = batch_of(contexts)
        assert_near(attend(*lay_out(batch, 16), split=32), expected(batch))
    assert len(launched) == 1


@pytest.mark.parametrize("page", [0, 16])
def test_float16(page: int) -> None:
    batch = batch_of([150, 1, 64, 33])
    assert_near(attend(*lay_out(batch, page, torch.float16), split=64), expected(batch))


@pytest.mark.parametrize("page", [0, 16])
def test_padded_rectangle(page: int) -> None:
    """Columns before `first` hold NaN; a row whose query is idle attends to itself alone."""
    first = [0, 1, 17, 32, 33, 98, 99, 200]
    batch = batch_of([100] * len(first))
    assert_near(attend(*lay_out(batch, page, first=first), split=32), expected(batch, first))


def test_large_scores() -> None:
    """The peak moves from tile to tile and from split to split, by more than an exponent can hold."""
    batch = batch_of([400, 64])
    for context, _ in batch:
        context.k *= torch.linspace(0, 300, len(context.k), dtype=torch.float64)[:, None, None]
    arguments = lay_out(batch, 16)
    exact = lay_out(batch, 16, torch.float64)
    got = attend(*arguments, split=160)
    want = multi_token_attention_torch(*(t.float().double() for t in exact[:3]), exact[3])
    torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-3)  # scores of some hundreds, in float32


def test_views() -> None:
    batch = batch_of([70, 20])
    q, keys, values, ragged = lay_out(batch, 16)
    *views, out = as_views(q, keys, values)
    decode_attention(*views, ragged, out[:, ::2], split=32)
    assert_near(out[:, ::2], expected(batch))
    assert (out[:, 1::2] == 7.0).all()
    assert torch.equal(decode_attention(q, keys, values, ragged, split=32), out[:, ::2])


def test_far_slots() -> None:
    """Slot times stride exceeds 2^31. The 4 GiB are reserved, and hardly touched."""
    room = torch.empty(2**31 + 64, dtype=torch.float16)
    keys, values = (room.as_strided((3, 1, 16), (2**30, 16, 1), start) for start in (0, 32))
    for page, table in ((1, [2, 0, 1]), (0, [1])):
        batch = [single(0, 3 if page else 2)]
        ((context, _),) = batch
        slots = table if page else [1, 2]
        keys[slots], values[slots] = context.k.half(), context.v.half()
        ragged = lay_out(batch, page)[3]
        ragged = replace(ragged, tables=torch.tensor([table], dtype=torch.int32))
        assert_near(attend(context.q[-1:].half(), keys, values, ragged), expected(batch))


def test_no_sequences() -> None:
    q, keys, values, ragged = lay_out(batch_of([7]), 16)
    no_sequences = Ragged(ragged.cu_seqlens[:1], ragged.contexts[:0], ragged.tables[:0], 16, 0, 0)
    assert attend(q[:0], keys, values, no_sequences).shape == (0, 4, 16)
    assert decode_attention(q[:0], keys, values, no_sequences).shape == (0, 4, 16)


# A sequence of 97 tokens in splits of 32 gets the same bits in any batch as alone.

CHAT = single(100, 97, 3, 1)


@pytest.fixture(scope="module")
def alone() -> Tensor:
    return decode_attention(*lay_out([CHAT], 16), split=32)[0]


@pytest.mark.parametrize(("row", "others"), [(0, (1, 5)), (1, (300, 32)), (2, (97, 128))])
def test_bits_do_not_depend_on_the_batch(alone: Tensor, others: tuple[int, int], row: int) -> None:
    batch = [single(seed, context, 3, 1) for seed, context in enumerate(others)]
    batch.insert(row, CHAT)
    assert torch.equal(attend(*lay_out(batch, 16), split=32)[row], alone)


@pytest.mark.parametrize("max_context", [98, 128, 129, 2500])
def test_bits_do_not_depend_on_the_longest_context(alone: Tensor, max_context: int) -> None:
    q, keys, values, ragged = lay_out([CHAT], 0)
    keys, values = (torch.nn.functional.pad(kv, (0, 0, 0, 0, 0, 2500), value=float("nan")) for kv in (keys, values))
    assert torch.equal(attend(q, keys, values, replace(ragged, max_context=max_context), split=32)[0], alone)


@pytest.mark.parametrize("context", [1, 31, 32])
def test_bits_of_a_single_split(context: int) -> None:
    """Alone there is no second kernel; beside a longer context there is."""
    short = single(3, context, 3, 1)
    want = attend(*lay_out([short], 16), split=32)[0]
    assert torch.equal(attend(*lay_out([CHAT, short], 16), split=32)[1], want)


@pytest.mark.parametrize(("page", "seed"), [(16, 1), (0, 0), (1, 0), (5, 0), (64, 0)])
def test_bits_do_not_depend_on_where_kv_lies(alone: Tensor, page: int, seed: int) -> None:
    assert torch.equal(attend(*lay_out([CHAT], page, seed=seed), split=32)[0], alone)


@pytest.mark.parametrize("shift", [1, 5, 40])
def test_bits_do_not_depend_on_left_padding(alone: Tensor, shift: int) -> None:
    padded, queries = single(101, 97 + shift, 3, 1)
    chat, _ = CHAT
    padded.q[shift:], padded.k[shift:], padded.v[shift:] = chat.q, chat.k, chat.v
    assert torch.equal(attend(*lay_out([(padded, queries)], 0, first=[shift]), split=32)[0], alone)


# Arguments that the launcher refuses.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *REFUSED,
        (lambda q, k, v, r: (q.flatten(1), k, v, r), "q has the shape [2, 64]"),
        (lambda q, k, v, r: (q[:1].expand(2**16, -1, -1), k, v, r), "there are 65536 queries: give fewer than 2^16"),
        (lambda q, k, v, r: (q[:1], k, v, r), "2 sequences have 1 queries, up to 1 each: give one query per sequence"),
        (lambda q, k, v, r: (q, k, v, replace(r, max_queries=2)), "2 sequences have 2 queries, up to 2 each"),
        (lambda q, k, v, r: (q, k, v, replace(r, max_context=0)), "max_context is 0"),
        (lambda q, k, v, r: (q, k, v, replace(r, max_context=5)), "longer than max_context, which is 5"),
        (lambda q, k, v, r: (q, k, v, replace(r, cu_seqlens=r.cu_seqlens * 2)), "cu_seqlens are [0, 2, 4] and q has 2"),
    ],
)
def test_refusals(change, sentence: str) -> None:
    assert_refused(decode_attention, sentence, *change(*lay_out(batch_of([20, 4]), 16)))


def test_no_split() -> None:
    with pytest.raises(KernelError, match=r"decode_attention: split is 0: give at least one token\."):
        decode_attention(*lay_out(batch_of([20]), 16), split=0)

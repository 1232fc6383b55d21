"""Multi-token attention in the interpreter: against float64, and in reference mode bit for bit in other batches."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from kernel_cases import (
    REFUSED,
    SHAPES,
    Context,
    as_views,
    assert_near,
    assert_refused,
    expected,
    lay_out,
    parts_of,
    shapes_by_layout,
)
from torch import Tensor

from minifuse.kernels.multi_token import multi_token_attention, multi_token_attention_torch
from minifuse.kernels.ragged import Ragged


def attend(*arguments, reference: bool = False) -> Tensor:
    """The kernel, into an output that held NaN."""
    out = torch.full_like(arguments[0], float("nan"))
    assert multi_token_attention(*arguments, out, reference=reference) is out
    return out


def assert_close(got: Tensor, want: Tensor) -> None:
    assert_near(got, want, factor=3)


RAGGED = [(0, 7), (3, 150), (1, 1), (0, 30), (1, 64), (65, 65), (1, 129), (0, 1)]


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "page"), shapes_by_layout(SHAPES, [0, 5, 16]))
def test_any_lengths(heads: int, kv_heads: int, dim: int, page: int) -> None:
    parts = parts_of(RAGGED, heads, kv_heads, dim)
    arguments = lay_out(parts, page)
    assert_close(attend(*arguments), expected(parts))
    assert_close(multi_token_attention_torch(*arguments), expected(parts))


@pytest.mark.parametrize("page", [pytest.param(0, marks=pytest.mark.long), 16])
def test_decode(page: int) -> None:
    parts = parts_of([(1, 1), (1, 200), (0, 3), *[(1, n) for n in (7, 15, 16, 17, 112, 133)]])
    arguments = lay_out(parts, page)
    assert arguments[3].max_queries == 1
    assert_close(attend(*arguments), expected(parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_one_long_chunk(dtype: torch.dtype) -> None:
    """Several query tiles, of which the last ones have KV tiles that need no mask."""
    parts = parts_of([(150, 280)], 1, 1)
    assert_close(attend(*lay_out(parts, 16, dtype)), expected(parts))


@pytest.mark.parametrize("page", [pytest.param(0, marks=pytest.mark.long), 16])
def test_reference_is_right(page: int) -> None:
    parts = parts_of([(0, 7), (3, 20), (1, 1), (9, 9)], 6, 2, 24)
    assert_close(attend(*lay_out(parts, page), reference=True), expected(parts))


@pytest.mark.parametrize("reference", [False, True])
def test_float16(reference: bool) -> None:
    parts = parts_of([(3, 70), (1, 1), (20, 20)] if not reference else [(3, 20), (1, 1)])
    assert_close(attend(*lay_out(parts, 16, torch.float16), reference=reference), expected(parts))


def test_twin_in_float64() -> None:
    parts = parts_of(RAGGED)
    assert_close(multi_token_attention_torch(*lay_out(parts, 5, torch.float64)), expected(parts))
    first = [2, 120, 0, 3, 60, 40, 129, 0]
    arguments = lay_out(parts, 0, torch.float64, first=first)
    assert_close(multi_token_attention_torch(*arguments), expected(parts, first))


@pytest.mark.parametrize(("page", "reference"), [(0, False), (16, False), (0, True)])
def test_padded_rectangle(page: int, reference: bool) -> None:
    """Rows whose contexts begin with empty columns, as whole prompts, chunks and decodes.

    With one head per group, query tiles are longer than KV tiles, and idle queries see nothing in the first KV tiles.
    """
    width = 19 if reference else 140
    firsts = [3, 17] if reference else [0, 3, 70, width - 1]
    for queries in (width, 5, 1):
        parts = parts_of([(queries, width)] * len(firsts), 1, 1)
        arguments = lay_out(parts, page, first=firsts)
        assert_close(attend(*arguments, reference=reference), expected(parts, firsts))


def test_views() -> None:
    parts = parts_of([(3, 70), (20, 20)])
    q, keys, values, ragged = lay_out(parts, 16)
    *views, out = as_views(q, keys, values)
    multi_token_attention(*views, ragged, out[:, ::2])
    assert_close(out[:, ::2], expected(parts))
    assert (out[:, 1::2] == 7.0).all()
    torch.testing.assert_close(multi_token_attention(q, keys, values, ragged), out[:, ::2], rtol=0, atol=0)


def test_far_slots() -> None:
    """Slot times stride exceeds 2^31. The 4 GiB are reserved, and hardly touched."""
    some = Context(0, 3)
    room = torch.empty(2**31 + 64, dtype=torch.float16)
    keys = room.as_strided((3, 1, 16), (2**30, 16, 1))
    values = room.as_strided((3, 1, 16), (2**30, 16, 1), 32)
    table = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    keys[table[0]], values[table[0]] = some.k.half(), some.v.half()
    for page, tables in ((1, table), (0, table[:, 1:2])):
        length = 3 if page else 2
        keys[0], keys[1] = (some.k[1], some.k[2]) if page else (some.k[0], some.k[1])
        values[0], values[1] = (some.v[1], some.v[2]) if page else (some.v[0], some.v[1])
        bounds = torch.tensor([0, 1], dtype=torch.int32)
        ragged = Ragged(bounds, torch.tensor([length], dtype=torch.int32), tables, page, 1, length)
        q = some.q[length - 1 : length].half()
        assert_close(attend(q, keys, values, ragged), some.expected(range(length - 1, length)))


def test_empty() -> None:
    q, keys, values, ragged = lay_out(parts_of([(0, 7), (0, 2)]), 16)
    assert attend(q, keys, values, ragged).shape == (0, 4, 16)
    no_sequences = Ragged(ragged.cu_seqlens[:1], ragged.contexts[:0], ragged.tables[:0], 16, 0, 0)
    assert attend(q, keys, values, no_sequences).shape == (0, 4, 16)


# Reference mode: the 35 tokens of one context get the same bits in any batch as all at once and alone.

SHAPE = {"heads": 1, "kv_heads": 1}
CHAT = Context(100, 35, **SHAPE)


@pytest.fixture(scope="module")
def whole() -> Tensor:
    """In blocks of 16."""
    return multi_token_attention(*lay_out([(CHAT, range(35))], 16), reference=True)


@pytest.mark.parametrize(("page", "seed"), [(16, 1), (0, 0), (1, 0), (5, 0), (64, 0)])
def test_bits_do_not_depend_on_where_kv_lies(whole: Tensor, page: int, seed: int) -> None:
    assert torch.equal(attend(*lay_out([(CHAT, range(35))], page, seed=seed), reference=True), whole)


@pytest.mark.parametrize("cuts", [(0, 16, 32, 35), (0, 1, 20, 21, 35)])
def test_bits_do_not_depend_on_chunks(whole: Tensor, cuts: tuple[int, ...]) -> None:
    chunks = [attend(*lay_out([(CHAT, range(a, b))], 16), reference=True) for a, b in pairwise(cuts)]
    assert torch.equal(torch.cat(chunks), whole)


@pytest.mark.parametrize("page", [pytest.param(0, marks=pytest.mark.long), 16])
def test_decode_has_the_bits_of_prefill(whole: Tensor, page: int) -> None:
    """Each token as the only query of a sequence."""
    columns = [0, 15, 16, 34]
    decoded = attend(*lay_out([(CHAT, range(column, column + 1)) for column in columns], page), reference=True)
    assert torch.equal(decoded, whole[columns])


@pytest.mark.parametrize(("before", "page"), [(0, 16), (3, 0), (14, 16)])
def test_bits_do_not_depend_on_the_batch(whole: Tensor, page: int, before: int) -> None:
    """In other rows of the tile and of the batch, between other sequences."""
    queries = range(31 - before, 35)
    others = [(Context(7, 20, **SHAPE), range(20 - before, 20)), (Context(8, 3, **SHAPE), range(3))]
    got = attend(*lay_out([others[0], (CHAT, queries), others[1]], page), reference=True)
    assert torch.equal(got[before : before + len(queries)], whole[queries.start :])


@pytest.mark.parametrize("shift", [5, 20])
def test_bits_do_not_depend_on_left_padding(whole: Tensor, shift: int) -> None:
    """A row of a rectangle that begins `shift` columns later: its idle queries share tiles with the real ones."""
    padded = Context(101, 35 + shift, **SHAPE)
    padded.q[shift:], padded.k[shift:], padded.v[shift:] = CHAT.q, CHAT.k, CHAT.v
    for queries in (range(35 + shift), range(34 + shift, 35 + shift)):
        got = attend(*lay_out([(padded, queries)], 0, first=[shift]), reference=True)
        real = max(shift - queries.start, 0)
        assert torch.equal(got[real:], whole[queries.start + real - shift :])


def test_bits_do_not_depend_on_the_group() -> None:
    """The same query head alone and in a group of five."""
    alone, group = Context(5, 20, 1, 1), Context(6, 20, 5, 1)
    group.q[:, 3:4], group.k, group.v = alone.q, alone.k, alone.v
    want = attend(*lay_out([(alone, range(20))], 16), reference=True)
    assert torch.equal(attend(*lay_out([(group, range(20))], 16), reference=True)[:, 3:4], want)


# Arguments that the launcher refuses.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *REFUSED,
        (lambda q, k, v, r: (q.flatten(1), k, v, r), "q has the shape [4, 64]"),
        (lambda q, k, v, r: (q, k.expand(2**31, -1, 2, 16), v, r), "keys has the shape"),
        (lambda q, k, v, r: (q, k, v, replace(r, cu_seqlens=r.contexts)), "cu_seqlens has the shape [2]"),
    ],
)
def test_refusals(change, sentence: str) -> None:
    assert_refused(multi_token_attention, sentence, *change(*lay_out(parts_of([(3, 20), (1, 4)]), 16)))

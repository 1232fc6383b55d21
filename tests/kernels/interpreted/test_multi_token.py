"""Multi-token attention in the interpreter: against float64, and in reference mode bit for bit against itself."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor

from minifuse.errors import KernelError
from minifuse.kernels.multi_token import multi_token_attention, multi_token_attention_torch
from minifuse.kernels.ragged import Ragged

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.float64: 1e-12}


class Conversation:
    """The queries, keys and values of one context, the same whatever it is laid out like."""

    def __init__(self, seed: int, length: int, heads: int = 2, kv_heads: int = 1, dim: int = 16) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.q, self.k, self.v = (
            torch.randn(length, n, dim, generator=draw, dtype=torch.float64) for n in (heads, kv_heads, kv_heads)
        )

    def expected(self, queries: range, first: int = 0) -> Tensor:
        """What those queries get, in float64, one head of one query at a time."""
        out = torch.empty_like(self.q[queries.start : queries.stop])
        group = self.q.shape[1] // self.k.shape[1]
        for row, column in enumerate(queries):
            low = min(first, column)  # before `first` it sees itself alone
            for head in range(self.q.shape[1]):
                k, v = (kv[low : column + 1, head // group] for kv in (self.k, self.v))
                weights = torch.softmax(k @ self.q[column, head] / self.q.shape[2] ** 0.5, 0)
                out[row, head] = weights @ v
        return out


def lay_out(
    parts: list[tuple[Conversation, range]],
    page: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    first: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Ragged]:
    """The queries of each part, whose KV lies in random blocks, or contiguously in a random order; the rest is NaN."""
    draw = torch.Generator().manual_seed(seed)
    contexts = [queries.stop for _, queries in parts]
    blocks = [-(-context // (page or context)) for context in contexts]  # page 0: one block that is as long as it takes
    columns = max(blocks) + 1
    tables = torch.full((len(parts), 1 if page == 0 else columns), -1, dtype=torch.int32)
    size = page or max(contexts) + 3
    order = torch.randperm(sum(blocks) + 2, generator=draw).tolist()
    _, kv_heads, dim = parts[0][0].k.shape
    slots = (sum(blocks) + 2) * size
    keys, values = (torch.full((slots, kv_heads, dim), float("nan"), dtype=dtype) for _ in range(2))
    q = []
    for s, (conversation, queries) in enumerate(parts):
        mine = [order.pop() for _ in range(blocks[s])]
        tables[s, : len(mine)] = torch.tensor(mine) * (1 if page else size)
        token = torch.arange(queries.stop)
        slot = torch.tensor(mine)[token // size] * size + token % size
        written = token >= (min(first[s], queries.start) if first else 0)
        keys[slot[written]], values[slot[written]] = (
            kv[: queries.stop][written].to(dtype) for kv in (conversation.k, conversation.v)
        )
        q.append(conversation.q[queries.start : queries.stop])
    ragged = Ragged(
        torch.tensor([0, *accumulate(len(queries) for _, queries in parts)], dtype=torch.int32),
        torch.tensor(contexts, dtype=torch.int32),
        tables,
        page,
        max(len(queries) for _, queries in parts),
        max(contexts),
        None if first is None else torch.tensor(first, dtype=torch.int32),
    )
    return torch.cat(q).to(dtype), keys, values, ragged


def expected(parts: list[tuple[Conversation, range]], first: list[int] | None = None) -> Tensor:
    starts = first or [0] * len(parts)
    return torch.cat(
        [conversation.expected(queries, low) for (conversation, queries), low in zip(parts, starts, strict=True)]
    )


def attend(*given, reference: bool = False) -> Tensor:
    """The kernel, into an output that held NaN."""
    out = torch.full_like(given[0], float("nan"))
    assert multi_token_attention(*given, out, reference=reference) is out
    return out


def assert_near(got: Tensor, want: Tensor) -> None:
    assert got.isfinite().all()
    torch.testing.assert_close(got.double(), want, rtol=0, atol=3 * TOLERANCE[got.dtype])


def parts_of(shapes: list[tuple[int, int]], heads: int = 4, kv_heads: int = 2, dim: int = 16):
    """For each (queries, context) a conversation of that length, and its last tokens."""
    return [
        (Conversation(seed, context, heads, kv_heads, dim), range(context - queries, context))
        for seed, (queries, context) in enumerate(shapes)
    ]


RAGGED = [(0, 7), (3, 150), (1, 1), (0, 30), (1, 64), (65, 65), (1, 129), (0, 1)]


@pytest.mark.parametrize("page", [0, 5, 16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(2, 2, 16), (4, 1, 16), (6, 2, 24), (7, 1, 8), (20, 1, 16), (2, 1, 72)],
    ids=["alone", "group 4", "group 3 d24", "group 7 d8", "group 20", "float32 d72"],
)
def test_any_lengths(heads: int, kv_heads: int, dim: int, page: int) -> None:
    parts = parts_of(RAGGED, heads, kv_heads, dim)
    given = lay_out(parts, page)
    assert_near(attend(*given), expected(parts))
    assert_near(multi_token_attention_torch(*given), expected(parts))


@pytest.mark.parametrize("page", [0, 16])
def test_decode(page: int) -> None:
    parts = parts_of([(1, 1), (1, 200), (0, 3), *[(1, 7 * n) for n in range(1, 20)]])
    given = lay_out(parts, page)
    assert given[3].max_queries == 1
    assert_near(attend(*given), expected(parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_one_long_chunk(dtype: torch.dtype) -> None:
    """Several query tiles, of which the last ones have tiles that need no mask."""
    parts = parts_of([(150, 280)], 1, 1)
    assert_near(attend(*lay_out(parts, 16, dtype)), expected(parts))


@pytest.mark.parametrize("page", [0, 16])
def test_reference_is_right(page: int) -> None:
    parts = parts_of([(0, 7), (3, 20), (1, 1), (9, 9)], 6, 2, 24)
    assert_near(attend(*lay_out(parts, page), reference=True), expected(parts))


@pytest.mark.parametrize("reference", [False, True])
def test_float16(reference: bool) -> None:
    parts = parts_of([(3, 70), (1, 1), (20, 20)] if not reference else [(3, 20), (1, 1)])
    assert_near(attend(*lay_out(parts, 16, torch.float16), reference=reference), expected(parts))


def test_twin_in_float64() -> None:
    parts = parts_of(RAGGED)
    assert_near(multi_token_attention_torch(*lay_out(parts, 5, torch.float64)), expected(parts))
    first = [2, 120, 0, 3, 60, 40, 129, 0]
    given = lay_out(parts, 0, torch.float64, first=first)
    assert_near(multi_token_attention_torch(*given), expected(parts, first))


@pytest.mark.parametrize(("page", "reference"), [(0, False), (16, False), (0, True)])
def test_padded_rectangle(page: int, reference: bool) -> None:
    """Rows whose contexts begin with columns that hold nothing, as whole prompts, chunks and decodes.

    One head a group makes query tiles longer than KV tiles: there, idle queries see nothing in the first of them.
    """
    width = 19 if reference else 140
    firsts = [3, 17] if reference else [0, 3, 70, width - 1]
    for queries in (width, 5, 1):
        parts = parts_of([(queries, width)] * len(firsts), 1, 1)
        given = lay_out(parts, page, first=firsts)
        assert_near(attend(*given, reference=reference), expected(parts, firsts))


def test_views() -> None:
    """Queries cut out of a fused projection, KV of one of several layers, output heads with gaps."""
    parts = parts_of([(3, 70), (20, 20)])
    q, keys, values, ragged = lay_out(parts, 16)
    fused = torch.full((q.shape[0], 10, 16), float("nan"))
    fused[:, 2:6] = q
    storage = torch.full((2, 3, *keys.shape), float("nan"))
    storage[:, 1] = torch.stack([keys, values])
    out = torch.full((q.shape[0], 8, 16), 7.0)
    multi_token_attention(fused[:, 2:6], *storage[:, 1], ragged, out[:, ::2])
    assert_near(out[:, ::2], expected(parts))
    assert (out[:, 1::2] == 7.0).all()
    torch.testing.assert_close(multi_token_attention(q, keys, values, ragged), out[:, ::2], rtol=0, atol=0)


def test_far_slots() -> None:
    """Slot times stride exceeds 2^31. The 4 GiB are reserved, and hardly touched."""
    some = Conversation(0, 3)
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
        assert_near(attend(q, keys, values, ragged), some.expected(range(length - 1, length)))


def test_empty() -> None:
    q, keys, values, ragged = lay_out(parts_of([(0, 7), (0, 2)]), 16)
    assert attend(q, keys, values, ragged).shape == (0, 4, 16)
    nobody = Ragged(ragged.cu_seqlens[:1], ragged.contexts[:0], ragged.tables[:0], 16, 0, 0)
    assert attend(q, keys, values, nobody).shape == (0, 4, 16)


# Reference mode: the 35 tokens of one conversation, all at once and alone, are what any other way gives bit for bit.

SHAPE = {"heads": 1, "kv_heads": 1}
CHAT = Conversation(100, 35, **SHAPE)


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


@pytest.mark.parametrize("page", [0, 16])
def test_bits_of_decode_are_those_of_prefill(whole: Tensor, page: int) -> None:
    """Tokens as the one query of a sequence each."""
    columns = [0, 15, 16, 34]
    decoded = attend(*lay_out([(CHAT, range(column, column + 1)) for column in columns], page), reference=True)
    assert torch.equal(decoded, whole[columns])


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("before", [0, 3, 14])
def test_bits_do_not_depend_on_the_crowd(whole: Tensor, page: int, before: int) -> None:
    """Whatever row of the tile and of the batch it has, and whatever its neighbours are."""
    queries = range(31 - before, 35)
    crowd = [(Conversation(7, 20, **SHAPE), range(20 - before, 20)), (Conversation(8, 3, **SHAPE), range(3))]
    got = attend(*lay_out([crowd[0], (CHAT, queries), crowd[1]], page), reference=True)
    assert torch.equal(got[before : before + len(queries)], whole[queries.start :])


@pytest.mark.parametrize("shift", [1, 5, 20])
def test_bits_do_not_depend_on_left_padding(whole: Tensor, shift: int) -> None:
    """A row of a rectangle that begins `shift` columns later: its idle queries share tiles with the real ones."""
    padded = Conversation(101, 35 + shift, **SHAPE)
    padded.q[shift:], padded.k[shift:], padded.v[shift:] = CHAT.q, CHAT.k, CHAT.v
    for queries in (range(35 + shift), range(34 + shift, 35 + shift)):
        got = attend(*lay_out([(padded, queries)], 0, first=[shift]), reference=True)
        real = max(shift - queries.start, 0)
        assert torch.equal(got[real:], whole[queries.start + real - shift :])


def test_bits_do_not_depend_on_the_group() -> None:
    """The same head beside others, under one KV head."""
    alone, group = Conversation(5, 20, 1, 1), Conversation(6, 20, 5, 1)
    group.q[:, 3:4], group.k, group.v = alone.q, alone.k, alone.v
    want = attend(*lay_out([(alone, range(20))], 16), reference=True)
    assert torch.equal(attend(*lay_out([(group, range(20))], 16), reference=True)[:, 3:4], want)


# What the launcher refuses.


def refused(change, sentence: str) -> None:
    q, keys, values, ragged = lay_out(parts_of([(3, 20), (1, 4)]), 16)
    with pytest.raises(KernelError) as error:
        multi_token_attention(*change(q, keys, values, ragged))
    assert sentence in str(error.value)
    assert str(error.value).startswith("multi_token_attention: ")
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda q, k, v, r: (q.flatten(1), k, v, r), "q has the shape [4, 64]"),
        (lambda q, k, v, r: (q.double(), k, v, r), "q is float64: give float32 or float16 or bfloat16"),
        (lambda q, k, v, r: (q.bfloat16(), k, v, r), "q is bfloat16, which Triton's interpreter gets wrong"),
        (lambda q, k, v, r: (q.mT.contiguous().mT, k, v, r), "its last dimension must be contiguous"),
        (lambda q, k, v, r: (q, k.half(), v, r), "keys is float16: give float32"),
        (lambda q, k, v, r: (q, k[..., :8], v, r), "keys has the shape"),
        (lambda q, k, v, r: (q, k, v[1:], r), "values has the shape"),
        (lambda q, k, v, r: (q, k, v.transpose(0, 1).contiguous().transpose(0, 1), r), "give them the same"),
        (lambda q, k, v, r: (q[:, :3], k, v, r), "there are 3 heads and 2 KV heads"),
        (lambda q, k, v, r: (q, k.expand(2**31, -1, 2, 16), v, r), "keys has the shape"),
        (lambda q, k, v, r: (q, *(kv[:1].expand(2**31, -1, -1) for kv in (k, v)), r), "give fewer than 2^31"),
        (lambda q, k, v, r: (q, k, v, r, q[:, :2]), "out has the shape"),
        (lambda q, k, v, r: (q, k, v, r, q.half()), "out is float16"),
        (lambda q, k, v, r: (q, k, v, replace(r, contexts=r.contexts.long())), "contexts is int64: give int32"),
        (lambda q, k, v, r: (q, k, v, replace(r, cu_seqlens=r.contexts)), "cu_seqlens has the shape [2]"),
        (lambda q, k, v, r: (q, k, v, replace(r, tables=r.tables[:1])), "tables has the shape"),
        (lambda q, k, v, r: (q, k, v, replace(r, first=r.cu_seqlens)), "first has the shape [3]"),
        (lambda q, k, v, r: (q, k, v, replace(r, page=-1)), "page is -1"),
        (lambda q, k, v, r: (q, k, v, replace(r, max_context=49)), "a context has 49 tokens and the tables reach 48"),
        (lambda q, k, v, r: (q, k, v, replace(r, page=0, max_context=81)), "the tables reach 80"),
    ],
)
def test_refusals(change, sentence: str) -> None:
    refused(change, sentence)

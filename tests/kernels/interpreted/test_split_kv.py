"""Decode over split KV in the interpreter: against float64, and bit for bit against itself in other company."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from minifuse.errors import KernelError
from minifuse.kernels import split_kv
from minifuse.kernels.multi_token import multi_token_attention_torch
from minifuse.kernels.ragged import Ragged
from minifuse.kernels.split_kv import decode_attention, decode_attention_torch
from minifuse.kernels.split_shape import SPLIT, grid_of

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.float64: 1e-12}


class Sequence:
    """The last query, and the keys and values of one context, the same whatever it is laid out like."""

    def __init__(self, seed: int, context: int, heads: int = 2, kv_heads: int = 1, dim: int = 16) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.q = torch.randn(heads, dim, generator=draw, dtype=torch.float64)
        self.k, self.v = (torch.randn(context, kv_heads, dim, generator=draw, dtype=torch.float64) for _ in "kv")

    def __len__(self) -> int:
        return len(self.k)

    def expected(self, first: int = 0) -> Tensor:
        """What the query gets, in float64, a head at a time."""
        first = min(first, len(self) - 1)
        group = len(self.q) // self.k.shape[1]
        rows = []
        for head, q in enumerate(self.q):
            k, v = (kv[first:, head // group] for kv in (self.k, self.v))
            rows.append(torch.softmax(k @ q / len(q) ** 0.5, 0) @ v)
        return torch.stack(rows)


def lay_out(
    batch: list[Sequence],
    page: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    first: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Ragged]:
    """Every context in random blocks, or in one piece somewhere; what nobody wrote or may see is NaN."""
    draw = torch.Generator().manual_seed(seed)
    contexts = [len(sequence) for sequence in batch]
    size = page or max(contexts) + 3
    blocks = [-(-context // size) for context in contexts]
    order = torch.randperm(sum(blocks) + 2, generator=draw).tolist()
    _, kv_heads, dim = batch[0].k.shape
    keys, values = (torch.full((len(order) * size, kv_heads, dim), float("nan"), dtype=dtype) for _ in "kv")
    tables = torch.full((len(batch), max(blocks) + 1 if page else 1), -1, dtype=torch.int32)
    for s, sequence in enumerate(batch):
        mine = torch.tensor([order.pop() for _ in range(blocks[s])])
        tables[s, : len(mine)] = mine if page else mine * size
        token = torch.arange(min(first[s], contexts[s] - 1) if first else 0, contexts[s])
        slot = mine[token // size] * size + token % size
        keys[slot], values[slot] = sequence.k[token].to(dtype), sequence.v[token].to(dtype)
    ragged = Ragged(
        torch.arange(len(batch) + 1, dtype=torch.int32),
        torch.tensor(contexts, dtype=torch.int32),
        tables,
        page,
        1,
        max(contexts),
        None if first is None else torch.tensor(first, dtype=torch.int32),
    )
    return torch.stack([sequence.q for sequence in batch]).to(dtype), keys, values, ragged


def batch_of(contexts: list[int], heads: int = 4, kv_heads: int = 2, dim: int = 16) -> list[Sequence]:
    return [Sequence(seed, context, heads, kv_heads, dim) for seed, context in enumerate(contexts)]


def expected(batch: list[Sequence], first: list[int] | None = None) -> Tensor:
    return torch.stack([s.expected(low) for s, low in zip(batch, first or [0] * len(batch), strict=True)])


def attend(*given, split: int = SPLIT) -> Tensor:
    """The kernel, into an output that held NaN."""
    out = torch.full_like(given[0], float("nan"))
    assert decode_attention(*given, out, split=split) is out
    return out


def assert_near(got: Tensor, want: Tensor) -> None:
    assert got.isfinite().all()
    torch.testing.assert_close(got.double(), want, rtol=0, atol=TOLERANCE[got.dtype])


@pytest.fixture(autouse=True)
def poisoned_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no split has left behind is NaN, and must not be read."""
    workspace = split_kv.workspace
    monkeypatch.setattr(
        split_kv, "workspace", lambda q, splits: tuple(room.fill_(float("nan")) for room in workspace(q, splits))
    )


UNEVEN = [1, 31, 32, 33, 64, 150, 1, 97]


@pytest.mark.parametrize("page", [0, 5, 16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"),
    [(2, 2, 16), (4, 1, 16), (6, 2, 24), (7, 1, 8), (20, 1, 16), (2, 1, 72)],
    ids=["alone", "group 4", "group 3 d24", "group 7 d8", "group 20", "d72"],
)
def test_any_lengths(heads: int, kv_heads: int, dim: int, page: int) -> None:
    """Below, at and above one split and several."""
    batch = batch_of(UNEVEN, heads, kv_heads, dim)
    given = lay_out(batch, page)
    assert_near(attend(*given, split=32), expected(batch))
    assert_near(decode_attention_torch(*given), expected(batch))


@pytest.mark.parametrize("page", [0, 16])
def test_several_tiles_in_a_split(page: int) -> None:
    """A tile has 128 tokens here, the last one of a split 32."""
    batch = batch_of([400, 129, 160, 161, 320, 1])
    assert_near(attend(*lay_out(batch, page), split=160), expected(batch))


@pytest.mark.parametrize("page", [0, 16])
def test_long_and_very_uneven(page: int) -> None:
    batch = batch_of([3000, 1, 2 * SPLIT, SPLIT, SPLIT + 1, 7])
    given = lay_out(batch, page)
    assert_near(attend(*given), expected(batch))
    assert_near(attend(*given), decode_attention_torch(*given).double())


def test_more_splits_than_are_weighed_at_once() -> None:
    """64 of them are."""
    batch = batch_of([64 * 4, 129 * 4 - 1, 3], 1, 1)
    assert_near(attend(*lay_out(batch, 16), split=4), expected(batch))


def test_more_splits_than_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_of(UNEVEN)
    given = lay_out(batch, 16)
    want = attend(*given, split=32)
    monkeypatch.setattr(split_kv, "grid_of", lambda q, keys, splits: (keys.shape[1], 2, len(q)))
    assert torch.equal(attend(*given, split=32), want)


def test_programs() -> None:
    def grid(num_sequences: int, kv_heads: int, splits: int) -> tuple[int, ...]:
        shapes = (num_sequences, 4 * kv_heads, 128), (0, kv_heads, 128)
        return grid_of(*(torch.empty(shape, device="meta") for shape in shapes), splits)

    assert grid(64, 8, 8) == (8, 8, 64)
    assert grid(1, 8, 256) == (8, 256, 1)  # one long context, and everything is its own
    assert grid(8, 1, 2000) == (1, 1024, 8)
    assert grid(256, 8, 256) == (8, 32, 256)


def test_what_one_split_holds_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    run = split_kv._reduce_kernel.run
    monkeypatch.setattr(split_kv._reduce_kernel, "run", lambda *a, **k: (launched.append(1), run(*a, **k)))
    for contexts in ([32, 1], [32, 33]):
        batch = batch_of(contexts)
        assert_near(attend(*lay_out(batch, 16), split=32), expected(batch))
    assert len(launched) == 1


@pytest.mark.parametrize("page", [0, 16])
def test_float16(page: int) -> None:
    batch = batch_of([150, 1, 64, 33])
    given = lay_out(batch, page, torch.float16)
    assert_near(attend(*given, split=64), expected(batch))
    assert_near(decode_attention_torch(*given), expected(batch))


@pytest.mark.parametrize("page", [0, 5])
def test_twin_in_float64(page: int) -> None:
    """It is also what multi-token attention makes of a single query."""
    batch = batch_of(UNEVEN)
    for first in (None, [0, 40, 5, 33, 0, 149, 1, 16]):
        given = lay_out(batch, page, torch.float64, first=first)
        assert_near(decode_attention_torch(*given), expected(batch, first))
        assert_near(multi_token_attention_torch(*given), expected(batch, first))


@pytest.mark.parametrize("page", [0, 16])
def test_padded_rectangle(page: int) -> None:
    """Columns before `first` hold NaN; a row whose query is idle sees itself alone."""
    first = [0, 1, 17, 32, 33, 98, 99, 200]
    batch = batch_of([100] * len(first))
    assert_near(attend(*lay_out(batch, page, first=first), split=32), expected(batch, first))


def test_large_scores() -> None:
    """The peak moves from tile to tile and from split to split, by more than an exponent can hold."""
    batch = batch_of([400, 64])
    for sequence in batch:
        sequence.k *= torch.linspace(0, 300, len(sequence), dtype=torch.float64)[:, None, None]
    given = lay_out(batch, 16)
    exact = lay_out(batch, 16, torch.float64)
    got = attend(*given, split=160)
    want = decode_attention_torch(*(t.float().double() for t in exact[:3]), exact[3])
    torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-3)  # scores of some hundreds, in float32


def test_views() -> None:
    """Queries cut out of a fused projection, KV of one of several layers, output heads with gaps."""
    batch = batch_of([70, 20])
    q, keys, values, ragged = lay_out(batch, 16)
    fused = torch.full((2, 10, 16), float("nan"))
    fused[:, 2:6] = q
    storage = torch.full((2, 3, *keys.shape), float("nan"))
    storage[:, 1] = torch.stack([keys, values])
    out = torch.full((2, 8, 16), 7.0)
    decode_attention(fused[:, 2:6], *storage[:, 1], ragged, out[:, ::2], split=32)
    assert_near(out[:, ::2], expected(batch))
    assert (out[:, 1::2] == 7.0).all()
    assert torch.equal(decode_attention(q, keys, values, ragged, split=32), out[:, ::2])


def test_far_slots() -> None:
    """Slot times stride exceeds 2^31. The 4 GiB are reserved, and hardly touched."""
    room = torch.empty(2**31 + 64, dtype=torch.float16)
    keys, values = (room.as_strided((3, 1, 16), (2**30, 16, 1), start) for start in (0, 32))
    for page, table in ((1, [2, 0, 1]), (0, [1])):
        batch = [Sequence(0, 3 if page else 2)]
        slots = table if page else [1, 2]
        keys[slots], values[slots] = batch[0].k.half(), batch[0].v.half()
        ragged = lay_out(batch, page)[3]
        ragged = replace(ragged, tables=torch.tensor([table], dtype=torch.int32))
        assert_near(attend(batch[0].q[None].half(), keys, values, ragged), expected(batch))


def test_nobody() -> None:
    q, keys, values, ragged = lay_out(batch_of([7]), 16)
    nobody = Ragged(ragged.cu_seqlens[:1], ragged.contexts[:0], ragged.tables[:0], 16, 0, 0)
    assert attend(q[:0], keys, values, nobody).shape == (0, 4, 16)
    assert decode_attention(q[:0], keys, values, nobody).shape == (0, 4, 16)


# A sequence of 97 tokens gets the bits that it gets alone, in splits of 32, whatever surrounds it.

CHAT = Sequence(100, 97, 3, 1)


@pytest.fixture(scope="module")
def alone() -> Tensor:
    return decode_attention(*lay_out([CHAT], 16), split=32)[0]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("others", [(1, 5), (300, 32), (97, 128)])
def test_bits_do_not_depend_on_the_crowd(alone: Tensor, others: tuple[int, int], place: int) -> None:
    crowd = [Sequence(seed, context, 3, 1) for seed, context in enumerate(others)]
    crowd.insert(place, CHAT)
    assert torch.equal(attend(*lay_out(crowd, 16), split=32)[place], alone)


@pytest.mark.parametrize("max_context", [98, 128, 129, 2500])
def test_bits_do_not_depend_on_the_longest_context(alone: Tensor, max_context: int) -> None:
    q, keys, values, ragged = lay_out([CHAT], 0)
    keys, values = (torch.nn.functional.pad(kv, (0, 0, 0, 0, 0, 2500), value=float("nan")) for kv in (keys, values))
    assert torch.equal(attend(q, keys, values, replace(ragged, max_context=max_context), split=32)[0], alone)


@pytest.mark.parametrize("context", [1, 31, 32])
def test_bits_of_a_single_split(context: int) -> None:
    """Alone there is no second kernel; in the crowd there is."""
    short = Sequence(3, context, 3, 1)
    want = attend(*lay_out([short], 16), split=32)[0]
    assert torch.equal(attend(*lay_out([CHAT, short], 16), split=32)[1], want)


@pytest.mark.parametrize(("page", "seed"), [(16, 1), (16, 2), (0, 0), (0, 1), (1, 0), (5, 0), (64, 0)])
def test_bits_do_not_depend_on_where_kv_lies(alone: Tensor, page: int, seed: int) -> None:
    assert torch.equal(attend(*lay_out([CHAT], page, seed=seed), split=32)[0], alone)


@pytest.mark.parametrize("shift", [1, 5, 40])
def test_bits_do_not_depend_on_left_padding(alone: Tensor, shift: int) -> None:
    padded = Sequence(101, 97 + shift, 3, 1)
    padded.q, padded.k[shift:], padded.v[shift:] = CHAT.q, CHAT.k, CHAT.v
    assert torch.equal(attend(*lay_out([padded], 0, first=[shift]), split=32)[0], alone)


# What the launcher refuses.


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda q, k, v, r: (q.flatten(1), k, v, r), "q has the shape [2, 64]"),
        (lambda q, k, v, r: (q.double(), k, v, r), "q is float64: give float32 or float16 or bfloat16"),
        (lambda q, k, v, r: (q.bfloat16(), k, v, r), "q is bfloat16, which Triton's interpreter gets wrong"),
        (lambda q, k, v, r: (q.mT.contiguous().mT, k, v, r), "its last dimension must be contiguous"),
        (lambda q, k, v, r: (q, k.half(), v, r), "keys is float16: give float32"),
        (lambda q, k, v, r: (q, k[..., :8], v, r), "keys has the shape"),
        (lambda q, k, v, r: (q, k, v[1:], r), "values has the shape"),
        (lambda q, k, v, r: (q, k, v.transpose(0, 1).contiguous().transpose(0, 1), r), "give them the same"),
        (lambda q, k, v, r: (q[:, :3], k, v, r), "there are 3 heads and 2 KV heads: give a multiple"),
        (lambda q, k, v, r: (q, *(kv[:1].expand(2**31, -1, -1) for kv in (k, v)), r), "give fewer than 2^31"),
        (lambda q, k, v, r: (q[:1].expand(2**16, -1, -1), k, v, r), "there are 65536 queries: give fewer than 2^16"),
        (lambda q, k, v, r: (q, k, v, r, q[:, :2]), "out has the shape"),
        (lambda q, k, v, r: (q, k, v, r, q.half()), "out is float16"),
        (lambda q, k, v, r: (q[:1], k, v, r), "2 sequences have 1 queries, up to 1 each: give one query per sequence"),
        (lambda q, k, v, r: (q, k, v, replace(r, max_queries=2)), "2 sequences have 2 queries, up to 2 each"),
        (lambda q, k, v, r: (q, k, v, replace(r, contexts=r.contexts.long())), "contexts is int64: give int32"),
        (lambda q, k, v, r: (q, k, v, replace(r, tables=r.tables[:1])), "tables has the shape"),
        (lambda q, k, v, r: (q, k, v, replace(r, first=r.cu_seqlens)), "first has the shape [3]"),
        (lambda q, k, v, r: (q, k, v, replace(r, page=-1)), "page is -1"),
        (lambda q, k, v, r: (q, k, v, replace(r, max_context=49)), "has 49 tokens and the tables reach 48"),
        (lambda q, k, v, r: (q, k, v, replace(r, page=0, max_context=81)), "the tables reach 80"),
        (lambda q, k, v, r: (q, k, v, replace(r, max_context=0)), "max_context is 0"),
        (lambda q, k, v, r: (q, k, v, replace(r, max_context=5)), "longer than max_context, which is 5"),
        (lambda q, k, v, r: (q, k, v, replace(r, cu_seqlens=r.cu_seqlens * 2)), "cu_seqlens are [0, 2, 4] and q has 2"),
    ],
)
def test_refusals(change, sentence: str) -> None:
    with pytest.raises(KernelError) as error:
        decode_attention(*change(*lay_out(batch_of([20, 4]), 16)))
    assert sentence in str(error.value)
    assert str(error.value).startswith("decode_attention: ")
    assert str(error.value).endswith(".")


def test_no_split() -> None:
    with pytest.raises(KernelError, match=r"decode_attention: split is 0: give at least one token\."):
        decode_attention(*lay_out(batch_of([20]), 16), split=0)

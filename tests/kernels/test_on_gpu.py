"""Every kernel on a real device: run with `-m gpu`. Most of the time goes into compiling, where `-n 8` helps.

Under TRITON_INTERPRET=1 fewer of the same tests run on CPU tensors. That shows that the tests work, and nothing about a
GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is for Linux only")

from minifuse.kernels.copy import (
    gather_slots,
    gather_slots_torch,
    move_slots,
    move_slots_torch,
    scatter_slots,
    scatter_slots_torch,
)
from minifuse.kernels.launch import INTERPRETED
from minifuse.kernels.lstm import lstm_cell, lstm_cell_torch
from minifuse.kernels.multi_token import multi_token_attention, multi_token_attention_torch
from minifuse.kernels.noise import gumbel_noise
from minifuse.kernels.ragged import Ragged
from minifuse.kernels.rms_norm import rms_norm, rms_norm_torch
from minifuse.kernels.rotary_write import rotate_and_write, rotate_and_write_torch
from minifuse.kernels.sampling import argmax, gumbel_argmax
from minifuse.kernels.slots import slots_attention, slots_attention_torch
from minifuse.kernels.split_kv import decode_attention, decode_attention_torch
from minifuse.kernels.split_shape import SPLIT
from minifuse.kernels.swiglu import silu_mul, silu_mul_torch
from minifuse.model.text.load import TextSource, build, random_weights
from minifuse.model.text.transformer import Transformer
from minifuse.naive import oracle
from minifuse.report import StepReport
from minifuse.request import GREEDY, Request, Sampling
from minifuse.serve.build import build_engine
from minifuse.serve.run import Answer, serve
from minifuse.serve.settings import Settings
from minifuse.techniques import TECHNIQUES, serving
from minifuse.testing.texts.models import CONFIGS, VOCAB

pytestmark = [
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
NAN = float("nan")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where every tensor of this file lies."""
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture(params=SEEDS)
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


@dataclass
class Draw:
    """Random tensors on a device, rounded to a dtype. Numbers come from the CPU, the same for every device."""

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
        return torch.full(shape, NAN, dtype=self.dtype, device=self.device)

    def form(self) -> tuple[tuple[int, int, int], int]:
        """Query heads, KV heads and head_dim, powers of two or not; and the slots in a block."""
        return self.rng.choice(SMALL_FORMS if INTERPRETED else FORMS)


def near(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    """What rounding explains: the output to `dtype`, and inside it factors that were rounded to it."""
    assert got.isfinite().all(), "not everything was written, or something was read that nobody wrote"
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(got.double(), want.double(), rtol=2 * eps, atol=max(4 * eps, 2e-5))


# Attention.


@dataclass
class Layout:
    """Contexts in permuted blocks or in pieces; what nobody wrote is NaN."""

    keys: Tensor
    values: Tensor
    tables: Tensor
    page: int

    @classmethod
    def of(cls, draw: Draw, kv: list[tuple[Tensor, Tensor]], page: int, unwritten: Sequence[int] = ()) -> Layout:
        """Of each context's keys and values, without the first `unwritten` tokens."""
        contexts = [len(keys) for keys, _ in kv]
        size = page or max(contexts) + 3
        blocks = [-(-context // size) for context in contexts]
        order = draw.order(sum(blocks) + 2)
        keys, values = (draw.nan(len(order) * size, *kv[0][0].shape[1:]) for _ in "kv")
        rows = []
        for s, (context, (own_keys, own_values)) in enumerate(zip(contexts, kv, strict=True)):
            mine = [order.pop() for _ in range(blocks[s])]
            token = torch.arange(unwritten[s] if unwritten else 0, context)
            slots = (torch.tensor(mine)[token // size] * size + token % size).to(draw.device)
            keys[slots], values[slots] = (own[token.to(draw.device)] for own in (own_keys, own_values))
            rows.append([*mine, *[-1] * (max(blocks) + 1 - len(mine))] if page else [mine[0] * size])
        return cls(keys, values, draw.int32(rows), page)


@dataclass
class Batch:
    """Queries over a layout, and both for the twin: the same numbers in float64."""

    q: Tensor
    layout: Layout
    ragged: Ragged

    def attend(self, kernel: Callable[..., Tensor], **how: Any) -> Tensor:
        out = torch.full_like(self.q, NAN)
        assert kernel(self.q, self.layout.keys, self.layout.values, self.ragged, out, **how) is out
        return out

    def twin(self, twin: Callable[..., Tensor]) -> Tensor:
        return twin(self.q.double(), self.layout.keys.double(), self.layout.values.double(), self.ragged)


def batch_of(
    draw: Draw, parts: Sequence[tuple[int, int]], heads: tuple[int, int, int], page: int, *, padded: bool = False
) -> Batch:
    """(queries, context) pairs; `padded`: contexts begin with columns that hold nothing."""
    num_heads, num_kv_heads, dim = heads
    queries, contexts = zip(*parts, strict=True)
    kv = [(draw.normal(n, num_kv_heads, dim), draw.normal(n, num_kv_heads, dim)) for n in contexts]
    first = [draw.rng.randrange(context) for context in contexts] if padded else []
    unwritten = [min(column, context - n) for column, (n, context) in zip(first, parts, strict=False)]
    layout = Layout.of(draw, kv, page, unwritten)
    ragged = Ragged(
        draw.int32([0, *accumulate(queries)]),
        draw.int32(contexts),
        layout.tables,
        page,
        max(queries),
        max(contexts),
        draw.int32(first) if padded else None,
    )
    return Batch(draw.normal(sum(queries), num_heads, dim), layout, ragged)


def lengths(rng: random.Random, longest: int) -> int:
    return rng.choice([1, 2, 15, 16, 17, 64, 65, rng.randint(1, longest), longest])


def random_parts(rng: random.Random) -> list[tuple[int, int]]:
    """Prompts, chunks, decodes, and sequences without a query."""
    parts = []
    for _ in range(rng.randint(1, 3 if INTERPRETED else 9)):
        context = min(lengths(rng, LONGEST), LONGEST)
        parts.append((rng.choice([0, 1, 1, context, rng.randint(1, context)]), context))
    return parts


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("reference", [False, True], ids=["fast", "reference"])
def test_multi_token(device, dtype, rng, reference, padded) -> None:
    draw = Draw(rng, device, dtype)
    parts = random_parts(rng)
    if reference and INTERPRETED:
        parts = [(min(n, 3), min(max(n, context), 20)) for n, context in parts]
    batch = batch_of(draw, parts, *draw.form(), padded=padded)
    near(batch.attend(multi_token_attention, reference=reference), batch.twin(multi_token_attention_torch), dtype)


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
def test_decode(device, dtype, rng, padded) -> None:
    draw = Draw(rng, device, dtype)
    split = 32 if INTERPRETED else SPLIT
    longest = LONGEST if INTERPRETED else 5 * LONGEST
    parts = [(1, min(lengths(rng, longest), longest)) for _ in range(rng.randint(1, 4 if INTERPRETED else 20))]
    batch = batch_of(draw, parts, *draw.form(), padded=padded)
    near(batch.attend(decode_attention, split=split), batch.twin(decode_attention_torch), dtype)


def test_decode_of_so_many_splits_that_they_are_reduced_in_steps(device, dtype) -> None:
    draw = Draw(random.Random(0), device, dtype)
    batch = batch_of(draw, [(1, 16 * 150 + 3), (1, 5), (1, 16 * 64), (1, 16 * 64 + 1)], (2, 1, 16), 16)
    near(batch.attend(decode_attention, split=16), batch.twin(decode_attention_torch), dtype)


def test_slots(device, dtype, rng) -> None:
    draw = Draw(rng, device, dtype)
    offset, size, width = rng.randint(0, 3), rng.randint(1, 4), rng.choice([1, 40, LONGEST])
    (num_heads, num_kv_heads, dim), _ = draw.form()
    keys, values = (draw.nan((offset + size + 1) * width, num_kv_heads, dim) for _ in "kv")
    held = [rng.randint(1, width) for _ in range(size)]
    for row, length in enumerate(held):
        begin = (offset + row) * width
        keys[begin : begin + length] = draw.normal(length, num_kv_heads, dim)
        values[begin : begin + length] = draw.normal(length, num_kv_heads, dim)
    q, out = draw.normal(size, num_heads, dim), draw.nan(size, num_heads, dim)
    given = {"offset": offset, "size": size, "width": width, "max_length": rng.choice([None, max(held)])}
    want = slots_attention_torch(q.double(), keys.double(), values.double(), draw.int32(held), **given)
    got = slots_attention(q, keys, values, draw.int32(held), **given, out=out, split=32 if INTERPRETED else SPLIT)
    assert got is out
    near(got, want, dtype)


def test_attention_of_nobody(device, dtype) -> None:
    draw = Draw(random.Random(0), device, dtype)
    idle = batch_of(draw, [(0, 7), (0, 2)], (4, 2, 16), 16)
    assert idle.attend(multi_token_attention).shape == (0, 4, 16)
    nobody = Ragged(draw.int32([0]), draw.int32([]), idle.layout.tables[:0], 16, 0, 0)
    assert replace(idle, ragged=nobody).attend(decode_attention).shape == (0, 4, 16)
    keys, values = idle.layout.keys, idle.layout.values
    assert slots_attention(idle.q, keys, values, draw.int32([]), offset=0, size=0, width=4).shape == (0, 4, 16)


@pytest.mark.skipif(INTERPRETED, reason="10 GB of KV")
@pytest.mark.parametrize("page", [0, 16])
def test_slots_beyond_2_to_the_31_elements(device, page) -> None:
    """The context lies at the very end of a storage of more than 2^32 bytes, elements past 2^31."""
    draw = Draw(random.Random(page), device, torch.bfloat16)
    slots, kv_heads, dim = 2**31 // 1024 + 4096, 8, 128
    keys, values = (torch.full((slots, kv_heads, dim), NAN, dtype=torch.bfloat16, device=device) for _ in "kv")
    context = 1000
    begin = slots - 1024
    keys[begin : begin + context] = draw.normal(context, kv_heads, dim)
    values[begin : begin + context] = draw.normal(context, kv_heads, dim)
    blocks = list(range(begin // 16, slots // 16)) if page else [begin]
    for queries, kernel in ((200, multi_token_attention), (1, decode_attention)):
        bounds = draw.int32([0, queries])
        ragged = Ragged(bounds, draw.int32([context]), draw.int32([blocks]), page, queries, context)
        q = draw.normal(queries, 32, dim)
        near(kernel(q, keys, values, ragged), multi_token_attention_torch(q, keys, values, ragged), torch.bfloat16)
    q = draw.normal(1, 32, dim)
    where = {"offset": slots // 1024 - 1, "size": 1, "width": 1024}
    given = (q, keys, values, draw.int32([context]))
    near(slots_attention(*given, **where), slots_attention_torch(*given, **where), torch.bfloat16)
    into = torch.arange(slots - 50, slots, device=device)
    new = draw.normal(50, kv_heads, dim)
    rotate_and_write(new, new, new, keys, values, into, None)
    assert torch.equal(keys[into], new)
    move_slots(keys[None], values[None], [(slots - 50, 7, 50)])
    assert torch.equal(values[7:57], new)
    staging = gather_slots(keys[None], values[None], into)
    assert torch.equal(staging[0, 0], new)
    scatter_slots(staging, keys[None], values[None], into - 3000)
    assert torch.equal(keys[into - 3000], new)


# Reference mode: what a token of one text gets is the same bit for bit, however and in whose company it is computed.


@dataclass
class Text:
    q: Tensor
    k: Tensor
    v: Tensor

    def __len__(self) -> int:
        return len(self.q)


TEXT = 35 if INTERPRETED else 300


@pytest.fixture(params=[(1, 1, 16)] if INTERPRETED else [(1, 1, 64), (8, 2, 128), (7, 1, 24)], ids=str)
def heads(request: pytest.FixtureRequest) -> tuple[int, int, int]:
    return request.param


def text(draw: Draw, heads: tuple[int, int, int], length: int) -> Text:
    num_heads, kv_heads, dim = heads
    return Text(*(draw.normal(length, n, dim) for n in (num_heads, kv_heads, kv_heads)))


def in_reference(
    draw: Draw, parts: list[tuple[Text, range]], page: int, first: Sequence[int] = (), unwritten: Sequence[int] = ()
) -> Tensor:
    layout = Layout.of(draw, [(t.k[: r.stop], t.v[: r.stop]) for t, r in parts], page, unwritten)
    ragged = Ragged(
        draw.int32([0, *accumulate(len(r) for _, r in parts)]),
        draw.int32([r.stop for _, r in parts]),
        layout.tables,
        page,
        max(len(r) for _, r in parts),
        max(r.stop for _, r in parts),
        draw.int32(first) if first else None,
    )
    q = torch.cat([t.q[r.start : r.stop] for t, r in parts])
    return Batch(q, layout, ragged).attend(multi_token_attention, reference=True)


def test_bits_do_not_depend_on_layout_or_chunks(device, dtype, heads) -> None:
    draw = Draw(random.Random(5), device, dtype)
    chat = text(draw, heads, TEXT)
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


def test_bits_do_not_depend_on_company(device, dtype, heads) -> None:
    draw = Draw(random.Random(6), device, dtype)
    chat, other, third = (text(draw, heads, n) for n in (TEXT, 20, 3))
    whole = in_reference(draw, [(chat, range(TEXT))], 16)
    for before in (0, 3, 14):
        queries = range(TEXT - 4 - before, TEXT)
        parts = [(other, range(20 - before, 20)), (chat, queries), (third, range(3))]
        got = in_reference(draw, parts, 16)
        assert torch.equal(got[before : before + len(queries)], whole[queries.start :]), f"{before} rows before"
    for shift in (1, 5, 20):
        padded = text(draw, heads, TEXT + shift)
        padded.q[shift:], padded.k[shift:], padded.v[shift:] = chat.q, chat.k, chat.v
        end = TEXT + shift
        for queries in (range(end), range(end - 1, end)):
            got = in_reference(draw, [(padded, queries)], 0, [shift], [min(shift, queries.start)])
            real = max(shift - queries.start, 0)
            assert torch.equal(got[real:], whole[queries.start + real - shift :]), f"{shift} columns of padding"


# The other kernels.


def rows_apart(draw: Draw, n: int, width: int) -> Tensor:
    """[n, width], in one piece or cut out of something wider."""
    if draw.rng.random() < 0.5:
        return draw.normal(n, width)
    return draw.normal(n, width + 24)[:, 8 : 8 + width]


@pytest.mark.parametrize("residual", [False, True], ids=["", "residual"])
def test_rms_norm(device, dtype, rng, residual) -> None:
    draw = Draw(rng, device, dtype)
    n, hidden = rng.choice([0, 1, 7]), rng.choice([1, 100, 300] if INTERPRETED else [1, 100, 5120, 16384])
    x, weight = rows_apart(draw, n, hidden), draw.normal(hidden, dtype=torch.float32 if hidden == 100 else dtype)
    if not residual:
        near(rms_norm(x, weight, 1e-5), rms_norm_torch(x.double(), weight.double(), 1e-5), dtype)
        return
    added = rows_apart(draw, n, hidden)
    out, summed = rms_norm(x, weight, 1e-5, added)
    assert torch.equal(summed, x + added)
    near(out, rms_norm_torch(summed.double(), weight.double(), 1e-5), dtype)


def test_silu_mul(device, dtype, rng) -> None:
    draw = Draw(rng, device, dtype)
    x = 5 * rows_apart(draw, rng.choice([0, 1, 9]), 2 * rng.choice([1, 100, 1500]))
    near(silu_mul(x), silu_mul_torch(x.double()), dtype)
    far = torch.tensor([[-1e4, 1e4, 2.0, 3.0]], dtype=dtype, device=device)
    near(silu_mul(far), torch.tensor([[0.0, 3e4]]).to(device), dtype)


def test_lstm_cell(device, dtype, rng) -> None:
    draw = Draw(rng, device, dtype)
    n, width = rng.choice([0, 1, 9]), rng.choice([1, 100, 1500])
    gates, cell = 3 * rows_apart(draw, n, 4 * width), rows_apart(draw, n, width)
    for got, want in zip(lstm_cell(gates, cell), lstm_cell_torch(gates.double(), cell.double()), strict=True):
        near(got, want, dtype)


def test_rotate_and_write(device, dtype, rng) -> None:
    draw = Draw(rng, device, dtype)
    n = rng.choice([0, 1, 13])
    (num_heads, num_kv_heads, dim), _ = draw.form()
    rotary_dim, interleaved = rng.choice([(0, False), (dim, False), (dim // 2, True)])
    q, k, v = draw.normal(n, num_heads + 2 * num_kv_heads, dim).split((num_heads, num_kv_heads, num_kv_heads), 1)
    slots = torch.tensor([s if rng.random() < 0.8 else -1 for s in draw.order(2 * n)[:n]], dtype=torch.int64).to(device)
    keys, values = (draw.nan(2 * n + 1, num_kv_heads, dim) for _ in "kv")
    wide_keys, wide_values = keys.double(), values.double()
    angle = draw.normal(n, 1, rotary_dim, dtype=torch.float32)
    rotary = (angle.cos(), angle.sin()) if rotary_dim else None
    out = rotate_and_write(q, k, v, keys, values, slots, rotary, interleaved=interleaved)
    wide = rotary and tuple(x.double() for x in rotary)
    want = rotate_and_write_torch(
        q.double(), k.double(), v.double(), wide_keys, wide_values, slots, wide, interleaved=interleaved
    )
    near(out, want, dtype)
    for kv, wide_kv in ((keys, wide_keys), (values, wide_values)):
        written = ~wide_kv.isnan()
        assert torch.equal(kv.isnan(), ~written), "a slot was written that should not be, or the other way round"
        near(kv[written], wide_kv[written], dtype)
    assert torch.equal(values[slots[slots >= 0]], v[slots >= 0])


def test_copies(device, dtype, rng) -> None:
    draw = Draw(rng, device, dtype)
    layers, (kv_heads, dim) = rng.choice([1, 3]), rng.choice([(1, 1), (3, 5), (2, 12), (8, 64)])
    run, runs = rng.choice([1, 7, 16, 50 if INTERPRETED else 700]), rng.randint(1, 5)
    slots = 2 * run * runs + 1
    keys, values = draw.normal(layers, slots, kv_heads, dim), draw.normal(layers, slots, kv_heads, dim)
    sources = [2 * place * run for place in draw.order(runs)]
    moves = [(source, (2 * i + 1) * run, rng.randint(0, run)) for i, source in enumerate(sources)]
    want = keys.clone(), values.clone()
    move_slots_torch(*want, moves)
    move_slots(keys, values, moves)
    assert torch.equal(keys, want[0])
    assert torch.equal(values, want[1])

    some = torch.tensor(draw.order(slots)[: rng.choice([0, 1, slots // 2])], dtype=torch.int64).to(device)
    staging = gather_slots(keys, values, some)
    assert torch.equal(staging, gather_slots_torch(keys, values, some))
    into = torch.tensor(draw.order(slots)[: len(some)], dtype=torch.int64).to(device)
    scatter_slots_torch(staging, *want, into)
    scatter_slots(staging, keys, values, into)
    assert torch.equal(keys, want[0])
    assert torch.equal(values, want[1])


@pytest.mark.parametrize("vocab", [1, 100, 20000])
def test_argmax(device, dtype, rng, vocab) -> None:
    """Ties, infinities and NaN, against Python's own order; and every row alone."""
    draw = Draw(rng, device, dtype)
    n = rng.randint(1, 5)
    x = draw.normal(n, vocab)
    if rng.random() < 0.5:
        x = (4 * x).round()
    for row in range(n):
        kind = rng.choice(["", "", "inf", "-inf", "nan"])
        if kind == "-inf":
            x[row] = float("-inf")
        elif kind:
            x[row, rng.choices(range(vocab), k=2)] = float(kind)
    want = [max(range(vocab), key=lambda i, row=row: (row[i] != row[i], row[i])) for row in x.tolist()]
    assert argmax(x).tolist() == want, "the first NaN, or the first of the largest"
    assert [argmax(x[row : row + 1]).item() for row in range(n)] == want
    assert argmax(x[:0]).tolist() == []


@pytest.mark.parametrize("logits", [torch.float32, torch.float64])
def test_gumbel_argmax(device, logits, rng) -> None:
    draw = Draw(rng, device, logits)
    n, vocab = rng.choice([0, 1, 5]), rng.choice([1, 100, 2000 if INTERPRETED else 50000])
    scaled = draw.normal(n, vocab)
    scaled[:, 1::3] = float("-inf")
    seeds = torch.tensor([rng.getrandbits(63) for _ in range(n)], dtype=torch.int64).to(device)
    positions = torch.tensor([rng.randint(0, 10**6) for _ in range(n)], dtype=torch.int64).to(device)
    noisy = (scaled.double() + gumbel_noise(seeds, positions, vocab)).cpu()
    drawn = gumbel_argmax(scaled, seeds, positions).cpu()
    best, taken = noisy.max(-1).values, noisy.gather(-1, drawn[:, None])[:, 0]
    assert (best - taken <= 1e-12).all(), "logarithms differ in the last digit; the noise does not otherwise"
    alone = [gumbel_argmax(scaled[i : i + 1], seeds[i : i + 1], positions[i : i + 1]).item() for i in range(n)]
    assert alone == drawn.tolist()


# Again and again, and all at once.

Job = Callable[[], tuple[Tensor, ...]]


def jobs(device: torch.device, dtype: torch.dtype, seed: int) -> dict[str, Job]:
    """Every kernel on inputs of its own. What is written in place is written into a copy."""
    rng = random.Random(seed)
    draw = Draw(rng, device, dtype)
    long = 80 if INTERPRETED else 3000
    shape = (4, 2, 16) if INTERPRETED else (8, 2, 128)
    chunk = batch_of(draw, [(5, long), (1, 33), (40, 40)], shape, 16)
    decode = batch_of(draw, [(1, long), (1, 1), (1, 600 if not INTERPRETED else 40)], shape, 16)
    x, other, weight, cell = (draw.normal(64, 256), draw.normal(64, 256), draw.normal(256), draw.normal(64, 64))
    q, k, v = draw.normal(64, 8, 32).split((4, 2, 2), 1)
    angle = draw.normal(64, 1, 32, dtype=torch.float32)
    slots = torch.tensor(draw.order(128)[:64]).to(device)
    keys, values = draw.normal(2, 128, 2, 32), draw.normal(2, 128, 2, 32)
    size = 2
    held = draw.int32([rng.randint(1, 40) for _ in range(size)])
    logits = draw.normal(4, 9000)
    seeds = torch.arange(4, device=device)
    apart = [(i * 32, i * 32 + 16, 16) for i in range(4)]

    def written(write: Callable[[Tensor, Tensor], Any]) -> Job:
        def job() -> tuple[Tensor, ...]:
            own = keys.clone(), values.clone()
            out = write(*own)
            return own if out is None else (*own, out)

        return job

    return {
        "multi_token": lambda: (chunk.attend(multi_token_attention),),
        "multi_token reference": lambda: (chunk.attend(multi_token_attention, reference=True),),
        "decode": lambda: (decode.attend(decode_attention, split=32),),
        "slots": lambda: (
            slots_attention(q[:size], keys[0], values[0], held, offset=1, size=size, width=40, split=32),
        ),
        "rms_norm": lambda: rms_norm(x, weight, 1e-5, other),
        "silu_mul": lambda: (silu_mul(x),),
        "lstm_cell": lambda: lstm_cell(x, cell),
        "rotate_and_write": written(
            lambda keys, values: rotate_and_write(q, k, v, keys[0], values[1], slots, (angle.cos(), angle.sin()))
        ),
        "move_slots": written(lambda keys, values: move_slots(keys, values, apart)),
        "gather and scatter": written(
            lambda keys, values: scatter_slots(gather_slots(keys, values, slots), keys, values, slots.flip(0))
        ),
        "argmax": lambda: (argmax(logits),),
        "gumbel_argmax": lambda: (gumbel_argmax(logits.float(), seeds, seeds),),
    }


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def same(got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


@pytest.mark.parametrize("name", list(jobs(torch.device("cpu"), torch.float32, 0)))
def test_repeated_launches_give_the_same_bits(device, dtype, name) -> None:
    job = jobs(device, dtype, 1)[name]
    want = job()
    for again in range(REPEATS):
        assert same(job(), want), f"launch {again + 2} differs from the first"


@pytest.mark.parametrize("name", list(jobs(torch.device("cpu"), torch.float32, 0)))
def test_streams_do_not_disturb_each_other(device, dtype, name) -> None:
    """Threads with a stream each, all launching at once; on a CPU one after the other."""
    several = [jobs(device, dtype, seed)[name] for seed in range(2 if INTERPRETED else 6)]
    alone = [job() for job in several]
    synchronize(device)
    streams = [nullcontext() if device.type == "cpu" else torch.cuda.Stream() for _ in several]

    def launch(place: int) -> list[tuple[Tensor, ...]]:
        with streams[place] if device.type == "cpu" else torch.cuda.stream(streams[place]):
            return [several[place]() for _ in range(REPEATS)]

    with ThreadPoolExecutor(1 if INTERPRETED else len(several)) as threads:
        results = list(threads.map(launch, range(len(several))))
    synchronize(device)
    for place, (outs, want) in enumerate(zip(results, alone, strict=True)):
        for out in outs:
            assert same(out, want), f"stream {place} got something else than alone"


# End to end: every technique on the device, in float32, against the oracle on the CPU.

CLOSE = 1e-3  # logits that are nearer than this to the best one may win in float32


def model_of(name: str, device: torch.device, numerics: str = "fast") -> Transformer:
    model = build(CONFIGS[name], "float32", device.type)
    drawn = random_weights(build(CONFIGS[name], "float32"), seed=7)  # on the CPU: the same weights everywhere
    model.load_state_dict(drawn.state_dict())
    if numerics == "reference":
        model.keep_order()
    return model


def crowd(count: int, sampled: bool = False) -> list[Request]:
    """Prompts of several lengths, some of which begin alike."""
    rng = random.Random(count)
    start = [rng.randrange(VOCAB) for _ in range(6)]
    requests = []
    for i in range(count):
        prompt = (start if i % 2 else []) + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))]
        sampling = Sampling(temperature=1.0, top_k=8, seed=i) if sampled else GREEDY
        new = rng.randint(2, 4) if INTERPRETED else rng.randint(6, 20)
        requests.append(Request(f"r{i}", tuple(prompt), new, (3,), i % 3 == 0, sampling, arrival_s=0.002 * (i // 3)))
    return requests


def served(
    name: str,
    model_name: str,
    device: torch.device,
    requests: list[Request],
    *,
    numerics: str = "fast",
    capacity: int = 120,
    on_step: Callable[[StepReport], None] = lambda report: None,
    **options: Any,
) -> tuple[Answer, ...]:
    """By a technique, with KV memory for `capacity` tokens and small batches, buffers and blocks."""
    row = TECHNIQUES[name]
    wanted = {
        "attention.backend": "triton",
        "batching.max_batch": 3,
        "batching.window": 0.002,
        "memory.slots": 3,
        "memory.block_size": 3,
        "batching.instances": 1 if INTERPRETED else 4,  # Triton's interpreter is for one thread
        "batching.preprocess": "inline" if INTERPRETED else "worker",
        **options,
    }
    stage_options = {option: value for option, value in wanted.items() if option in row.option_names}
    source = TextSource(f"random:{model_name}", CONFIGS[model_name], None)
    settings = Settings(
        device=device.type,
        kv_memory=capacity * source.config.kv_bytes_per_token("float32"),
        stage_options=stage_options,
        numerics=numerics,
    )
    engine = build_engine(row, source, settings, model_of(model_name, device, numerics))
    answers = serve(engine, requests, on_step=on_step).answers
    assert not [answer.why_refused for answer in answers if answer.why_refused]
    return answers


def as_the_oracle(model: Transformer, answer: Answer) -> None:
    """Every token is the best of the oracle's logits after the text before it, or so near that float32 cannot tell."""
    request, tokens = answer.request, [*answer.request.prompt, *answer.token_ids]
    assert answer.token_ids
    logits = oracle.logits(model, tokens)[len(request.prompt) - 1 : -1]
    for place, (row, token) in enumerate(zip(logits, answer.token_ids, strict=True)):
        assert row[token] >= row.max() - CLOSE, f"token {place} of {request.id} is not the oracle's"
    ended = answer.token_ids[-1] in request.stop_ids and not request.ignore_eos
    assert ended or len(answer.token_ids) == request.max_new_tokens


COUNT = 2 if INTERPRETED else 9
MODELS = ["llama"] if INTERPRETED else list(CONFIGS)


@pytest.mark.parametrize("numerics", ["fast", "reference"])
@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", serving("transformer"))
def test_every_technique_answers_as_the_oracle(device, name, model_name, numerics) -> None:
    oracles = random_weights(build(CONFIGS[model_name], "float32"), seed=7)
    for answer in served(name, model_name, device, crowd(COUNT), numerics=numerics):
        as_the_oracle(oracles, answer)


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("model_name", MODELS)
def test_evicted_and_back(device, model_name, preemption) -> None:
    """Memory for little more than one request, in blocks of three."""
    oracles = random_weights(build(CONFIGS[model_name], "float32"), seed=7)
    requests = crowd(COUNT)
    steps: list[StepReport] = []
    answers = served(
        "vllm",
        model_name,
        device,
        requests,
        capacity=max(request.max_cached for request in requests) + 6,
        on_step=steps.append,
        **{"memory.preemption": preemption, "memory.watermark": 0.0},
    )
    for answer in answers:
        as_the_oracle(oracles, answer)
    if preemption == "swap":
        assert {move.kind for step in steps for move in step.plan.moves} >= {"swap_out", "swap_in"}
    else:
        needed = sum(len(answer.request.prompt) + len(answer.token_ids) - 1 for answer in answers)
        assert sum(step.plan.num_tokens for step in steps) > needed, "nothing was computed again"


@pytest.mark.parametrize("model_name", MODELS)
def test_in_reference_numerics_all_techniques_draw_the_same(device, model_name) -> None:
    """Sampled tokens hang on the last bit of a logit."""
    requests = crowd(COUNT, sampled=True)
    names = ["orca", "static"] if INTERPRETED else list(serving("transformer"))
    drawn = {
        name: [answer.token_ids for answer in served(name, model_name, device, requests, numerics="reference")]
        for name in names
    }
    assert len({tuple(tokens) for tokens in drawn.values()}) == 1, drawn

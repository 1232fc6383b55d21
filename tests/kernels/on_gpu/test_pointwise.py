"""The token-wise kernels, the copies and sampling on a device, against their twins."""

from __future__ import annotations

import math

import pytest
import torch
from gpu_cases import ON_GPU, Draw, near
from torch import Tensor

from minifuse.core.report import NOT_FINITE
from minifuse.kernels.launch import INTERPRETED
from minifuse.kernels.noise import gumbel_noise

pytest.importorskip("triton", reason="Triton is for Linux only")

from minifuse.kernels.copy import (
    gather_slots,
    gather_slots_torch,
    move_slots,
    move_slots_torch,
    scatter_slots,
    scatter_slots_torch,
)
from minifuse.kernels.lstm import lstm_cell, lstm_cell_torch
from minifuse.kernels.rms_norm import rms_norm, rms_norm_torch
from minifuse.kernels.rotary_write import rotate_and_write, rotate_and_write_torch
from minifuse.kernels.sampling import argmax, gumbel_argmax
from minifuse.kernels.swiglu import silu_mul, silu_mul_torch

pytestmark = ON_GPU


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
    added = rows_apart(draw, n, hidden) if residual else None
    out, summed = rms_norm(x, weight, 1e-5, added)
    if added is not None:
        assert torch.equal(summed, x + added)
    near(out, rms_norm_torch((x if added is None else summed).double(), weight.double(), 1e-5)[0], dtype)


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
    want = [token if math.isfinite(x[row, token]) else NOT_FINITE for row, token in enumerate(want)]
    assert argmax(x).tolist() == want, "the first of the largest, where that is finite"
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

"""Rotary embedding and the KV write, against a rotation of complex numbers in float64."""

from __future__ import annotations

import pytest
import torch

from minifuse.core.errors import KernelError
from minifuse.kernels.rotary_write import rotate_and_write, rotate_and_write_torch
from minifuse.model.text.config import Rotary
from minifuse.model.text.layers import RotaryTable

THETA = 100.0
CONTEXT = 40
SLOTS = 17


def inputs(n, num_heads, num_kv_heads, head_dim, dtype=torch.float32, seed=0):
    """Views of one matrix, with rows before and after; storage of NaN; slots out of order, every third row idle."""
    generator = torch.Generator().manual_seed(seed)
    heads = torch.randn(n + 2, num_heads + 2 * num_kv_heads, head_dim, generator=generator, dtype=torch.float64)
    q, k, v = heads.to(dtype)[1 : n + 1].split((num_heads, num_kv_heads, num_kv_heads), 1)
    keys, values = torch.full((2, SLOTS, num_kv_heads, head_dim), float("nan"), dtype=dtype)
    slots = torch.randperm(SLOTS, generator=generator)[:n]
    slots[1::3] = -1
    positions = torch.randint(CONTEXT, (n,), generator=generator)
    return q, k, v, keys, values, slots, positions


def table(positions, dim, interleaved, dtype=torch.float32):
    rows = RotaryTable(Rotary(dim=dim, theta=THETA, interleaved=interleaved), CONTEXT)(positions)
    return rows.cos.to(dtype), rows.sin.to(dtype)


def rotated(x, positions, dim, interleaved):
    """The definition: each pair as a complex number, times exp(i position theta^(-2 pair / dim))."""
    x = x.double()
    pairs = torch.arange(dim // 2, dtype=torch.float64)
    turns = torch.polar(torch.ones(1, dtype=torch.float64), positions[:, None] * THETA ** (-2 * pairs / dim))
    x, rest = x[..., :dim], x[..., dim:]
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., : dim // 2], x[..., dim // 2 :])
    turned = torch.complex(a, b) * turns[:, None]
    together = (turned.real, turned.imag)
    back = torch.stack(together, -1).flatten(-2) if interleaved else torch.cat(together, -1)
    return torch.cat((back, rest), -1)


def written(kv, slots, rows):
    """The storage after the live rows have been written into their slots."""
    expected = torch.full(kv.shape, float("nan"), dtype=torch.float64)
    for slot, row in zip(slots.tolist(), rows, strict=True):
        if slot >= 0:
            expected[slot] = row.double()
    return expected


SHAPES = [  # n, num_heads, num_kv_heads, head_dim, rotary_dim
    (5, 4, 2, 16, 16),
    (3, 6, 3, 12, 8),  # nothing a power of two, and a rest that is not rotated
    (1, 1, 1, 8, 8),
    (4, 5, 5, 10, 2),
    (7, 3, 1, 20, 12),
    (2, 40, 33, 256, 64),  # several blocks of heads
]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rotates_queries_and_writes_keys_and_values(shape, interleaved, dtype):
    *sizes, dim = shape
    q, k, v, keys, values, slots, positions = inputs(*sizes, dtype)
    before = q.clone()
    out = rotate_and_write(q, k, v, keys, values, slots, table(positions, dim, interleaved), interleaved=interleaved)
    tolerance = {"rtol": 0, "atol": 2e-5 if dtype == torch.float32 else 4e-3}
    assert out.is_contiguous()
    torch.testing.assert_close(out.double(), rotated(q, positions, dim, interleaved), **tolerance)
    expected = written(keys, slots, rotated(k, positions, dim, interleaved))
    torch.testing.assert_close(keys.double(), expected, equal_nan=True, **tolerance)
    torch.testing.assert_close(values.double(), written(values, slots, v), equal_nan=True, rtol=0, atol=0)
    assert torch.equal(q, before)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_twin_agrees_with_the_layers_and_with_complex_numbers(shape, interleaved):
    *sizes, dim = shape
    q, k, v, keys, values, slots, positions = inputs(*sizes, torch.float64)
    rows = RotaryTable(Rotary(dim=dim, theta=THETA, interleaved=interleaved), CONTEXT).double()(positions)
    pair = (rows.cos, rows.sin)
    out = rotate_and_write_torch(q, k, v, keys, values, slots, pair, interleaved=interleaved)
    torch.testing.assert_close(out, rows.rotate(q), rtol=0, atol=1e-14)
    torch.testing.assert_close(out, rotated(q, positions, dim, interleaved), rtol=0, atol=2e-5)  # float32 angles
    torch.testing.assert_close(keys, written(keys, slots, rows.rotate(k)), equal_nan=True, rtol=0, atol=1e-14)
    torch.testing.assert_close(values, written(values, slots, v), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("function", [rotate_and_write, rotate_and_write_torch])
def test_learned_positions_are_only_written(function):
    q, k, v, keys, values, slots, _ = inputs(6, 40, 33, 256)
    assert function(q, k, v, keys, values, slots, None) is q
    torch.testing.assert_close(keys.double(), written(keys, slots, k), equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(values.double(), written(values, slots, v), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("interleaved", [False, True])
def test_any_cosines_and_sines(interleaved):
    """The table need not hold cosines and sines of angles, has a type of its own, and its rows need not be adjacent."""
    q, k, v, keys, values, slots, _ = inputs(4, 3, 2, 12, torch.float32)
    twin_keys, twin_values = keys.clone(), values.clone()
    cos, sin = torch.randn(2, 9, 1, 8).half()[:, ::2][:, :4]
    expected = rotate_and_write_torch(q, k, v, twin_keys, twin_values, slots, (cos, sin), interleaved=interleaved)
    out = rotate_and_write(q, k, v, keys, values, slots, (cos, sin), interleaved=interleaved)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(keys, twin_keys, equal_nan=True)


def test_head_strides_may_exceed_token_strides():
    """Views of [heads, n, head_dim], and a storage whose heads come first."""
    q, k, v, keys, values, slots, positions = inputs(5, 4, 2, 16)
    expected = rotated(q, positions, 16, False)
    q, k, v = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v))
    keys, values = (kv.transpose(0, 1).contiguous().transpose(0, 1) for kv in (keys, values))
    out = rotate_and_write(q, k, v, keys, values, slots, table(positions, 16, False))
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-5)
    torch.testing.assert_close(
        keys.double(), written(keys, slots, rotated(k, positions, 16, False)), equal_nan=True, rtol=0, atol=2e-5
    )
    torch.testing.assert_close(values.double(), written(values, slots, v), equal_nan=True, rtol=0, atol=0)


def test_a_row_alone_gets_the_same_bits():
    q, k, v, keys, values, slots, positions = inputs(6, 5, 2, 20)
    cos, sin = table(positions, 12, False)
    out = rotate_and_write(q, k, v, keys, values, slots, (cos, sin))
    alone = [torch.full_like(kv, float("nan")) for kv in (keys, values)]
    for row in range(6):
        one = slice(row, row + 1)
        turned = rotate_and_write(q[one], k[one], v[one], *alone, slots[one], (cos[one], sin[one]))
        assert torch.equal(turned, out[one])
    torch.testing.assert_close(alone, [keys, values], equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("rotary", [True, False])
def test_no_rows(rotary):
    q, k, v, keys, values, slots, positions = inputs(0, 4, 2, 8)
    out = rotate_and_write(q, k, v, keys, values, slots, table(positions, 8, False) if rotary else None)
    assert out.shape == (0, 4, 8)
    assert keys.isnan().all()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("q", lambda q: q[0], r"rotate_and_write: q has the shape \[4, 8\]: give one of \[any, any, any\]."),
        ("q", lambda q: q.double(), "q is float64: give float32 or float16 or bfloat16."),
        ("q", lambda q: q.transpose(1, 2).contiguous().transpose(1, 2), "its last dimension must be contiguous."),
        ("k", lambda k: k[1:], r"k has the shape \[2, 2, 8\]: give one of \[3, any, 8\]."),
        ("k", lambda k: k.half(), "k is float16: give float32."),
        ("v", lambda v: v[:, :1], r"v has the shape \[3, 1, 8\]: give one of \[3, 2, 8\]."),
        ("keys", lambda keys: keys[:, :1], "keys has the shape"),
        ("values", lambda values: values[1:], "values has the shape"),
        ("slots", lambda slots: slots.int(), "slots is int32: give int64."),
        ("slots", lambda slots: slots[:2], r"slots has the shape \[2\]: give one of \[3\]."),
        ("cos", lambda cos: cos[..., 0, :], "cos has the shape"),
        ("sin", lambda sin: sin[..., :4], "sin has the shape"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(name, change, message):
    names = ("q", "k", "v", "keys", "values", "slots")
    q, k, v, keys, values, slots, positions = inputs(3, 4, 2, 8)
    arguments = dict(zip(names, (q, k, v, keys, values, slots), strict=True))
    arguments["cos"], arguments["sin"] = table(positions, 8, False)
    arguments[name] = change(arguments[name])
    rotary = arguments.pop("cos"), arguments.pop("sin")
    with pytest.raises(KernelError, match=message):
        rotate_and_write(**arguments, rotary=rotary)


@pytest.mark.parametrize("dim", [0, 7, 10])
def test_a_table_that_does_not_fit_the_heads_is_refused(dim):
    q, k, v, keys, values, slots, _ = inputs(3, 4, 2, 8)
    row = torch.ones(3, 1, dim)
    with pytest.raises(KernelError, match=f"cos has {dim} dimensions and a head 8: give an even number from 2 to 8"):
        rotate_and_write(q, k, v, keys, values, slots, (row, row))

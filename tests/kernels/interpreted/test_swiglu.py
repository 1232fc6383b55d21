"""SwiGLU's gate, against its definition in Python's floats."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_cases import assert_rounded
from torch import Tensor

from minifuse.core.errors import KernelError
from minifuse.kernels.swiglu import silu_mul, silu_mul_torch

TOLERANCES = {torch.float32: (1e-6, 1e-6), torch.float16: (1e-3, 1e-3)}
SHAPES = [(1, 1), (3, 7), (5, 64), (4, 96), (2, 1024), (3, 1025), (2, 3000)]


def tensor(n: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(n, 2 * width, generator=torch.Generator().manual_seed(n * width)).mul(4).to(dtype)


def reference(gate_up: Tensor) -> Tensor:
    """The definition, element by element in Python's floats."""
    width = gate_up.shape[1] // 2
    rows = [
        [g / (1 + math.exp(-g)) * u for g, u in zip(row[:width], row[width:], strict=True)]
        for row in gate_up.double().tolist()
    ]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize(("n", "width"), SHAPES)
@pytest.mark.parametrize("mul", [silu_mul, silu_mul_torch])
def test_gate_first(mul, n, width, dtype):
    gate_up = tensor(n, width, dtype)
    before = gate_up.clone()
    assert_rounded(mul(gate_up), reference(gate_up), dtype, *TOLERANCES[dtype])
    assert torch.equal(gate_up, before)


def test_float64_stays_float64():
    gate_up = tensor(3, 20, torch.float32).double()
    torch.testing.assert_close(silu_mul_torch(gate_up), reference(gate_up), rtol=1e-14, atol=1e-14)


@pytest.mark.filterwarnings("error")
def test_gates_of_any_size():
    gates = torch.tensor([-3e38, -1e4, -104.0, -88.0, -20.0, -1e-30, 0.0, 1e-30, 20.0, 88.0, 104.0, 1e4, 3e38])
    out = silu_mul(torch.stack((gates, torch.ones(13))).reshape(1, 26))
    torch.testing.assert_close(out, torch.nn.functional.silu(gates)[None], rtol=2e-6, atol=1e-37)
    assert out.isfinite().all()


def test_rounded_once():
    gate_up = tensor(4, 500, torch.float16)
    exact = reference(gate_up).half()
    gate, up = gate_up.chunk(2, 1)
    assert (silu_mul(gate_up) != exact).float().mean() < 0.01
    assert (torch.nn.functional.silu(gate) * up != exact).float().mean() > 0.1  # rounding twice would show


def test_rows_that_are_not_adjacent():
    gate_up = tensor(6, 40, torch.float32)
    apart = torch.full((6, 200), float("nan"))[:, 50:130]
    apart.copy_(gate_up)
    assert torch.equal(silu_mul(apart), silu_mul(gate_up))
    assert torch.equal(silu_mul(apart[::2]), silu_mul(gate_up[::2]))


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_a_row_has_the_same_bits_in_any_batch(dtype):
    gate_up = tensor(9, 1500, dtype)
    whole = silu_mul(gate_up)
    for begin, end in ((0, 1), (8, 9), (2, 7)):
        assert torch.equal(silu_mul(gate_up[begin:end]), whole[begin:end])
    assert torch.equal(silu_mul(gate_up.flip(0)), whole.flip(0))


def test_no_rows():
    assert silu_mul(torch.empty(0, 64)).shape == (0, 32)


@pytest.mark.parametrize(
    ("gate_up", "message"),
    [
        (torch.zeros(4), r"gate_up has the shape \[4\]: give one of \[any, any\]"),
        (torch.zeros(2, 0), "rows of gate_up have 0 numbers: give as many gates as ups"),
        (torch.zeros(2, 5), "rows of gate_up have 5 numbers: give as many gates as ups"),
        (torch.zeros(2, 4).double(), "gate_up is float64: give float32 or float16 or bfloat16"),
        (torch.zeros(2, 4).bfloat16(), "gate_up is bfloat16, which Triton's interpreter gets wrong"),
        (torch.zeros(4, 2).T, r"gate_up has the strides \(1, 2\): its last dimension"),
    ],
)
def test_refused(gate_up, message):
    with pytest.raises(KernelError, match=f"silu_mul: {message}"):
        silu_mul(gate_up)

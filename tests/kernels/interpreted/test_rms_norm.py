"""RMSNorm, alone and after an addition, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_cases import assert_rounded
from torch import Tensor

from minifuse.core.errors import KernelError
from minifuse.kernels.rms_norm import WIDEST, rms_norm, rms_norm_torch

EPS = 1e-5
TOLERANCES = {torch.float32: (2e-6, 2e-6), torch.float16: (1e-3, 1e-3)}
SHAPES = [(1, 1), (3, 7), (5, 64), (4, 96), (2, 1000), (1, WIDEST)]


def tensors(n: int, hidden: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    make = torch.Generator().manual_seed(n * hidden)
    x, residual = (torch.randn(n, hidden, generator=make).mul(3).to(dtype) for _ in range(2))
    return x, (torch.randn(hidden, generator=make) + 1).to(dtype), residual


def reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The definition, row by row in numpy's float64."""
    rows = x.double().numpy()
    return torch.from_numpy(
        np.stack([r / np.sqrt(np.dot(r, r) / r.size + eps) * weight.double().numpy() for r in rows])
    )


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize(("n", "hidden"), SHAPES)
@pytest.mark.parametrize("norm", [rms_norm, rms_norm_torch])
def test_without_residual(norm, n, hidden, dtype):
    x, weight, _ = tensors(n, hidden, dtype)
    assert_rounded(norm(x, weight, EPS), reference(x, weight, EPS), dtype, *TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize(("n", "hidden"), SHAPES)
@pytest.mark.parametrize("norm", [rms_norm, rms_norm_torch])
def test_after_an_addition(norm, n, hidden, dtype):
    x, weight, residual = tensors(n, hidden, dtype)
    kept = x.clone(), residual.clone()
    out, summed = norm(x, weight, EPS, residual)
    assert torch.equal(summed, x + residual)  # rounded as the addition alone would be
    assert torch.equal(out, norm(summed, weight, EPS))
    assert_rounded(out, reference(summed, weight, EPS), dtype, *TOLERANCES[dtype])
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])


@pytest.mark.parametrize("norm", [rms_norm, rms_norm_torch])
def test_the_rounded_sum_is_normalized(norm):
    """In float16 2048 + 1 is 2048: two rows that differ only in such ones have the same norm."""
    x = torch.full((2, 64), 2048.0, dtype=torch.float16)
    residual = torch.zeros_like(x)
    residual[1, ::2] = 1
    out, summed = norm(x, torch.ones(64, dtype=torch.float16), EPS, residual)
    assert torch.equal(summed, x)
    assert torch.equal(out[0], out[1])


def test_rounded_once():
    x, weight, _ = tensors(4, 500, torch.float16)
    exact = reference(x, weight, EPS).half()
    assert (rms_norm(x, weight, EPS) != exact).float().mean() < 0.01
    twice = reference(x, torch.ones(500), EPS).half() * weight
    assert (twice != exact).float().mean() > 0.1  # rounding twice would show


def test_float64_stays_float64():
    x, weight, residual = (t.double() for t in tensors(3, 20, torch.float32))
    torch.testing.assert_close(rms_norm_torch(x, weight, EPS), reference(x, weight, EPS), rtol=1e-14, atol=1e-14)
    out, summed = rms_norm_torch(x, weight, EPS, residual)
    torch.testing.assert_close(out, reference(x + residual, weight, EPS), rtol=1e-14, atol=1e-14)
    assert summed.dtype == torch.float64


def test_eps_keeps_zeros_finite():
    x = torch.zeros(2, 12)
    assert torch.equal(rms_norm(x, torch.ones(12), EPS), x)
    tiny = torch.full((1, 12), 1e-3)
    want = reference(tiny, torch.ones(12), 1e-2)
    assert_rounded(rms_norm(tiny, torch.ones(12), 1e-2), want, torch.float32, *TOLERANCES[torch.float32])


def test_a_weight_of_another_dtype():
    x, weight, _ = tensors(3, 40, torch.float16)
    want = reference(x, weight, EPS)
    assert_rounded(rms_norm(x, weight.float(), EPS), want, torch.float16, *TOLERANCES[torch.float16])


def test_rows_that_are_not_adjacent():
    x, weight, residual = tensors(6, 80, torch.float32)
    apart = torch.full((6, 200), float("nan"))[:, 50:130]
    apart.copy_(x)
    assert torch.equal(rms_norm(apart, weight, EPS), rms_norm(x, weight, EPS))
    assert torch.equal(rms_norm(apart[::2], weight, EPS), rms_norm(x[::2], weight, EPS))
    wanted = rms_norm(x, weight, EPS, residual)
    for pair in ((apart, residual), (residual, apart)):
        for got, want in zip(rms_norm(pair[0], weight, EPS, pair[1]), wanted, strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_a_row_has_the_same_bits_in_any_batch(dtype):
    x, weight, residual = tensors(9, 300, dtype)
    whole, (fused, summed) = rms_norm(x, weight, EPS), rms_norm(x, weight, EPS, residual)
    for begin, end in ((0, 1), (8, 9), (2, 7)):
        rows = slice(begin, end)
        assert torch.equal(rms_norm(x[rows], weight, EPS), whole[rows])
        out, kept = rms_norm(x[rows], weight, EPS, residual[rows])
        assert torch.equal(out, fused[rows])
        assert torch.equal(kept, summed[rows])
    assert torch.equal(rms_norm(x.flip(0), weight, EPS), whole.flip(0))


def test_a_nan_stays_in_its_row():
    x, weight, _ = tensors(3, 30, torch.float32)
    clean = rms_norm(x, weight, EPS)
    x[1, 4] = float("nan")
    out = rms_norm(x, weight, EPS)
    assert out[1].isnan().all()
    assert torch.equal(out[::2], clean[::2])


def test_no_rows():
    empty = torch.empty(0, 64)
    assert rms_norm(empty, torch.ones(64), EPS).shape == (0, 64)
    assert [t.shape for t in rms_norm(empty, torch.ones(64), EPS, empty)] == [(0, 64), (0, 64)]


@pytest.mark.parametrize(
    ("x", "weight", "residual", "message"),
    [
        (torch.zeros(4), torch.ones(4), None, r"x has the shape \[4\]: give one of \[any, any\]"),
        (torch.zeros(2, 0), torch.ones(0), None, "rows of x have 0 numbers: give 1 to 16384"),
        (torch.zeros(1, WIDEST + 1), torch.ones(WIDEST + 1), None, "rows of x have 16385 numbers: give 1 to 16384"),
        (torch.zeros(2, 4), torch.ones(5), None, r"weight has the shape \[5\]: give one of \[4\]"),
        (torch.zeros(2, 4), torch.ones(4), torch.zeros(3, 4), r"residual has the shape \[3, 4\]"),
        (torch.zeros(2, 4), torch.ones(4), torch.zeros(2, 4).half(), "residual is float16: give float32"),
        (torch.zeros(2, 4).double(), torch.ones(4), None, "x is float64: give float32 or float16 or bfloat16"),
        (torch.zeros(2, 4).bfloat16(), torch.ones(4), None, "x is bfloat16, which Triton's interpreter gets wrong"),
        (torch.zeros(4, 2).T, torch.ones(4), None, r"x has the strides \(1, 2\): its last dimension"),
        (torch.zeros(2, 4), torch.ones(8)[::2], None, r"weight has the strides \(2,\): its last dimension"),
        (torch.zeros(2, 4), torch.ones(4, device="meta"), None, "weight is on meta"),
    ],
)  # fmt: skip
def test_refused(x, weight, residual, message):
    with pytest.raises(KernelError, match=f"rms_norm: {message}"):
        rms_norm(x, weight, EPS, residual)

"""RMSNorm, SwiGLU's gate and the LSTM cell, each row by itself: against their definitions in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from kernel_cases import assert_rounded
from torch import Tensor

from minifuse.core.errors import KernelError
from minifuse.kernels.lstm import lstm_cell, lstm_cell_torch
from minifuse.kernels.rms_norm import WIDEST, rms_norm, rms_norm_torch
from minifuse.kernels.swiglu import silu_mul, silu_mul_torch

EPS = 1e-5
Rows = tuple[Tensor, ...]
NARROW = [(1, 1), (3, 7), (5, 64), (4, 96)]


@dataclass(frozen=True)
class Case:
    """A kernel of rows [n, ...], its twin, and its definition."""

    kernel: Callable[..., Rows]
    twin: Callable[..., Rows]
    definition: Callable[..., Rows]
    draw: Callable[[int, int], Rows]  # the rows of a given number and width, in float32
    shapes: list[tuple[int, int]]
    float32: tuple[float, float]  # relative and absolute tolerance
    float16: tuple[float, float]


def normal(n: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(n * width + seed))


# A norm has the weight of its width beside its rows.


def weight_of(x: Tensor) -> Tensor:
    return (normal(1, x.shape[1], seed=1)[0] + 1).to(x.dtype)


def norm_with(norm: Callable[..., Rows]) -> Callable[..., Rows]:
    return lambda x, *residual: norm(x, weight_of(x), EPS, *residual)[: 1 + len(residual)]


def norm_defined(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The definition, row by row in numpy's float64."""
    rows = x.double().numpy()
    return torch.from_numpy(
        np.stack([r / np.sqrt(np.dot(r, r) / r.size + eps) * weight.double().numpy() for r in rows])
    )


def norm_of(x: Tensor) -> Rows:
    return (norm_defined(x, weight_of(x), EPS),)


def norm_of_sum(x: Tensor, residual: Tensor) -> Rows:
    """The sum is rounded as the addition alone would be, and then normalized."""
    return norm_defined(x + residual, weight_of(x), EPS), (x + residual).double()


def gated(gate_up: Tensor) -> Rows:
    width = gate_up.shape[1] // 2
    rows = [
        [g / (1 + math.exp(-g)) * u for g, u in zip(row[:width], row[width:], strict=True)]
        for row in gate_up.double().tolist()
    ]
    return (torch.tensor(rows, dtype=torch.float64),)


def stepped(gates: Tensor, cell: Tensor) -> Rows:
    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    def step(i: float, f: float, g: float, o: float, c: float) -> tuple[float, float]:
        c = sigmoid(f) * c + sigmoid(i) * math.tanh(g)
        return sigmoid(o) * math.tanh(c), c

    parts = [*gates.double().split(cell.shape[1], 1), cell.double()]
    steps = [step(*numbers) for numbers in zip(*(part.flatten().tolist() for part in parts), strict=True)]
    hidden, new = torch.tensor(steps, dtype=torch.float64).unbind(1)
    return hidden.reshape(cell.shape), new.reshape(cell.shape)


def drawn_gates(n: int, width: int) -> Rows:
    sizes = 10.0 ** torch.randint(-3, 2, (n, 4 * width), generator=torch.Generator().manual_seed(n * width))
    return normal(n, 4 * width) * sizes, normal(n, width, seed=1)


CASES = {
    "norm": Case(
        norm_with(rms_norm),
        norm_with(rms_norm_torch),
        norm_of,
        lambda n, width: (normal(n, width) * 3,),
        [*NARROW, (2, 1000), (1, WIDEST)],
        (2e-6, 2e-6),
        (1e-3, 1e-3),
    ),
    "norm of a sum": Case(
        norm_with(rms_norm),
        norm_with(rms_norm_torch),
        norm_of_sum,
        lambda n, width: (normal(n, width) * 3, normal(n, width, seed=2) * 3),
        [*NARROW, (2, 1000), (1, WIDEST)],
        (2e-6, 2e-6),
        (1e-3, 1e-3),
    ),
    "gate": Case(
        lambda gate_up: (silu_mul(gate_up),),
        lambda gate_up: (silu_mul_torch(gate_up),),
        gated,
        lambda n, width: (normal(n, 2 * width) * 4,),
        [*NARROW, (2, 1024), (3, 1025), (2, 3000)],
        (1e-6, 1e-6),
        (1e-3, 1e-3),
    ),
    "lstm": Case(
        lstm_cell, lstm_cell_torch, stepped, drawn_gates, [*NARROW, (2, 1024), (2, 1025)], (2e-6, 1e-7), (1e-3, 1e-5)
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float16])


def rows_of(case: Case, n: int, width: int, dtype: torch.dtype = torch.float32) -> Rows:
    return tuple(row.to(dtype) for row in case.draw(n, width))


def assert_same(got: Rows, want: Rows) -> None:
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


@each_dtype
@pytest.mark.parametrize(
    ("case", "n", "width"), [(case, *shape) for case in CASES.values() for shape in case.shapes], ids=str
)
@pytest.mark.parametrize("which", ["kernel", "twin"])
def test_every_shape(which: str, case: Case, n: int, width: int, dtype: torch.dtype) -> None:
    rows = rows_of(case, n, width, dtype)
    before = tuple(row.clone() for row in rows)
    tolerance = case.float32 if dtype == torch.float32 else case.float16
    got = case.kernel(*rows) if which == "kernel" else case.twin(*rows)
    for one, want in zip(got, case.definition(*rows), strict=True):
        assert_rounded(one, want, dtype, *tolerance)
    assert_same(rows, before)


@each_case
def test_twins_keep_float64(case: Case) -> None:
    rows = rows_of(case, 3, 20, torch.float64)
    for got, want in zip(case.twin(*rows), case.definition(*rows), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "twice"),
    [
        ("norm", lambda x: norm_defined(x, torch.ones(500), EPS).half() * weight_of(x)),
        ("gate", lambda x: torch.nn.functional.silu(x[:, :500]) * x[:, 500:]),
        # The hidden state is computed from the new cell state before that is rounded.
        ("lstm", lambda x, c: (x[:, 1500:].double().sigmoid() * stepped(x, c)[1].half().double().tanh()).half()),
    ],
)
def test_rounded_once(name: str, twice: Callable[..., Tensor]) -> None:
    case = CASES[name]
    rows = rows_of(case, 4, 500, torch.float16)
    exact = case.definition(*rows)[0].half()
    assert (case.kernel(*rows)[0] != exact).float().mean() < 0.01
    assert (twice(*rows) != exact).float().mean() > 0.1  # rounding twice would show


@each_case
def test_rows_that_are_not_adjacent(case: Case) -> None:
    rows = rows_of(case, 6, 40)
    wanted = case.kernel(*rows)
    for alone in range(len(rows) + 1):  # each of them apart, or all
        apart = []
        for number, row in enumerate(rows):
            wide = torch.full((6, row.shape[1] + 70), float("nan"))[:, 50:-20]
            apart.append(wide.copy_(row) if alone in (number, len(rows)) else row)
        assert_same(case.kernel(*apart), wanted)
        assert_same(case.kernel(*(row[::2] for row in apart)), case.kernel(*(row[::2] for row in rows)))


@each_dtype
@each_case
def test_a_row_has_the_same_bits_in_any_batch(case: Case, dtype: torch.dtype) -> None:
    rows = rows_of(case, 9, 1100, dtype)
    whole = case.kernel(*rows)
    for begin, end in ((0, 1), (8, 9), (2, 7)):
        assert_same(case.kernel(*(row[begin:end] for row in rows)), tuple(out[begin:end] for out in whole))
    assert_same(case.kernel(*(row.flip(0) for row in rows)), tuple(out.flip(0) for out in whole))


@each_case
def test_no_rows(case: Case) -> None:
    for out in case.kernel(*rows_of(case, 0, 64)):
        assert out.shape == (0, 64)


# What each has alone.


@pytest.mark.parametrize("norm", [rms_norm, rms_norm_torch])
def test_the_rounded_sum_is_normalized(norm) -> None:
    """In float16 2048 + 1 is 2048: two rows that differ only in such ones have the same norm."""
    x = torch.full((2, 64), 2048.0, dtype=torch.float16)
    residual = torch.zeros_like(x)
    residual[1, ::2] = 1
    out, summed = norm(x, torch.ones(64, dtype=torch.float16), EPS, residual)
    assert torch.equal(summed, x)
    assert torch.equal(out[0], out[1])


def test_eps_keeps_zeros_finite() -> None:
    x = torch.zeros(2, 12)
    assert torch.equal(rms_norm(x, torch.ones(12), EPS)[0], x)
    tiny = torch.full((1, 12), 1e-3)
    want = norm_defined(tiny, torch.ones(12), 1e-2)
    assert_rounded(rms_norm(tiny, torch.ones(12), 1e-2)[0], want, torch.float32, *CASES["norm"].float32)


def test_a_weight_of_another_dtype() -> None:
    x = (normal(3, 40) * 3).half()
    got, _ = rms_norm(x, weight_of(x).float(), EPS)
    assert_rounded(got, norm_of(x)[0], torch.float16, *CASES["norm"].float16)


def test_a_nan_stays_in_its_row() -> None:
    x = normal(3, 30)
    (clean,) = CASES["norm"].kernel(x)
    x[1, 4] = float("nan")
    (out,) = CASES["norm"].kernel(x)
    assert out[1].isnan().all()
    assert torch.equal(out[::2], clean[::2])


@pytest.mark.filterwarnings("error")
def test_gates_of_any_size() -> None:
    gates = torch.tensor([-3e38, -1e4, -104.0, -88.0, -20.0, -1e-30, 0.0, 1e-30, 20.0, 88.0, 104.0, 1e4, 3e38])
    out = silu_mul(torch.stack((gates, torch.ones(13))).reshape(1, 26))
    torch.testing.assert_close(out, torch.nn.functional.silu(gates)[None], rtol=2e-6, atol=1e-37)
    assert out.isfinite().all()


def test_against_the_lstm_of_torch() -> None:
    """Five steps in float32: the gates are in the order in which torch.nn.LSTM stacks its weights."""
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(12, 20).requires_grad_(False)
    x = torch.randn(5, 3, 12)
    hidden, cell = torch.zeros(3, 20), torch.zeros(3, 20)
    for step in x:
        gates = step @ lstm.weight_ih_l0.T + lstm.bias_ih_l0 + hidden @ lstm.weight_hh_l0.T + lstm.bias_hh_l0
        hidden, cell = lstm_cell(gates, cell)
    _, (want_hidden, want_cell) = lstm(x)
    torch.testing.assert_close(hidden, want_hidden[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(cell, want_cell[0], rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("error")
def test_tanh_of_any_size() -> None:
    """Input gate open, forget gate shut: the new cell state is tanh(g), to float32's precision for every size."""
    g = torch.cat((torch.logspace(-30, 38, 400), torch.linspace(0.2, 0.3, 100), torch.zeros(1)))
    g = torch.cat((g, -g))
    shut, open_ = torch.full_like(g, -3e38), torch.full_like(g, 3e38)
    hidden, new = lstm_cell(torch.cat((open_, shut, g, open_))[None], torch.ones_like(g)[None])
    tanh = g.double().tanh()
    torch.testing.assert_close(new[0].double(), tanh, rtol=3e-7, atol=0)
    torch.testing.assert_close(hidden[0].double(), tanh.tanh(), rtol=5e-7, atol=0)


# Arguments that the launchers refuse.

ZEROS, ONES = torch.zeros(2, 4), torch.ones(4)


@pytest.mark.parametrize(
    ("kernel", "arguments", "message"),
    [
        (rms_norm, (torch.zeros(4), ONES, EPS), r"x has the shape \[4\]: give one of \[any, any\]"),
        (rms_norm, (torch.zeros(2, 0), torch.ones(0), EPS), "rows of x have 0 numbers: give 1 to 16384"),
        (rms_norm, (torch.zeros(1, WIDEST + 1), torch.ones(WIDEST + 1), EPS), "rows of x have 16385 numbers"),
        (rms_norm, (ZEROS.double(), ONES, EPS), "x is float64: give float32 or float16 or bfloat16"),
        (rms_norm, (ZEROS.bfloat16(), ONES, EPS), "x is bfloat16, which Triton's interpreter gets wrong"),
        (rms_norm, (ZEROS, torch.ones(5), EPS), r"weight has the shape \[5\]: give one of \[4\]"),
        (rms_norm, (ZEROS, torch.ones(8)[::2], EPS), r"weight has the strides \(2,\): its last dimension"),
        (rms_norm, (ZEROS, torch.ones(4, device="meta"), EPS), "weight is on meta"),
        (rms_norm, (ZEROS, ONES, EPS, torch.zeros(3, 4)), r"residual has the shape \[3, 4\]"),
        (rms_norm, (ZEROS, ONES, EPS, ZEROS.half()), "residual is float16: give float32"),
        (silu_mul, (torch.zeros(4),), r"gate_up has the shape \[4\]: give one of \[any, any\]"),
        (silu_mul, (torch.zeros(2, 0),), "rows of gate_up have 0 numbers: give as many gates as ups"),
        (silu_mul, (torch.zeros(2, 5),), "rows of gate_up have 5 numbers: give as many gates as ups"),
        (silu_mul, (torch.zeros(4, 2).T,), r"gate_up has the strides \(1, 2\): its last dimension"),
        (lstm_cell, (torch.zeros(2, 16), torch.zeros(4)), r"cell has the shape \[4\]: give one of \[any, any\]"),
        (lstm_cell, (torch.zeros(2, 0), torch.zeros(2, 0)), "rows of cell have no numbers: give 1 or more"),
        (lstm_cell, (torch.zeros(2, 12), ZEROS), r"gates has the shape \[2, 12\]: give one of \[2, 16\]"),
        (lstm_cell, (torch.zeros(2, 16), ZEROS.half()), "gates is float32: give float16"),
        (lstm_cell, (torch.zeros(2, 16, device="meta"), ZEROS), "gates is on meta"),
    ],
)
def test_refused(kernel: Callable[..., object], arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(KernelError, match=f"{kernel.__name__}: {message}"):
        kernel(*arguments)

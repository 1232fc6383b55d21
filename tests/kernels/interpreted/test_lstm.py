"""The LSTM cell, against its definition in Python's floats and against torch.nn.LSTM."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_cases import assert_rounded
from torch import Tensor

from minifuse.core.errors import KernelError
from minifuse.kernels.lstm import lstm_cell, lstm_cell_torch

TOLERANCES = {torch.float32: (2e-6, 1e-7), torch.float16: (1e-3, 1e-5)}
SHAPES = [(1, 1), (3, 7), (5, 64), (4, 96), (2, 1024), (2, 1025)]


def tensors(n: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(n * width)
    gates = torch.randn(n, 4 * width, generator=make) * 10.0 ** torch.randint(-3, 2, (n, 4 * width), generator=make)
    return gates.to(dtype), torch.randn(n, width, generator=make).to(dtype)


def reference(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, element by element in Python's floats."""
    width = cell.shape[1]

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    def step(i: float, f: float, g: float, o: float, c: float) -> tuple[float, float]:
        c = sigmoid(f) * c + sigmoid(i) * math.tanh(g)
        return sigmoid(o) * math.tanh(c), c

    parts = [*gates.double().split(width, 1), cell.double()]
    steps = [step(*numbers) for numbers in zip(*(part.flatten().tolist() for part in parts), strict=True)]
    hidden, new = torch.tensor(steps, dtype=torch.float64).unbind(1)
    return hidden.reshape(cell.shape), new.reshape(cell.shape)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize(("n", "width"), SHAPES)
@pytest.mark.parametrize("cell_of", [lstm_cell, lstm_cell_torch])
def test_one_step(cell_of, n, width, dtype):
    gates, cell = tensors(n, width, dtype)
    before = gates.clone(), cell.clone()
    for got, want in zip(cell_of(gates, cell), reference(gates, cell), strict=True):
        assert_rounded(got, want, dtype, *TOLERANCES[dtype])
    assert torch.equal(gates, before[0])
    assert torch.equal(cell, before[1])


def test_against_the_lstm_of_torch():
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


def test_float64_stays_float64():
    gates, cell = (t.double() for t in tensors(3, 20, torch.float32))
    for got, want in zip(lstm_cell_torch(gates, cell), reference(gates, cell), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)


@pytest.mark.filterwarnings("error")
def test_tanh_of_any_size():
    """Input gate open, forget gate shut: the new cell state is tanh(g), to float32's precision for every size."""
    g = torch.cat((torch.logspace(-30, 38, 400), torch.linspace(0.2, 0.3, 100), torch.zeros(1)))
    g = torch.cat((g, -g))
    shut, open_ = torch.full_like(g, -3e38), torch.full_like(g, 3e38)
    hidden, new = lstm_cell(torch.cat((open_, shut, g, open_))[None], torch.ones_like(g)[None])
    tanh = g.double().tanh()
    torch.testing.assert_close(new[0].double(), tanh, rtol=3e-7, atol=0)
    torch.testing.assert_close(hidden[0].double(), tanh.tanh(), rtol=5e-7, atol=0)


def test_hidden_is_computed_from_the_cell_before_rounding():
    gates, cell = tensors(8, 200, torch.float16)
    hidden, new = lstm_cell(gates, cell)
    exact, exact_new = reference(gates, cell)
    o = gates.double()[:, 600:].sigmoid()
    assert torch.equal(new, exact_new.half())
    assert (hidden != exact.half()).float().mean() < 0.01
    assert ((o * new.double().tanh()).half() != exact.half()).float().mean() > 0.1  # rounding first would show


def test_rows_that_are_not_adjacent():
    gates, cell = tensors(6, 20, torch.float32)
    apart = torch.full((6, 200), float("nan"))
    apart[:, 50:130], apart[:, 150:170] = gates, cell
    for rows in (slice(None), slice(1, None, 2)):
        got = lstm_cell(apart[rows, 50:130], apart[rows, 150:170])
        for one, other in zip(got, lstm_cell(gates[rows], cell[rows]), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", list(TOLERANCES))
def test_a_row_has_the_same_bits_in_any_batch(dtype):
    gates, cell = tensors(9, 1100, dtype)
    whole = lstm_cell(gates, cell)
    for begin, end in ((0, 1), (8, 9), (2, 7)):
        for one, other in zip(lstm_cell(gates[begin:end], cell[begin:end]), whole, strict=True):
            assert torch.equal(one, other[begin:end])


def test_no_rows():
    hidden, new = lstm_cell(torch.empty(0, 128), torch.empty(0, 32))
    assert hidden.shape == new.shape == (0, 32)


@pytest.mark.parametrize(
    ("gates", "cell", "message"),
    [
        (torch.zeros(2, 16), torch.zeros(4), r"cell has the shape \[4\]: give one of \[any, any\]"),
        (torch.zeros(2, 0), torch.zeros(2, 0), "rows of cell have no numbers: give 1 or more"),
        (torch.zeros(2, 12), torch.zeros(2, 4), r"gates has the shape \[2, 12\]: give one of \[2, 16\]"),
        (torch.zeros(3, 16), torch.zeros(2, 4), r"gates has the shape \[3, 16\]: give one of \[2, 16\]"),
        (torch.zeros(2, 16), torch.zeros(2, 4).half(), "gates is float32: give float16"),
        (torch.zeros(2, 16).double(), torch.zeros(2, 4).double(), "cell is float64: give float32 or float16 or bfl"),
        (torch.zeros(2, 16), torch.zeros(2, 4).bfloat16(), "cell is bfloat16, which Triton's interpreter gets wrong"),
        (torch.zeros(16, 2).T, torch.zeros(2, 4), r"gates has the strides \(1, 2\): its last dimension"),
        (torch.zeros(2, 16), torch.zeros(4, 2).T, r"cell has the strides \(1, 2\): its last dimension"),
        (torch.zeros(2, 16, device="meta"), torch.zeros(2, 4), "gates is on meta"),
    ],
)  # fmt: skip
def test_refused(gates, cell, message):
    with pytest.raises(KernelError, match=f"lstm_cell: {message}"):
        lstm_cell(gates, cell)

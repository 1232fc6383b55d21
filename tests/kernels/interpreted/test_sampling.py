"""Argmax and Gumbel-max, against numpy and against `minifuse.execute.sampling`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minifuse.core.errors import KernelError
from minifuse.core.report import NOT_FINITE
from minifuse.core.request import Sampling
from minifuse.execute.sampling import keep_top, sample
from minifuse.kernels.noise import gumbel_noise
from minifuse.kernels.operators import TORCH
from minifuse.kernels.sampling import BLOCK, NOISY_BLOCK, argmax, argmax_torch, gumbel_argmax, gumbel_argmax_torch
from minifuse.kernels.triton_operators import TritonOperators

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("function", [argmax, argmax_torch])
@pytest.mark.parametrize("vocab_size", [1, 2, 50, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 77])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_largest(function, vocab_size, dtype):
    """In float16 thousands of numbers of a row are equal: the first of the largest wins."""
    logits = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(vocab_size)).to(dtype)
    logits[3:] = (logits[3:] * 2).round().clamp(max=3)
    out = function(logits)
    assert out.dtype == torch.int64
    assert out.tolist() == logits.numpy().argmax(-1).tolist()


NEGATIVE_NAN = float(np.array(0xFFC00000, dtype=np.uint32).view(np.float32))
LAST = 2 * BLOCK + 8
ODD_ROWS = [  # {token: logit}, everything else being -1, and the winner, which is not told if it is not finite
    ({3: 7.0, BLOCK + 3: 7.0, LAST: 7.0}, 3),
    ({BLOCK + 3: 7.0, LAST: 7.0}, BLOCK + 3),
    ({LAST: 7.0}, LAST),
    ({5: INF, LAST: NAN}, LAST),
    ({LAST: INF, 5: NAN}, 5),
    ({5: NAN, 6: INF, 4: INF}, 5),
    ({BLOCK: NAN, 2 * BLOCK: NAN, 9: INF}, BLOCK),
    ({700: NAN, 9: NAN}, 9),
    ({700: NEGATIVE_NAN}, 700),
    ({8: 0.0, 5: -0.0}, 5),
    ({5: 0.0, 8: -0.0}, 5),
    ({BLOCK: 0.0, 8: -0.0}, 8),
    ({LAST: -0.5}, LAST),
    ({8: INF, 7: INF}, 7),
    ({0: -INF}, 1),
    ({}, 0),
]


@pytest.mark.parametrize("function", [argmax, argmax_torch])
@pytest.mark.parametrize(("numbers", "winner"), ODD_ROWS)
def test_nan_comes_first_and_ties_go_to_the_lowest(function, numbers, winner):
    logits = torch.full((1, LAST + 1), -1.0)
    for token, number in numbers.items():
        logits[0, token] = number
    assert logits.numpy().argmax(-1).tolist() == [winner]
    assert function(logits).tolist() == [winner if logits[0, winner].isfinite() else NOT_FINITE]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("function", [argmax, argmax_torch, lambda logits: torch.tensor(TORCH.argmax(logits))])
def test_rows_that_are_not_finite_are_told_apart(function, dtype):
    """A row that is not finite changes no other, wherever its NaN is."""
    logits = torch.randn(8, BLOCK + 300, generator=torch.Generator().manual_seed(0)).to(dtype)
    right = function(logits).tolist()
    assert NOT_FINITE not in right
    for row, token, number in ((1, 3, NAN), (2, BLOCK + 299, -NAN), (4, 0, INF), (7, BLOCK, NAN)):
        logits[row, token] = number
        right[row] = NOT_FINITE
    logits[5] = -INF
    right[5] = NOT_FINITE
    logits[6, 1:9] = -INF  # as a mask does
    assert function(logits).tolist() == right


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # by the numpy inside the interpreter
@pytest.mark.parametrize("number", [-INF, NAN, INF, 0.0])
@pytest.mark.parametrize("vocab_size", [5, BLOCK + 5])
def test_a_row_of_equals(number, vocab_size):
    assert argmax(torch.full((2, vocab_size), number)).tolist() == [0 if number == 0.0 else NOT_FINITE] * 2


def test_memory_beyond_a_row_is_not_read():
    """Every second row of a wider matrix whose other columns are NaN."""
    wide = torch.full((8, BLOCK + 300), NAN)
    wide[:, : BLOCK + 100] = torch.randn(8, BLOCK + 100, generator=torch.Generator().manual_seed(0))
    logits = wide[1::2, : BLOCK + 100]
    assert argmax(logits).tolist() == logits.numpy().argmax(-1).tolist()


def test_the_same_for_any_batch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(-9, 9, (6, BLOCK + 50), generator=generator).float()
    scaled = torch.randn(6, 2 * NOISY_BLOCK + 50, generator=generator)
    seeds, positions = torch.arange(6) % 2, torch.arange(6)
    together = argmax(logits).tolist(), gumbel_argmax(scaled, seeds, positions).tolist()
    order = torch.tensor([4, 2, 5, 0, 3, 1])
    assert argmax(logits[order]).tolist() == [together[0][row] for row in order]
    drawn = gumbel_argmax(scaled[order], seeds[order], positions[order]).tolist()
    assert drawn == [together[1][row] for row in order]
    for row in range(6):
        one = slice(row, row + 1)
        assert argmax(logits[one]).tolist() == together[0][one]
        assert gumbel_argmax(scaled[one], seeds[one], positions[one]).tolist() == together[1][one]


def keys(n, seed=0):
    """Seeds and positions of every size."""
    generator = torch.Generator().manual_seed(seed)
    seeds = torch.randint(-(2**63), 2**63 - 1, (n,), generator=generator)
    seeds[:3] = torch.tensor([0, -1, -(2**63)])[: len(seeds[:3])]
    return seeds, torch.randint(0, 100_000, (n,), generator=generator)


@pytest.mark.parametrize("function", [gumbel_argmax, gumbel_argmax_torch])
@pytest.mark.parametrize("vocab_size", [1, 2, 50, NOISY_BLOCK, NOISY_BLOCK + 1, 3000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_same_draws_as_sampling(function, vocab_size, dtype):
    scaled = torch.randn(8, vocab_size, generator=torch.Generator().manual_seed(vocab_size), dtype=torch.float64)
    scaled = scaled.to(dtype)
    scaled[4:] = 0  # the noise alone decides
    seeds, positions = keys(8)
    noise = gumbel_noise(seeds, positions, vocab_size)
    out = function(scaled, seeds, positions)
    assert out.dtype == torch.int64
    assert out.tolist() == (scaled + noise).argmax(-1).tolist()


def test_every_bit_of_the_noise_counts():
    """Logits that cancel the noise except for a step at one token: noise that is too small there, or too large at any
    other token, would show. Where the noise is largest, u is closest to 1, and half a unit of its last bit counts.
    """
    seeds, positions = keys(5, seed=3)
    noise = gumbel_noise(seeds, positions, 2500)
    winners = [7, 1024, 2499, *noise[3:].argmax(-1).tolist()]
    scaled = -noise
    scaled[range(5), winners] += 1e-13
    assert gumbel_argmax(scaled, seeds, positions).tolist() == winners


@pytest.mark.parametrize("top_k", [1, 3])
def test_filtered_tokens_are_never_drawn(top_k):
    scaled = torch.randn(6, 2500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kept = keep_top(scaled, [top_k] * 6, [1.0] * 6)
    seeds, positions = keys(6)
    out = gumbel_argmax(kept, seeds, positions)
    assert out.tolist() == (kept + gumbel_noise(seeds, positions, 2500)).argmax(-1).tolist()
    assert kept[range(6), out].isfinite().all()


def test_noise_changes_neither_nan_nor_infinity():
    scaled = torch.zeros(4, 2500, dtype=torch.float64)
    scaled[0, [2000, 1500]] = NAN
    scaled[0, 3] = INF
    scaled[1, [2000, 1500]] = INF
    scaled[2] = -INF
    scaled[3] = -INF
    scaled[3, 2499] = -1e300
    for function in (gumbel_argmax, gumbel_argmax_torch):
        assert function(scaled, *keys(4)).tolist() == [NOT_FINITE, NOT_FINITE, NOT_FINITE, 2499]


def test_no_rows():
    none = torch.empty(0, dtype=torch.int64)
    assert argmax(torch.empty(0, 10)).tolist() == []
    assert gumbel_argmax(torch.empty(0, 10), none, none).tolist() == []


def test_arguments_that_do_not_fit_are_refused():
    logits = torch.zeros(3, 10)
    seeds, positions = keys(3)
    with pytest.raises(KernelError, match=r"argmax: logits has the shape \[10\]: give one of \[any, any\]."):
        argmax(logits[0])
    with pytest.raises(KernelError, match=r"argmax: logits is int64: give float32 or float16 or bfloat16."):
        argmax(logits.long())
    with pytest.raises(KernelError, match=r"argmax: logits has the strides .*: its last dimension must be contiguous."):
        argmax(logits.T)
    with pytest.raises(KernelError, match=r"argmax: a row has 0 logits: give at least one, and fewer than 2\^30"):
        argmax(logits[:, :0])
    with pytest.raises(KernelError, match=r"gumbel_argmax: a row has 0 logits"):
        gumbel_argmax(logits[:, :0], seeds, positions)
    with pytest.raises(KernelError, match=r"gumbel_argmax: scaled is float16: give float64 or float32."):
        gumbel_argmax(logits.half(), seeds, positions)
    with pytest.raises(KernelError, match=r"gumbel_argmax: seeds has the shape \[2\]: give one of \[3\]."):
        gumbel_argmax(logits, seeds[:2], positions)
    with pytest.raises(KernelError, match=r"gumbel_argmax: positions is int32: give int64."):
        gumbel_argmax(logits, seeds, positions.int())


def test_the_sampler_on_the_kernels_tells_rows_that_are_not_finite():
    """Greedy and drawn rows side by side: the same as in torch."""
    logits = torch.randn(8, 300, generator=torch.Generator().manual_seed(0))
    logits[1, 299], logits[2, 0], logits[5, 7], logits[6] = NAN, NAN, INF, -INF
    params = [Sampling(), Sampling(), Sampling(0.8), Sampling(0.8), *[Sampling(1.0, top_k=5), Sampling(top_p=0.5)] * 2]
    found = sample(logits, params, range(8), TritonOperators())
    assert found == sample(logits, params, range(8), TORCH)
    assert [row for row, token in enumerate(found) if token == NOT_FINITE] == [1, 2, 5, 6]

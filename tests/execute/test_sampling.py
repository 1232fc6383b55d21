"""Tokens are drawn from the right distribution, and by (seed, position) alone."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minifuse.core.request import Sampling
from minifuse.execute.sampling import keep_top, sample
from minifuse.kernels import noise as noise_module
from minifuse.kernels.noise import gumbel_noise
from minifuse.kernels.operators import TORCH
from minifuse.naive.sampling import kept

VOCAB = 12


def _logits(seed: int, rows: int = 1, vocab: int = VOCAB, spread: float = 2.0) -> Tensor:
    return spread * torch.randn(rows, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _probabilities(logits: list[float], top_k: int, top_p: float) -> dict[int, float]:
    """The probability of each token that the oracle keeps."""
    weights = {token: math.exp(logits[token] - max(logits)) for token in kept(logits, top_k, top_p)}
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


# --- the distribution


@pytest.mark.parametrize(
    "params",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.5),
        Sampling(temperature=3.0, top_k=5),
        Sampling(temperature=1.0, top_p=0.7),
        Sampling(temperature=1.3, top_k=8, top_p=0.9),
    ],
)
@pytest.mark.parametrize("vary", ["position", "seed"])
def test_draws_follow_the_softmax(params: Sampling, vary: str) -> None:
    """Chi-square against the exact probabilities, over positions of one seed and over seeds at one position."""
    logits = _logits(4, spread=1.0)
    wanted = _probabilities((logits[0] / params.temperature).tolist(), params.top_k, params.top_p)
    n = 20_000
    seeds = [17] * n if vary == "position" else list(range(n))
    places = list(range(n)) if vary == "position" else [5] * n
    drawn = sample(
        logits.expand(n, -1),
        [Sampling(params.temperature, params.top_k, params.top_p, seed) for seed in seeds],
        places,
        TORCH,
    )
    counts = torch.bincount(torch.tensor(drawn), minlength=VOCAB).tolist()
    assert {token for token, count in enumerate(counts) if count} <= set(wanted)
    chi_square = sum((counts[token] - n * p) ** 2 / (n * p) for token, p in wanted.items())
    freedom = len(wanted) - 1
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 4


@pytest.mark.parametrize("axis", ["seed", "position", "token"])
def test_neighbours_are_independent(axis: str) -> None:
    n = 60_000
    steps, zeros = torch.arange(n), torch.zeros(n, dtype=torch.long)
    if axis == "token":
        noise = gumbel_noise(torch.tensor([3]), torch.tensor([4]), n)[0]
    else:
        seeds, places = (steps, zeros) if axis == "seed" else (zeros, steps)
        noise = gumbel_noise(seeds, places, 1)[:, 0]
    for lag in (1, 2, 64):
        pair = torch.stack((noise[:-lag], noise[lag:]))
        assert abs(torch.corrcoef(pair)[0, 1].item()) < 4 / math.sqrt(n)


@pytest.mark.parametrize("bits", [0, -1])
def test_noise_is_finite_at_both_ends_of_the_hash(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An infinite draw would beat every logit, and make NaN of a masked one (-inf)."""
    monkeypatch.setattr(noise_module, "_mix", lambda x: torch.full_like(x, bits))
    noise = gumbel_noise(torch.tensor([0]), torch.tensor([0]), 3)
    assert noise.isfinite().all()


# --- greedy


def test_greedy_takes_the_likeliest_and_the_lowest_of_equals() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, 3.0], [-1.0, 5.0, 5.0], [-math.inf, -math.inf, -9.0]])
    assert sample(logits, [Sampling()] * 4, [0, 1, 2, 3], TORCH) == [1, 0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_precision_is_drawn_in_float64(dtype: torch.dtype) -> None:
    logits = _logits(3, rows=6).to(dtype)
    params = [Sampling(0.9, seed=i) for i in range(6)]
    assert sample(logits, params, [7] * 6, TORCH) == sample(logits.double(), params, [7] * 6, TORCH)


def test_a_cold_draw_is_greedy() -> None:
    logits = _logits(8, rows=50)
    assert sample(logits, [Sampling(1e-4, seed=i) for i in range(50)], [3] * 50, TORCH) == logits.argmax(-1).tolist()


# --- top-k and top-p


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(0, 35), st.floats(0.01, 1.0))
def test_top_sets_are_exact(seed: int, vocab: int, top_k: int, top_p: float) -> None:
    logits = _logits(seed, vocab=vocab)
    out = keep_top(logits, [top_k], [top_p])[0]
    wanted = kept(logits[0].tolist(), top_k, top_p)
    assert set(out.isfinite().nonzero().flatten().tolist()) == set(wanted)
    for token in wanted:
        assert out[token] == logits[0, token]


def test_top_sets_by_hand() -> None:
    logits = torch.tensor([0.5, 0.125, 0.25, 0.125], dtype=torch.float64).log()[None]

    def left(top_k: int, top_p: float) -> list[int]:
        return keep_top(logits, [top_k], [top_p])[0].isfinite().nonzero().flatten().tolist()

    assert left(0, 1.0) == [0, 1, 2, 3]
    assert left(3, 1.0) == [0, 1, 2]  # 1 and 3 are as likely: the lower id stays
    assert left(99, 1.0) == [0, 1, 2, 3]
    assert left(0, 0.4) == [0]
    assert left(0, 0.6) == [0, 2]
    assert left(0, 0.8) == [0, 1, 2]
    assert left(2, 0.7) == [0, 2]  # of the two kept, the first has 2/3
    assert left(2, 0.6) == [0]
    assert left(0, 0.0) == [0]


def test_of_many_equal_logits_the_lowest_ids_are_kept() -> None:
    """An unstable sort may keep the order of a few equals by luck, but not of thousands."""
    kept = keep_top(torch.zeros(1, 5000, dtype=torch.float64), [7], [1.0])[0].isfinite().nonzero().flatten()
    assert kept.tolist() == list(range(7))


# --- what a draw depends on

PARAMS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 4, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    seed=st.integers(-(2**70), 2**70),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(PARAMS, st.integers(0, 5000)), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_a_row_is_drawn_alike_in_any_batch(rows: list[tuple[Sampling, int]], rng: random.Random) -> None:
    logits = _logits(len(rows), rows=len(rows))
    together = sample(logits, [p for p, _ in rows], [place for _, place in rows], TORCH)
    alone = [sample(logits[i : i + 1], [p], [place], TORCH)[0] for i, (p, place) in enumerate(rows)]
    assert together == alone
    order = rng.sample(range(len(rows)), len(rows))
    shuffled = sample(logits[order], [rows[i][0] for i in order], [rows[i][1] for i in order], TORCH)
    assert shuffled == [alone[i] for i in order]


def test_any_seed_is_accepted() -> None:
    flat = torch.zeros(1, 10**4)

    def drawn(seed: int) -> int:
        return sample(flat, [Sampling(1.0, seed=seed)], [0], TORCH)[0]

    seeds = [0, 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 2]
    assert len({drawn(seed) for seed in seeds}) == len(seeds)
    assert drawn(2**64 + 5) == drawn(5)  # only the low 64 bits count
    assert drawn(-1) == drawn(2**64 - 1)
    assert drawn(-(2**63)) == drawn(2**63)

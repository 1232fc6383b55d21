"""The oracle's sampling keeps the tokens that transformers keeps, and draws what serving draws."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import LogitsProcessorList, TopKLogitsWarper, TopPLogitsWarper

from minifuse.core.request import Sampling
from minifuse.execute.sampling import sample
from minifuse.kernels.operators import TORCH
from minifuse.naive.sampling import draw, kept

VOCAB = 40


def _logits(seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0, 2) for _ in range(VOCAB)]


@pytest.mark.parametrize("top_k", [0, 1, 5, 39, 100])
@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.8, 0.99, 1.0])
def test_the_tokens_that_transformers_keeps(top_k: int, top_p: float) -> None:
    warpers = LogitsProcessorList()
    if top_k:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        warpers.append(TopPLogitsWarper(top_p))
    for seed in range(20):
        logits = _logits(seed)
        scores = torch.tensor([logits], dtype=torch.float64)
        wanted = warpers(torch.empty(1, 0), scores)[0].isfinite().nonzero().flatten().tolist()
        assert sorted(kept(logits, top_k, top_p)) == wanted


@pytest.mark.parametrize("params", [{}, {"temperature": 0.7}, {"temperature": 1.5, "top_k": 5, "top_p": 0.8}])
def test_draws_what_serving_draws(params: dict[str, float]) -> None:
    for seed in (0, 3, 2**32, 2**64 - 1, -1):
        chosen = Sampling(seed=seed, **params)  # type: ignore[arg-type]  # top_k is whole
        for position in range(1, 30):
            logits = _logits(position)
            wanted = sample(torch.tensor([logits], dtype=torch.float64), [chosen], [position], TORCH)
            assert draw(logits, chosen, position) == wanted[0]


def test_of_equal_logits_the_lowest_id_is_taken() -> None:
    assert draw([1.0, 2.0, 2.0], Sampling(), 3) == 1
    assert kept([0.0, 1.0, 1.0, 1.0], 2, 1.0) == [1, 2]

"""The laws on the shipped model: real prompts, answers that end by themselves, every technique and every mix."""

from __future__ import annotations

import pytest

from minifuse.core.request import Request, Sampling
from minifuse.model.text.load import resolve_text
from minifuse.model.tiny.tasks import crowd
from minifuse.stages import stage
from minifuse.techniques import TECHNIQUES, Technique, serving
from minifuse.testing import TEXTS, Case, observe
from minifuse.testing.laws import of_one_run
from minifuse.testing.search import compared_laws
from minifuse.testing.texts import TextScenario
from minifuse.testing.texts.models import TINY, expected_answer

MIXES = {row.name: row for row in TEXTS.mixes()}
LONGEST = 10  # new tokens: the oracle's work grows with their square
OPTIONS = (
    ("batching.max_batch", 3),
    ("batching.token_budget", 9),
    ("batching.window", 0.02),
    ("memory.slots", 2),
    ("memory.block_size", 4),
    ("memory.preemption", "swap"),
    ("memory.share", True),
    ("memory.rows", 2),
    ("memory.prefill", 0.3),
)


def _case(row: Technique, seed: int) -> Case:
    """Five tasks, one of them sampled, arriving one after the other into memory for two or three."""
    source = resolve_text(TINY)
    tokenizer = source.tokenizer()
    requests = tuple(
        Request(
            f"r{i}",
            tokenizer.encode(task.prompt),
            LONGEST,
            source.config.eos_ids,
            sampling=Sampling(temperature=1.0, seed=seed) if i == 4 else Sampling(),
            arrival_s=0.015 * i,
        )
        for i, task in enumerate(crowd(5, seed))
    )
    longest = max(request.max_cached for request in requests)
    parts = 3 if stage("memory", row.memory).apart else 2  # prompts that are computed apart have one
    scenario = TextScenario(model=TINY, requests=requests, capacity=parts * longest + 10, options=OPTIONS)
    return TEXTS.case(row, scenario)


@pytest.mark.parametrize(
    ("row", "seed"),
    [
        pytest.param(row, seed, id=f"{name}-{seed}", marks=() if shorter else pytest.mark.long)
        for i, (name, row) in enumerate(MIXES.items())
        for seed in (0, 1)
        for shorter in [seed == 1 if name in TECHNIQUES else 3 * seed == i % 4]
    ],
)
def test_a_run_of_tiny_keeps_the_laws(row: Technique, seed: int) -> None:
    """None is refused: the laws do not see a run in which all are."""
    case = _case(row, seed)
    seen = observe(case)
    of_one_run(case, seen)
    assert len(seen.answers) == 5


@pytest.mark.parametrize(("dealt", "name"), list(enumerate(serving("transformer"))))
def test_runs_of_tiny_compared(dealt: int, name: str) -> None:
    """Each law that compares runs meets every other technique."""
    case = _case(TECHNIQUES[name], seed=2)
    seen = observe(case)
    for law in (of_one_run, *compared_laws(TEXTS)[dealt % 2 :: 2]):
        law(case, seen)


def test_some_answers_end_before_their_allowed_length() -> None:
    requests = _case(TECHNIQUES["serial"], seed=0).requests
    assert min(len(expected_answer(TINY, request)) for request in requests) < LONGEST

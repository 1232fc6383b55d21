"""The laws on the shipped model: real prompts, answers that end by themselves, every technique and every mix."""

from __future__ import annotations

import pytest

from minifuse.execute.virtual import placeholder_tokens
from minifuse.model.text.load import resolve_text
from minifuse.model.tiny.tasks import crowd
from minifuse.request import Request, Sampling
from minifuse.techniques import TECHNIQUES, Technique, serving
from minifuse.testing import LAWS, Scenario, mixes, observe
from minifuse.testing.models import TINY, expected_answer

MIXES = {row.name: row for row in mixes()}
LONGEST = 10  # new tokens: the oracle's work grows with their square
OPTIONS = (
    ("batching.max_batch", 3),
    ("batching.token_budget", 9),
    ("batching.window", 0.02),
    ("memory.slots", 2),
    ("memory.block_size", 4),
    ("memory.preemption", "swap"),
    ("memory.share", True),
)


def _scenario(seed: int) -> Scenario:
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
    return Scenario(TINY, requests, 2 * longest + 10, OPTIONS)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("row", MIXES.values(), ids=MIXES.keys())
def test_a_run_of_tiny_keeps_the_laws(row: Technique, seed: int) -> None:
    LAWS["of_one_run"](row, _scenario(seed))


@pytest.mark.parametrize("law", [law for law in LAWS if law != "of_one_run"])
@pytest.mark.parametrize("name", serving("transformer"))
def test_runs_of_tiny_compared(name: str, law: str) -> None:
    LAWS[law](TECHNIQUES[name], _scenario(2))


@pytest.mark.parametrize("row", MIXES.values(), ids=MIXES.keys())
def test_everybody_is_served(row: Technique) -> None:
    """The laws say nothing of a run in which all are refused."""
    seen = observe(row, _scenario(0), run=placeholder_tokens)
    assert not seen.refused
    assert len(seen.answers) == 5


def test_the_scenarios_have_answers_that_end_by_themselves() -> None:
    scenario = _scenario(0)
    lengths = [len(expected_answer(TINY, request)) for request in scenario.requests]
    assert min(lengths) < LONGEST

"""The shipped model under every technique: real text, real stop tokens, the oracle's answers."""

from __future__ import annotations

import pytest

from minifuse.model.load import load_weights, resolve
from minifuse.model.tiny.tasks import crowd
from minifuse.model.transformer import Transformer
from minifuse.naive.oracle import answer
from minifuse.request import FinishReason, Request
from minifuse.serve import Settings, build_engine, serve
from minifuse.techniques import TECHNIQUES, Technique

LONGEST = 24  # new tokens: the oracle's work grows with their square


@pytest.fixture(scope="module")
def tiny() -> Transformer:
    return load_weights(resolve("tiny"), "float64")


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    source = resolve("tiny")
    tokenizer = source.tokenizer()
    return [
        Request(f"r{i}", tokenizer.encode(task.prompt), LONGEST, source.config.eos_ids, arrival_s=0.001 * i)
        for i, task in enumerate(crowd(10, seed=5))
    ]


@pytest.fixture(scope="module")
def expected(tiny: Transformer, requests: list[Request]) -> dict[str, tuple[int, ...]]:
    return {request.id: tuple(answer(tiny, request)) for request in requests}


@pytest.mark.parametrize("row", TECHNIQUES.values(), ids=TECHNIQUES.keys())
def test_exact_on_tiny(
    row: Technique, tiny: Transformer, requests: list[Request], expected: dict[str, tuple[int, ...]]
) -> None:
    engine = build_engine(row, resolve("tiny"), Settings(dtype="float64", kv_memory=2 * 2**20), tiny)
    served = serve(engine, requests)
    assert {a.request.id: a.token_ids for a in served.answers} == expected
    assert FinishReason.STOP in {a.finish_reason for a in served.answers}
    assert engine.memory.usage().used == 0

"""A request whose logits are NaN or infinite ends with a reason that says so; no other request is any the wiser."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from conformance.replaying import ReplayExecutor
from helpers import asks, run_all
from torch import Tensor

from minifuse.core.clock import VirtualClock
from minifuse.core.report import NOT_FINITE
from minifuse.core.request import FinishReason, Request, Sampling
from minifuse.execute.sampling import sample
from minifuse.kernels.operators import TORCH
from minifuse.model.text.load import TextSource, build, random_weights
from minifuse.model.text.row_by_row import compute_row_by_row
from minifuse.model.text.transformer import Transformer
from minifuse.naive import oracle
from minifuse.serve.build import build_engine
from minifuse.serve.engine import ServingEngine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import Served, serve
from minifuse.serve.settings import Settings
from minifuse.techniques import serving, technique
from minifuse.testing.laws import LAWS
from minifuse.testing.observed import observe
from minifuse.testing.texts import TextCase, TextScenario, models
from minifuse.testing.texts import case as case_module
from minifuse.testing.texts.models import CONFIGS, VOCAB
from minifuse.trace.metrics import compute_metrics

POISON = 24  # a token whose embedding is NaN: what has read it has logits of NaN
SOURCE = TextSource("poisoned", replace(CONFIGS["llama"], eos_ids=()), None)
OPTIONS = {
    "batching.max_batch": 3, "batching.window": 0.001, "batching.instances": 2, "memory.slots": 3,
    "memory.block_size": 2,
}  # fmt: skip


@cache
def _poisoned(numerics: str = "fast") -> Transformer:
    model = random_weights(build(SOURCE.config, "float64"), seed=7)
    model.embedding.weight[POISON] = math.nan
    if numerics == "reference":
        compute_row_by_row(model)
    return model


def _sampling(i: int) -> Sampling:
    return Sampling(temperature=9.0, seed=i, top_p=0.9 if i % 3 else 1.0) if i % 2 else Sampling()


# Some have the poison in their prompts; others come upon it in their answers. Slots are used again.
REQUESTS = [
    asks(f"r{i}", (*range(1, 2 + i % 4), POISON if i % 4 in (1, 2) and i < 8 else 12, 20 - i), 8, sampling=_sampling(i))
    for i in range(12)
]


@cache
def _expected(request: Request) -> tuple[tuple[int, ...], FinishReason]:
    """The oracle's answer: it ends before the first token that there are no finite logits for."""
    tokens = list(request.prompt)
    while len(tokens) < request.max_length:
        last = oracle.logits(_poisoned(), tokens)[-1:]
        if not last.isfinite().all():
            return tuple(tokens[len(request.prompt) :]), FinishReason.NAN
        tokens += sample(last, [request.sampling], [len(tokens)], TORCH)
    return tuple(tokens[len(request.prompt) :]), FinishReason.LENGTH


def _engine(name: str, numerics: str = "fast", slots: int = 60) -> ServingEngine:
    row = technique(name)
    settings = Settings(
        "float64",
        kv_memory=slots * SOURCE.slot_bytes("float64"),
        clock="virtual",
        numerics=numerics,  # type: ignore[arg-type]
        stage_options={option: value for option, value in OPTIONS.items() if option in row.option_names},
    )
    return build_engine(resolve_run(row, SOURCE, settings), _poisoned(numerics))


def _became(served: Served) -> dict[str, tuple[tuple[int, ...], FinishReason]]:
    return {answer.request.id: (answer.token_ids, answer.finish_reason) for answer in served.answers}


def test_the_requests_are_of_every_kind() -> None:
    ends = [_expected(request) for request in REQUESTS]
    assert {len(tokens) for tokens, reason in ends if reason is FinishReason.NAN} > {0}
    ended = [request for request, (_, reason) in zip(REQUESTS, ends, strict=True) if reason is FinishReason.NAN]
    assert {request.sampling.greedy for request in ended} == {True, False}
    assert sum(reason is FinishReason.LENGTH for _, reason in ends) >= 3


@pytest.mark.parametrize("numerics", ["fast", "reference"])
@pytest.mark.parametrize("name", serving("transformer"))
def test_only_those_requests_end(name: str, numerics: str) -> None:
    engine = _engine(name, numerics)
    served = serve(engine, REQUESTS)
    assert _became(served) == {request.id: _expected(request) for request in REQUESTS}
    assert not engine.memory.usage().used
    engine.memory.check_integrity()
    failed = sum(_expected(request)[1] is FinishReason.NAN for request in REQUESTS)
    assert compute_metrics(served.trace.events())["requests"]["nan"] == failed


def test_the_trace_says_so_and_is_replayed() -> None:
    engine = _engine("orca")
    steps = list(_run(engine, REQUESTS))
    ended = {name: reason for step in engine.trace.events() for name, reason in step.get("finished", {}).items()}
    assert ended == {request.id: _expected(request)[1].value for request in REQUESTS}
    again = _engine("orca")
    again.executor = ReplayExecutor(clock := VirtualClock(), steps)
    again.clock = clock
    _run(again, REQUESTS)
    assert {name: (tuple(s.answer), s.finish_reason) for name, s in again.finished.items()} == {
        request.id: _expected(request) for request in REQUESTS
    }


@pytest.mark.parametrize("name", ["orca", "fusion", "vllm"])
def test_the_laws_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle's answer ends where the request does; a replay ends it there, and no plan knew before."""
    monkeypatch.setitem(CONFIGS, "poisoned", SOURCE.config)
    for module in (models, case_module):
        monkeypatch.setattr(module, "small_model", lambda name, numerics="fast": _poisoned(numerics))
    scenario = TextScenario(
        requests=tuple(REQUESTS[4:9]), options=tuple(OPTIONS.items()), model="poisoned", capacity=60
    )
    case = TextCase(technique(name), scenario)
    seen = observe(case)
    assert {sequence.finish_reason for sequence in seen.answers.values()} == {FinishReason.NAN, FinishReason.LENGTH}
    for law in LAWS.values():
        law(case, seen)


def _run(engine: ServingEngine, requests: list[Request]) -> list:  # type: ignore[type-arg]
    return run_all(engine, requests)


def test_a_turn_may_follow_as_after_an_abort() -> None:
    """It reads the same text, and so it ends for the same reason."""
    first = asks("a", (1, POISON), 3, conversation="c")
    other = asks("b", (2, 3), 3, conversation="c", after="a")
    served = serve(_engine("orca"), [first, other])
    assert [answer.finish_reason for answer in served.answers] == [FinishReason.NAN] * 2
    assert served.answers[1].new_prompt == (2, 3)


def test_memory_is_not_told_of_a_token() -> None:
    engine = _engine("naive")
    told: list[set[str]] = []
    commit = engine.memory.commit

    def watched(plan, sampled, now):  # type: ignore[no-untyped-def]
        told.append(set(sampled))
        return commit(plan, sampled, now)

    engine.memory.commit = watched  # type: ignore[method-assign]
    _run(engine, [asks("a", (1, POISON), 3)])
    assert told == [set()]


# --- the sampler


@pytest.mark.parametrize("params", [Sampling(), Sampling(1.0), Sampling(0.7, top_k=3), Sampling(2.0, top_p=0.4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_no_token_is_sampled_from_what_is_not_finite(params: Sampling, dtype: torch.dtype) -> None:
    logits: Tensor = torch.randn(7, VOCAB, generator=torch.Generator().manual_seed(0)).to(dtype)
    right = sample(logits, [params] * 7, [5] * 7, TORCH)
    assert min(right) >= 0
    logits[1, VOCAB - 1] = math.nan
    logits[2, 0] = -math.nan
    logits[3, 4] = math.inf
    logits[4] = -math.inf
    right[1:5] = [NOT_FINITE] * 4
    assert sample(logits, [params] * 7, [5] * 7, TORCH) == right
    assert TORCH.argmax(logits)[1:5] == [NOT_FINITE] * 4


def test_masked_logits_are_no_failure() -> None:
    """A mask is -inf, of which only the largest logit may not be one."""
    logits = torch.full((1, VOCAB), -math.inf)
    logits[0, 9] = -3.0
    for params in (Sampling(), Sampling(1.0), Sampling(1.0, top_p=0.5)):
        assert sample(logits, [params], [5], TORCH) == [9]

"""Every technique end to end on a device, in float32, against the oracle on the CPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from gpu_cases import ON_GPU

from minifuse.core.report import StepReport
from minifuse.core.request import GREEDY, Request, Sampling
from minifuse.kernels.launch import INTERPRETED
from minifuse.model.text.load import TextSource, build, random_weights
from minifuse.model.text.row_by_row import compute_row_by_row
from minifuse.model.text.transformer import Transformer
from minifuse.naive import oracle
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import Answer, serve
from minifuse.serve.settings import Settings
from minifuse.techniques import TECHNIQUES, serving
from minifuse.testing.texts.models import CONFIGS, VOCAB

pytest.importorskip("triton", reason="Triton is for Linux only")

pytestmark = ON_GPU


CLOSE = 1e-3  # a logit within this distance of the largest may be the largest in float32


def model_of(name: str, device: torch.device, numerics: str = "fast") -> Transformer:
    model = build(CONFIGS[name], "float32", device.type)
    drawn = random_weights(build(CONFIGS[name], "float32"), seed=7)  # on the CPU: the same weights everywhere
    model.load_state_dict(drawn.state_dict())
    if numerics == "reference":
        compute_row_by_row(model)
    return model


def requests_of(count: int, sampled: bool = False) -> list[Request]:
    """Prompts of several lengths, some of which begin alike."""
    rng = random.Random(count)
    start = [rng.randrange(VOCAB) for _ in range(6)]
    requests = []
    for i in range(count):
        prompt = (start if i % 2 else []) + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))]
        sampling = Sampling(temperature=1.0, top_k=8, seed=i) if sampled else GREEDY
        new = rng.randint(2, 4) if INTERPRETED else rng.randint(6, 20)
        requests.append(Request(f"r{i}", tuple(prompt), new, (3,), i % 3 == 0, sampling, arrival_s=0.002 * (i // 3)))
    return requests


def served(
    name: str,
    model_name: str,
    device: torch.device,
    requests: list[Request],
    *,
    numerics: str = "fast",
    capacity: int = 120,
    on_step: Callable[[StepReport], None] = lambda report: None,
    **options: Any,
) -> tuple[Answer, ...]:
    """Serve with a technique, with KV memory for `capacity` tokens and small batches, buffers and blocks."""
    row = TECHNIQUES[name]
    options = {
        "attention.backend": "triton",
        "batching.max_batch": 3,
        "batching.window": 0.002,
        "memory.slots": 3,
        "memory.block_size": 3,
        "batching.instances": 1 if INTERPRETED else 4,  # Triton's interpreter has one thread
        "batching.preprocess": "inline" if INTERPRETED else "worker",
        **options,
    }
    stage_options = {option: value for option, value in options.items() if option in row.option_names}
    source = TextSource(f"random:{model_name}", CONFIGS[model_name], None)
    settings = Settings(
        device=device.type,
        kv_memory=capacity * source.config.kv_bytes_per_token("float32"),
        stage_options=stage_options,
        numerics=numerics,
    )
    engine = build_engine(resolve_run(row, source, settings), model_of(model_name, device, numerics))
    answers = serve(engine, requests, on_step=on_step).answers
    assert not [answer.why_refused for answer in answers if answer.why_refused]
    return answers


def assert_oracles_tokens(model: Transformer, answer: Answer) -> None:
    """Every token has the largest of the oracle's logits after the text before it, up to rounding in float32."""
    request, tokens = answer.request, [*answer.request.prompt, *answer.token_ids]
    assert answer.token_ids
    logits = oracle.logits(model, tokens)[len(request.prompt) - 1 : -1]
    for place, (row, token) in enumerate(zip(logits, answer.token_ids, strict=True)):
        assert row[token] >= row.max() - CLOSE, f"token {place} of {request.id} is not the oracle's"
    ended = answer.token_ids[-1] in request.stop_ids and not request.ignore_eos
    assert ended or len(answer.token_ids) == request.max_new_tokens


COUNT = 2 if INTERPRETED else 9
MODELS = ["llama"] if INTERPRETED else list(CONFIGS)


@pytest.mark.parametrize("numerics", ["fast", "reference"])
@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", serving("transformer"))
def test_every_technique_answers_assert_oracles_tokens(device, name, model_name, numerics) -> None:
    oracles = random_weights(build(CONFIGS[model_name], "float32"), seed=7)
    for answer in served(name, model_name, device, requests_of(COUNT), numerics=numerics):
        assert_oracles_tokens(oracles, answer)


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("model_name", MODELS)
def test_evicted_and_readmitted(device, model_name, preemption) -> None:
    """Memory for little more than one request, in blocks of three."""
    oracles = random_weights(build(CONFIGS[model_name], "float32"), seed=7)
    requests = requests_of(COUNT)
    steps: list[StepReport] = []
    answers = served(
        "vllm",
        model_name,
        device,
        requests,
        capacity=max(request.max_cached for request in requests) + 6,
        on_step=steps.append,
        **{"memory.preemption": preemption, "memory.watermark": 0.0},
    )
    for answer in answers:
        assert_oracles_tokens(oracles, answer)
    if preemption == "swap":
        assert {move.kind for step in steps for move in step.plan.moves} >= {"swap_out", "swap_in"}
    else:
        needed = sum(len(answer.request.prompt) + len(answer.token_ids) - 1 for answer in answers)
        assert sum(step.plan.num_tokens for step in steps) > needed, "nothing was computed again"


@pytest.mark.parametrize("turns", ["rest", "sequences", "layers"])
@pytest.mark.parametrize("model_name", MODELS)
def test_in_waves(device, model_name, turns) -> None:
    """Memory for the longest request and a block; the layers share half of it, as slots of one layer."""
    oracles = random_weights(build(CONFIGS[model_name], "float32"), seed=7)
    requests = [replace(request, arrival_s=0.0) for request in requests_of(2 * COUNT)]
    way = {"memory.buffer": 0.5} if turns == "layers" else {"memory.overflow": "rotate"}
    longest = max(request.max_cached for request in requests)
    steps: list[StepReport] = []
    answers = served(
        "fluid",
        model_name,
        device,
        requests,
        capacity=longest + 6,
        on_step=steps.append,
        **{"memory.turns": turns, **way, "memory.host": 10 * sum(request.max_cached for request in requests)},
    )
    for answer in answers:
        assert_oracles_tokens(oracles, answer)
    assert max(len(step.plan.waves) for step in steps) > 1


@pytest.mark.parametrize("model_name", MODELS)
def test_in_reference_numerics_all_techniques_draw_the_same(device, model_name) -> None:
    """Sampled tokens depend on the last bit of a logit."""
    requests = requests_of(COUNT, sampled=True)
    names = ["orca", "static"] if INTERPRETED else list(serving("transformer"))
    drawn = {
        name: [answer.token_ids for answer in served(name, model_name, device, requests, numerics="reference")]
        for name in names
    }
    assert len({tuple(tokens) for tokens in drawn.values()}) == 1, drawn

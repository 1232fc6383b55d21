"""What several test files share: engines in virtual time, model directories, and the shape of an error."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest
import torch

from minifuse.contracts.checks import Checks
from minifuse.core.clock import RealClock, VirtualClock
from minifuse.core.errors import LawBroken, MinifuseError
from minifuse.core.plan import Extent, Plan, Work
from minifuse.core.report import Ran, StepReport
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import RunPlan
from minifuse.core.submitted import by_request
from minifuse.execute import RealExecutor, RunAhead, VirtualExecutor
from minifuse.execute.link import Link
from minifuse.execute.moving import torch_runner
from minifuse.execute.virtual import placeholder_tokens
from minifuse.kernels.operators import TORCH
from minifuse.model.text.checkpoint import write_weights
from minifuse.model.text.hugging_face import read_config
from minifuse.model.text.load import build, random_weights
from minifuse.model.text.reader import TextReader
from minifuse.model.text.transformer import Transformer
from minifuse.naive.layers import attention
from minifuse.serve.assembly import Stages, choose
from minifuse.serve.engine import ServingEngine
from minifuse.stages import Attention, Batching, Memory
from minifuse.techniques import technique
from minifuse.testing.texts.models import CONTEXT, VOCAB, expected_answer, small_model
from minifuse.trace.log import Trace
from minifuse.trace.why import Accounting

T = TypeVar("T")

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

# config.json of a small model of every family, as Hugging Face writes it.
RAW: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 37,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 40,
        "max_position_embeddings": 96,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "eos_token_id": [3, 4],
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 37,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 96,
        "activation_function": "gelu_new",
        "eos_token_id": 3,
    },
    "gptj": {
        "architectures": ["GPTJForCausalLM"],
        "model_type": "gptj",
        "vocab_size": 37,
        "n_embd": 24,
        "n_layer": 2,
        "n_head": 3,
        "n_positions": 96,
        "rotary_dim": 4,
        "activation_function": "gelu_new",
        "tie_word_embeddings": False,
    },
    "opt": {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": 37,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 56,
        "max_position_embeddings": 96,
        "word_embed_proj_dim": 24,
        "do_layer_norm_before": True,
        "activation_function": "relu",
    },
}


def raw_config(family: str, **changes: Any) -> dict[str, Any]:
    """A family's config.json with some fields changed; `...` takes a field out."""
    return {name: value for name, value in {**RAW[family], **changes}.items() if value is not ...}


def random_model(family: str, dtype: str = "float64", seed: int = 0, **changes: Any) -> Transformer:
    """A small model whose every parameter, norms and biases too, is random: nothing may hide behind a one or a zero."""
    model = random_weights(build(read_config(raw_config(family, **changes)), dtype), seed)
    for index, (_, parameter) in enumerate(sorted(model.named_parameters())):
        if parameter.dim() == 1:
            generator = torch.Generator().manual_seed(1000 * seed + index)
            parameter.add_(parameter.clone().normal_(0.0, 0.3, generator=generator))
    return model


def model_directory(directory: Path, family: str, dtype: str = "float64", **changes: Any) -> Path:
    """A directory in Hugging Face's format with a `random_model`, without a tokenizer."""
    write_weights(random_model(family, dtype, **changes), directory)
    (directory / "config.json").write_text(json.dumps(raw_config(family, **changes)))
    return directory


def sentence(error: MinifuseError, *parts: str) -> None:
    """The error is one sentence and names every part."""
    text = str(error)
    assert "\n" not in text, text
    assert text.endswith("."), text
    for part in parts:
        assert part in text, f"{part!r} is not in: {text}"


@contextmanager
def refusal(kind: type[MinifuseError], *parts: str) -> Iterator[None]:
    """A block that raises this error, whose one sentence names every part."""
    with pytest.raises(kind) as error:
        yield
    sentence(error.value, *parts)


@contextmanager
def breach(law: str, match: str | None = None) -> Iterator[None]:
    """A block that breaks this law."""
    with pytest.raises(LawBroken, match=match) as broken:
        yield
    assert broken.value.law == law


def unit(plan: Plan) -> float:
    """Every iteration takes one second: schedules can be worked out by hand."""
    return 1.0


def make_engine(
    name: str = "orca",
    *,
    capacity: int = 400,
    settings: dict[str, Any] | None = None,
    model: str | None = None,
    cost: Callable[[Plan], float] = unit,
    run: RunPlan = placeholder_tokens,
    batching: Batching | None = None,
    memory: Memory | None = None,
    attention: Attention | None = None,
    trace: Trace | None = None,
    link: Link | None = None,
    why: bool = False,
) -> ServingEngine:
    """A technique in virtual time, any stage exchanged; `model` is one of `minifuse.testing`'s, otherwise no tokens."""
    stages = _stages(name, capacity, settings, batching, memory, attention)
    if model is not None:
        run = torch_runner(small_model(model), stages.memory, stages.attention)
    clock = VirtualClock()
    checks = Checks(stages.batching, stages.memory, stages.attention, all_stages=True)
    return ServingEngine(
        stages.batching,
        stages.memory,
        stages.attention,
        VirtualExecutor(clock, cost, run, link=link),
        clock,
        reader=TextReader(VOCAB, CONTEXT),
        trace=trace or Trace(),
        observers=(checks, Accounting()) if why else (checks,),
    )


def make_real_engine(
    name: str = "orca",
    *,
    run: RunPlan = placeholder_tokens,
    model: str | None = None,
    batching: Batching | None = None,
    memory: Memory | None = None,
    attention: Attention | None = None,
) -> ServingEngine:
    """The same in real time."""
    stages, clock = _stages(name, 200, {}, batching, memory, attention), RealClock()
    transfers = None
    if model is not None:
        runner = torch_runner(small_model(model), stages.memory, stages.attention)
        run = RunAhead(runner) if stages.batching.depth > 1 else runner
        transfers = runner.transfers
    executor = RealExecutor(
        *(run, clock, stages.batching.workers),
        depth=stages.batching.depth,
        behind=transfers and transfers.behind,
        on_close=transfers and transfers.close,
    )
    reader = TextReader(VOCAB, CONTEXT)
    return ServingEngine(*(stages.batching, stages.memory, stages.attention, executor, clock), reader=reader)


def _stages(
    name: str,
    capacity: int,
    settings: dict[str, Any] | None,
    batching: Batching | None,
    memory: Memory | None,
    attention: Attention | None,
) -> Stages:
    stages = choose(technique(name), settings).stages(capacity)
    return Stages(batching or stages.batching, memory or stages.memory, attention or stages.attention)


def asks(id: str, prompt: int | tuple[int, ...] = 2, new: int = 3, at: float = 0.0, **more: Any) -> Request:
    """A request; a prompt given as a number is that many tokens."""
    tokens = tuple((7 * i + 1) % VOCAB for i in range(prompt)) if isinstance(prompt, int) else prompt
    return Request(id, tokens, new, arrival_s=at, **more)


def run_all(engine: ServingEngine, requests: Iterable[Request]) -> list[StepReport]:
    for prompts in by_request(requests):
        engine.submit(*prompts)
    return list(engine.run())


def answers_of(engine: ServingEngine) -> dict[str, tuple[int, ...]]:
    """The new tokens of every request that has finished."""
    return {name: tuple(sequence.answer) for name, sequence in engine.finished.items()}


@torch.no_grad()
def layers_logits(model: Transformer, tokens: list[int]) -> torch.Tensor:
    """The logits after every token of one text, by the model's own layers: [tokens, vocab_size]."""
    config, positions = model.config, torch.arange(len(tokens))
    x, rotary = model.embed(torch.tensor(tokens), positions), model.rotary(positions)
    for layer in model.layers:
        q, k, v = layer.pre_attention(x, TORCH).split((config.num_heads, config.num_kv_heads, config.num_kv_heads), 1)
        if rotary is not None:
            q, k = rotary.rotate(q), rotary.rotate(k)
        x = layer.post_attention(x, attention(q, k, v), TORCH)
    return model.head(x, TORCH)


def expected_answers(model: str, requests: Iterable[Request]) -> dict[str, tuple[int, ...]]:
    """The same, by the oracle."""
    return {request.id: expected_answer(model, request) for request in requests}


# Nine requests of unequal prompts and answers, arriving three at a time.
CROWD = [asks(f"r{i}", 1 + 3 * i % 7, 2 + i % 5, at=0.3 * (i // 3)) for i in range(9)]


def schedule(steps: Iterable[StepReport]) -> list[str]:
    """Each iteration as `start: work`, work being `name[from:to)`.

    >>> "1: a[2:3) b[0:5)"
    """
    lines = []
    for step in steps:
        work = " ".join(f"{w.sequence}[{w.start}:{w.stop})" for w in step.plan.work)
        lines.append(f"{step.started_s:g}: {work}")
    return lines


def plan_of_a(step: int, worker: int = 0) -> Plan:
    """A prompt of two tokens, of sequence a."""
    return Plan(step, worker, (Work("a", 0, 2),), (Extent(0, 4),))


def sequences_of_a() -> dict[str, Sequence]:
    return {"a": Sequence(asks("a", 2, 3))}


def seven(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
    """Runs any plan: token 7, for sequence a."""
    return Ran({"a": (7,)})


def lines_of(do: Callable[[], T]) -> tuple[T, int]:
    """What a function returns, and how many lines of Python it ran."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # what is collected meanwhile may run Python of its own
    sys.settrace(trace)
    try:
        result = do()
    finally:
        sys.settrace(before)
        gc.enable()
    return result, count

"""Small random models in float64, fast enough for thousands of runs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from minifuse.core.request import Request
from minifuse.model.text.config import ModelConfig, Rotary
from minifuse.model.text.load import build, load_weights, random_weights, resolve_text

if TYPE_CHECKING:  # shapes need no torch
    from minifuse.model.text.transformer import Transformer


VOCAB, CONTEXT, LONG_CONTEXT = 29, 48, 320

CONFIGS: dict[str, ModelConfig] = {
    "llama": ModelConfig(
        "llama", VOCAB, 16, 2, 4, 2, 4, 24, CONTEXT, rotary=Rotary(4), eos_ids=(3,)
    ),
    "gptj": ModelConfig(
        "gptj", VOCAB, 16, 2, 2, 2, 8, 24, CONTEXT, activation="gelu_new", rotary=Rotary(4, interleaved=True),
        parallel_residual=True, mlp_bias=True, head_bias=True,
    ),
    "opt": ModelConfig(
        "opt", VOCAB, 16, 1, 4, 4, 4, 24, CONTEXT, activation="relu", position_offset=2, attention_bias=True,
        mlp_bias=True,
    ),
    "three-a-head": ModelConfig(
        "llama", VOCAB, 24, 1, 6, 2, 6, 24, CONTEXT, rotary=Rotary(4), eos_ids=(3,)
    ),
    "one-kv-head": ModelConfig(
        "llama", VOCAB, 16, 1, 4, 1, 4, 24, LONG_CONTEXT, rotary=Rotary(4), eos_ids=(3,)
    ),
}  # fmt: skip


TINY = "tiny"
LONG = "one-kv-head"  # the model whose texts may be longer than any kernel's tile, chunk or page


@cache
def model_config(name: str) -> ModelConfig:
    """Return the shape of one of `CONFIGS`, or of the shipped model."""
    return resolve_text(TINY).config if name == TINY else CONFIGS[name]


@cache
def small_model(name: str, numerics: str = "fast") -> Transformer:
    """Return a small float64 model: one of `CONFIGS` with random weights, or the shipped one."""
    if name == TINY:
        return load_weights(resolve_text(TINY), "float64", numerics=numerics)
    model = random_weights(build(CONFIGS[name], "float64"), seed=7)
    if numerics == "reference":
        from minifuse.model.text.row_by_row import compute_row_by_row

        compute_row_by_row(model)
    return model


@lru_cache(maxsize=4096)
def _expected(name: str, request: Request) -> tuple[int, ...]:
    from minifuse.naive.oracle import answer

    return tuple(answer(small_model(name), request))


def expected_answer(name: str, request: Request) -> tuple[int, ...]:
    """Compute an answer with the oracle, which recomputes the whole text for every token.

    The answer ends before the first token whose logits contain NaN, or whose largest logit is infinite.
    """
    return _expected(name, replace(request, id="", group=None, arrival_s=0.0))  # these do not change the answer

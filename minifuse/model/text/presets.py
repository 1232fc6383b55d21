"""Shapes of published and benchmark models, filled with random weights: `random:NAME`."""

from __future__ import annotations

from minifuse.core.errors import UsageError
from minifuse.model.text.config import ModelConfig, Rotary


def _llama(
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocab: int,
    context: int,
    theta: float = 10000.0,
) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=intermediate,
        max_context=context,
        rotary=Rotary(hidden // heads, theta),
    )


def _opt(hidden: int, layers: int, heads: int, context: int = 2048, vocab: int = 50272) -> ModelConfig:
    return ModelConfig(
        family="opt",
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=4 * hidden,
        max_context=context,
        activation="relu",
        position_offset=2,
        attention_bias=True,
        mlp_bias=True,
        tied_embeddings=True,
    )


PRESETS: dict[str, ModelConfig] = {
    "small": _llama(256, 4, 8, 4, 688, vocab=4096, context=2048),
    "medium": _llama(768, 12, 12, 4, 2048, vocab=4096, context=2048),
    "small-opt": _opt(256, 4, 8, vocab=4096),
    "gpt-j-6b": ModelConfig(
        family="gptj",
        vocab_size=50400,
        hidden_size=4096,
        num_layers=28,
        num_heads=16,
        num_kv_heads=16,
        head_dim=256,
        intermediate_size=16384,
        max_context=2048,
        activation="gelu_new",
        rotary=Rotary(64, interleaved=True),
        parallel_residual=True,
        mlp_bias=True,
        head_bias=True,
    ),
    "opt-125m": _opt(768, 12, 12),
    "opt-1.3b": _opt(2048, 24, 32),
    "opt-6.7b": _opt(4096, 32, 32),
    "opt-13b": _opt(5120, 40, 40),
    "opt-66b": _opt(9216, 64, 72),
    "llama-7b": _llama(4096, 32, 32, 32, 11008, vocab=32000, context=2048),
    "llama-2-7b": _llama(4096, 32, 32, 32, 11008, vocab=32000, context=4096),
    "llama-2-13b": _llama(5120, 40, 40, 40, 13824, vocab=32000, context=4096),
    "llama-2-70b": _llama(8192, 80, 64, 8, 28672, vocab=32000, context=4096),
    "llama-3-8b": _llama(4096, 32, 32, 8, 14336, vocab=128256, context=8192, theta=500000.0),
    # As Pensieve has them (Table 3.1): a context of 16384 tokens, and KV heads for groups of four queries.
    "opt-13b-16k": _opt(5120, 40, 40, context=16384),
    "opt-66b-16k": _opt(9216, 64, 72, context=16384),
    "llama-2-13b-gqa-16k": _llama(5120, 40, 40, 10, 13824, vocab=32000, context=16384),
    "llama-2-70b-16k": _llama(8192, 80, 64, 8, 28672, vocab=32000, context=16384),
    # For Baton's first set of queries, whose sequences exceed the context of the model that it names (5.1).
    "llama-2-7b-16k": _llama(4096, 32, 32, 32, 11008, vocab=32000, context=16384),
}


def preset(name: str) -> ModelConfig:
    """Return the shape called `name`.

    Raises:
        UsageError: there is no such preset; the message lists all presets.
    """
    if name not in PRESETS:
        raise UsageError(f"There is no preset {name!r} for random weights; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]

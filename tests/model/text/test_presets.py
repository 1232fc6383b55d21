"""Presets have the size of their name, and the figures derived from a shape are those of the real tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers import RAW, refusal

from minifuse.attention.storage import KVStorage
from minifuse.core.errors import UsageError
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.hugging_face import read_config
from minifuse.model.text.load import build
from minifuse.model.text.presets import PRESETS, preset

NAMED = {  # parameters in millions, as the papers count them
    "gpt-j-6b": 6053,
    "opt-125m": 125.2,
    "opt-1.3b": 1316,
    "opt-6.7b": 6658,
    "opt-13b": 12853,
    "opt-66b": 65717,
    "llama-7b": 6738,
    "llama-2-7b": 6738,
    "llama-2-13b": 13016,
    "llama-2-70b": 68977,
    "llama-3-8b": 8030,
}


LONG = {  # Pensieve, Table 3.1, and Baton: as these, but for a context of 16384, and 10 KV heads of LLaMA-2-13B
    "opt-13b-16k": ("opt-13b", 40),
    "opt-66b-16k": ("opt-66b", 72),
    "llama-2-13b-gqa-16k": ("llama-2-13b", 10),
    "llama-2-70b-16k": ("llama-2-70b", 8),
    "llama-2-7b-16k": ("llama-2-7b", 32),
}


@pytest.mark.parametrize("name", LONG)
def test_some_models_have_a_longer_context(name: str) -> None:
    like, num_kv_heads = LONG[name]
    assert preset(name) == replace(preset(like), max_context=16384, num_kv_heads=num_kv_heads)


@pytest.mark.parametrize("name", NAMED)
def test_size_is_that_of_the_name(name: str) -> None:
    assert preset(name).num_parameters == pytest.approx(NAMED[name] * 1e6, rel=0.002)
    number, unit = name.rpartition("-")[2][:-1], name[-1]
    assert preset(name).num_parameters == pytest.approx(float(number) * {"m": 1e6, "b": 1e9}[unit], rel=0.05)


def test_every_published_preset_is_checked() -> None:
    assert set(NAMED) == set(PRESETS) - {"small", "medium", "small-opt"} - set(LONG)


def test_kv_bytes_of_a_token_by_hand() -> None:
    # LLaMA-7B: 32 layers, a key and a value, 32 heads of 128 numbers, 2 bytes each: half a MiB
    assert preset("llama-7b").kv_bytes_per_token("float16") == 2 * 32 * 32 * 128 * 2 == 524288
    # LLaMA-2-70B: 80 layers, but only 8 KV heads
    assert preset("llama-2-70b").kv_bytes_per_token("bfloat16") == 2 * 80 * 8 * 128 * 2 == 327680
    assert preset("opt-13b").kv_bytes_per_token("float32") == 2 * 40 * 5120 * 4


@pytest.mark.parametrize("family", RAW)
def test_kv_bytes_are_those_of_the_tensors(family: str) -> None:
    config = read_config(RAW[family])
    for dtype in DTYPE_BYTES:
        model = build(config, dtype)
        cache = KVStorage(config, 10, model.dtype, model.device)
        assert cache.keys.nbytes + cache.values.nbytes == 10 * config.kv_bytes_per_token(dtype)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", RAW)
def test_parameters_are_those_of_the_built_model(family: str, tied: bool) -> None:
    """All but biases and norms, which are the tensors of one dimension."""
    config = read_config({**RAW[family], "tie_word_embeddings": tied})
    model = build(config)
    matrices = {name: p.numel() for name, p in model.named_parameters() if p.dim() == 2}
    assert sum(matrices.values()) == config.num_parameters
    layers = sum(size for name, size in matrices.items() if name.startswith("layers."))
    assert layers + config.vocab_size * config.hidden_size == config.num_matrix_weights


def test_biases_and_norms_of_a_published_shape_are_negligible() -> None:
    config = preset("small")
    total = sum(parameter.numel() for parameter in build(config).parameters())
    assert config.num_parameters < total < 1.001 * config.num_parameters


def test_unknown_preset() -> None:
    with refusal(UsageError, "'llama-9b'", *PRESETS):
        preset("llama-9b")

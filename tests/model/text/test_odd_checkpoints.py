"""Checkpoints that could be read in two ways, or not at all: as transformers reads them, or refused by name."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import LLAMA3_ROPE, model_directory, random_model, raw_config, refusal
from safetensors.torch import load_file, save_file
from torch import Tensor

from minifuse.core.errors import MachineError, ModelError
from minifuse.model.text.checkpoint import INDEX, SINGLE, write_weights
from minifuse.model.text.hugging_face import read_config
from minifuse.model.text.load import load_weights, resolve_text
from minifuse.naive import oracle

TEXT = [5, 1, 30, 7, 7, 21, 0, 36, 12, 9] * 4


def _ours(directory: Path) -> Tensor:
    return oracle.logits(load_weights(resolve_text(str(directory)), "float32"), TEXT)


@torch.no_grad()
def _theirs(directory: Path) -> Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    logits: Tensor = model(torch.tensor([TEXT])).logits[0]
    return logits


def _same_as_transformers(directory: Path, other_than: Tensor | None = None) -> None:
    ours = _ours(directory)
    assert torch.allclose(ours, _theirs(directory), rtol=1e-4, atol=1e-4)
    assert other_than is None or not torch.allclose(ours, other_than, rtol=1e-2, atol=1e-2)


def _rewrite(directory: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(directory / SINGLE)
    change(tensors)
    save_file(tensors, directory / SINGLE)


def _refused(directory: Path, *parts: str) -> None:
    with refusal(ModelError, *parts):
        load_weights(resolve_text(str(directory)), "float32")


# --- as transformers reads them


@pytest.mark.parametrize("changes", [{}, {"rope_theta": 77.0}, {"original_max_position_embeddings": 16}])
def test_rope_scaling_beside_rope_parameters(changes: dict[str, Any], tmp_path: Path) -> None:
    """The older field wins, and theta is then its own or that of the field beside it."""
    scaling = {name: value for name, value in LLAMA3_ROPE.items() if name != "rope_theta"}
    plain = model_directory(tmp_path / "plain", "llama")
    both = model_directory(tmp_path / "both", "llama", rope_scaling=scaling, **changes)
    _same_as_transformers(both, other_than=_ours(plain))


def test_llama3_scaling_without_its_context(tmp_path: Path) -> None:
    scaling = {name: value for name, value in LLAMA3_ROPE.items() if name != "original_max_position_embeddings"}
    _same_as_transformers(model_directory(tmp_path, "llama", rope_parameters=scaling))


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_a_head_of_its_own_beside_tied_embeddings(family: str, tmp_path: Path) -> None:
    model_directory(tmp_path, family, tie_word_embeddings=True)
    tied = _ours(tmp_path)
    _rewrite(tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.randn(37, 24)}))
    _same_as_transformers(tmp_path, other_than=tied)
    model = load_weights(resolve_text(str(tmp_path)), "float32")
    assert not model.config.tied_embeddings
    write_weights(model, tmp_path / "again")
    assert "lm_head.weight" in load_file(tmp_path / "again" / SINGLE)


def test_a_head_that_repeats_the_embeddings_stays_tied(tmp_path: Path) -> None:
    model_directory(tmp_path, "llama", tie_word_embeddings=True)
    head = load_file(tmp_path / SINGLE)["model.embed_tokens.weight"].clone()
    _rewrite(tmp_path, lambda tensors: tensors.update({"lm_head.weight": head}))
    model = load_weights(resolve_text(str(tmp_path)), "float32")
    assert model.lm_head.weight is model.embedding.weight


def test_a_single_file_beside_an_index(tmp_path: Path) -> None:
    """What is left of an earlier download: the single file is read."""
    write_weights(random_model("llama", seed=1), tmp_path)
    (tmp_path / SINGLE).rename(tmp_path / "model-00001-of-00001.safetensors")
    index = dict.fromkeys(load_file(tmp_path / "model-00001-of-00001.safetensors"), "model-00001-of-00001.safetensors")
    model_directory(tmp_path, "llama")
    alone = _ours(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    assert torch.equal(_ours(tmp_path), alone)
    _same_as_transformers(tmp_path)
    (tmp_path / SINGLE).unlink()
    _same_as_transformers(tmp_path, other_than=alone)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("gpt2", "transformer.h.0.attn.bias"),
        ("gptj", "transformer.h.1.attn.masked_bias"),
    ],
)
def test_buffers_of_older_versions(family: str, name: str, tmp_path: Path) -> None:
    model_directory(tmp_path, family)
    before = _ours(tmp_path)
    _rewrite(tmp_path, lambda tensors: tensors.update({name: torch.ones(3, dtype=torch.bool)}))
    assert torch.equal(_ours(tmp_path), before)


def test_a_shape_under_its_other_name(tmp_path: Path) -> None:
    """transformers reads `num_hidden_layers` as GPT-2's `n_layer`."""
    raw = raw_config("gpt2", n_layer=...) | {"num_hidden_layers": 2}
    assert read_config(raw) == read_config(raw_config("gpt2"))
    with refusal(ModelError, "n_layer 2", "num_hidden_layers 1"):
        read_config(raw_config("gpt2", num_hidden_layers=1))


def test_a_shard_behind_a_link(tmp_path: Path) -> None:
    """The cache of Hugging Face's hub is made of links out of the model's directory."""
    model_directory(tmp_path / "model", "llama")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "model" / SINGLE).rename(tmp_path / "blobs" / "0a1b")
    (tmp_path / "model" / SINGLE).symlink_to(os.path.join("..", "blobs", "0a1b"))
    _same_as_transformers(tmp_path / "model")


# --- refused by name


@pytest.mark.parametrize("field", ["quantization_config", "compression_config"])
def test_quantised_by_its_config(field: str, tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    (tmp_path / "config.json").write_text(json.dumps(raw_config("llama", **{field: {"quant_method": "fp8"}})))
    _refused(tmp_path, "quantised", field, "not quantised")
    (tmp_path / "config.json").write_text(json.dumps(raw_config("llama", **{field: None})))
    resolve_text(str(tmp_path))


@pytest.mark.parametrize(
    ("dtype", "named"),
    [(torch.float8_e4m3fn, "F8_E4M3"), (torch.int8, "I8"), (torch.uint8, "U8"), (torch.bool, "BOOL")],
)
def test_quantised_by_its_weights(dtype: torch.dtype, named: str, tmp_path: Path) -> None:
    """With their scales, or without: numbers of such types are no weights."""
    name = "model.layers.0.mlp.up_proj.weight"
    model_directory(tmp_path, "llama")
    _rewrite(tmp_path, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    _refused(tmp_path, repr(name), named, "not quantised")


@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight_scale", "score.weight", "model.layers.2.norm"])
def test_tensors_that_nothing_uses(name: str, tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    _rewrite(tmp_path, lambda tensors: tensors.update({name: torch.ones(1)}))
    _refused(tmp_path, repr(name), "no use", str(tmp_path))
    _rewrite(tmp_path, lambda tensors: tensors.update({"zz": torch.ones(1)}))
    _refused(tmp_path, repr(name), "and 1 more")


@pytest.mark.parametrize("family", ["llama", "gpt2", "gptj", "opt"])
def test_fewer_layers_than_the_file_has(family: str, tmp_path: Path) -> None:
    model_directory(tmp_path, family)
    fewer = {"num_hidden_layers" if family in ("llama", "opt") else "n_layer": 1}
    (tmp_path / "config.json").write_text(json.dumps(raw_config(family, **fewer)))
    _refused(tmp_path, ".1.", "no use", "1 layers")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name", ["model.embed_tokens.weight", "model.norm.weight", "model.layers.1.mlp.up_proj.weight"]
)
def test_weights_that_are_not_finite(number: float, name: str, tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    _rewrite(tmp_path, lambda tensors: tensors[name].view(-1)[-1:].fill_(number))
    _refused(tmp_path, repr(name), "NaN or infinite")


def test_weights_too_large_for_the_type(tmp_path: Path) -> None:
    """65504 is the largest number of float16; weights whose sum would overflow are still finite."""
    name = "model.layers.1.mlp.up_proj.weight"
    model_directory(tmp_path, "llama", "float32")
    _rewrite(tmp_path, lambda tensors: tensors[name].view(-1)[:3].fill_(1.7e38))
    source = resolve_text(str(tmp_path))
    load_weights(source, "float32")
    with refusal(ModelError, repr(name), "too large for float16", "--dtype"):
        load_weights(source, "float16")


@pytest.mark.parametrize("shard", ["../elsewhere.safetensors", "/tmp/x.safetensors", "a/../../x.safetensors", "a\0"])
def test_an_index_that_leaves_its_directory(shard: str, tmp_path: Path) -> None:
    model_directory(tmp_path / "model", "llama")
    (tmp_path / "model" / SINGLE).rename(tmp_path / "elsewhere.safetensors")
    (tmp_path / "model" / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": shard}}))
    _refused(tmp_path / "model", INDEX, repr(shard))


NUMBERS: list[Any] = [0, -1e-5, math.nan, math.inf, True, "1e-5", None, [1e-5], 10**400]


@pytest.mark.parametrize(
    ("family", "field", "values"),
    [
        ("llama", "rms_norm_eps", [*NUMBERS, 3.0]),
        ("gpt2", "layer_norm_epsilon", NUMBERS),
        ("llama", "rope_theta", [*NUMBERS, 0.5]),
        ("llama", "eos_token_id", [-1, 2**31, True, "3", 3.0, math.nan, [3, -1], [[3]], {}]),
        ("llama", "attention_bias", ["false", 0, None]),
        ("llama", "tie_word_embeddings", ["false", 1]),
        ("llama", "vocab_size", [10**30, 2**31, True, 37.0]),
        ("llama", "head_dim", [7]),
        ("gptj", "rotary_dim", [3, 10, None, ...]),
        ("llama", "partial_rotary_factor", [0.5]),
    ],
)
def test_fields_that_make_no_sense(family: str, field: str, values: list[Any]) -> None:
    for value in values:
        changes = {"rope_parameters": ...} if field == "rope_theta" else {}
        with refusal(ModelError, field):
            read_config(raw_config(family, **changes, **{field: value}))


@pytest.mark.parametrize(
    "changes",
    [{"factor": 0.5}, {"factor": math.nan}, {"low_freq_factor": 4.0}, {"high_freq_factor": "4"}, {"rope_theta": -1}],
)
def test_rope_scaling_that_makes_no_sense(changes: dict[str, Any]) -> None:
    with refusal(ModelError, next(iter(changes)), "rope_scaling of config.json"):
        read_config(raw_config("llama", rope_scaling=LLAMA3_ROPE | changes))


@pytest.mark.parametrize("text", ['{"eos_token_id": -5}', '{"eos_token_id": "3"}', "{", "[]", "[" * 100_000])
def test_generation_config_that_makes_no_sense(text: str, tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    (tmp_path / "generation_config.json").write_text(text)
    _refused(tmp_path, "generation_config.json")


def test_a_context_whose_angles_do_not_fit(tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    (tmp_path / "config.json").write_text(json.dumps(raw_config("llama", max_position_embeddings=2**31 - 1)))
    with refusal(MachineError, "GiB"):
        load_weights(resolve_text(str(tmp_path)), "float32")

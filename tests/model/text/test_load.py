"""Reading a Hugging Face directory: its contents, and the one-sentence error for every defect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import RAW, model_directory, random_model, raw_config, refusal, sentence
from safetensors.torch import load_file, save_file

from minifuse.core.errors import MachineError, ModelError, UsageError
from minifuse.model import device
from minifuse.model.text.checkpoint import write_weights
from minifuse.model.text.hugging_face import read_config
from minifuse.model.text.load import TextSource, build, load_weights, random_weights, resolve_text
from minifuse.model.text.presets import preset
from minifuse.naive import oracle

every_family = pytest.mark.parametrize("family", RAW)
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def _shard(directory: Path, pieces: int = 3) -> list[Path]:
    """Split model.safetensors into shards with an index."""
    tensors = load_file(directory / WEIGHTS)
    names = sorted(tensors)
    index = {name: f"model-{i % pieces + 1:05}-of-{pieces:05}.safetensors" for i, name in enumerate(names)}
    for shard in set(index.values()):
        save_file({name: tensors[name] for name in names if index[name] == shard}, directory / shard)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (directory / WEIGHTS).unlink()
    return sorted(directory / shard for shard in set(index.values()))


def _change(directory: Path, **changes: Any) -> None:
    """Replace tensors (dots written as double underscores); `None` removes one."""
    tensors = load_file(directory / WEIGHTS)
    for name, value in changes.items():
        tensors.pop(name.replace("__", "."))
        if value is not None:
            tensors[name.replace("__", ".")] = value
    save_file(tensors, directory / WEIGHTS)


def _load(directory: Path) -> torch.nn.Module:
    return load_weights(resolve_text(str(directory)), "float64")


# --- contents


@every_family
@pytest.mark.parametrize("sharded", [False, True])
def test_round_trip(family: str, sharded: bool, tmp_path: Path) -> None:
    model = random_model(family)
    model_directory(tmp_path, family)
    if sharded:
        assert len(_shard(tmp_path)) == 3
    again = dict(_load(tmp_path).named_parameters())
    assert again.keys() == dict(model.named_parameters()).keys()
    for name, parameter in model.named_parameters():
        assert torch.equal(again[name], parameter), name


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_weights_are_converted(dtype: str, tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    stored = load_file(tmp_path / WEIGHTS)["model.layers.1.mlp.down_proj.weight"]
    model = load_weights(resolve_text(str(tmp_path)), dtype)
    wanted = getattr(torch, dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {wanted}
    assert model.rotary_table is not None
    assert model.rotary_table.cos.dtype == wanted
    down = dict(model.named_parameters())["layers.1.down.weight"]
    assert torch.equal(down, stored.to(wanted))
    assert torch.get_default_dtype() == torch.float32


def test_precision_may_be_lowered_when_writing(tmp_path: Path) -> None:
    model = random_model("gpt2")
    write_weights(model, tmp_path, lambda tensor: tensor.half())
    stored = load_file(tmp_path / WEIGHTS)
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    up = dict(model.named_parameters())["layers.0.up.weight"]
    assert torch.equal(stored["transformer.h.0.mlp.c_fc.weight"], up.t().half())


def test_end_of_sequence_ids() -> None:
    def eos(value: Any) -> tuple[int, ...]:
        return read_config(raw_config("llama", eos_token_id=value)).eos_ids

    assert (eos([3, 4]), eos(7), eos(0), eos(None), eos(...)) == ((3, 4), (7,), (0,), (), ())


def test_random_weights_follow_the_seed() -> None:
    source = TextSource("random:x", read_config(RAW["llama"]), None)
    first, same, other = (oracle.logits(load_weights(source, "float64", seed=seed), [1, 2, 3]) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.allclose(first, other)


def test_random_weights_keep_the_variance() -> None:
    model = random_weights(build(preset("small"), "float32"))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            assert parameter.std().item() == pytest.approx(parameter.shape[1] ** -0.5, rel=0.02), name


# --- errors in a name


def test_unknown_names() -> None:
    with pytest.raises(UsageError) as error:
        resolve_text("no/such/model")
    sentence(error.value, "'no/such/model'", "tiny", "random:PRESET", "llama-7b")
    assert "random:no" not in str(error.value)
    with refusal(UsageError, "'llama-7b'", "random:llama-7b"):
        resolve_text("llama-7b")
    with refusal(UsageError, "'llama-8b'", "llama-3-8b"):
        resolve_text("random:llama-8b")


def test_a_preset_needs_no_directory() -> None:
    source = resolve_text("random:small")
    assert (source.name, source.config, source.directory) == ("random:small", preset("small"), None)


# --- errors in config.json


def _config_error(tmp_path: Path, raw: Any) -> ModelError:
    (tmp_path / "config.json").write_text(raw if isinstance(raw, str) else json.dumps(raw))
    with pytest.raises(ModelError) as error:
        resolve_text(str(tmp_path))
    return error.value


def test_no_config(tmp_path: Path) -> None:
    with refusal(ModelError, str(tmp_path), "no config.json"):
        resolve_text(str(tmp_path))


@pytest.mark.parametrize("text", ["{", "", "\x00", "NaN}"])
def test_config_that_is_not_json(text: str, tmp_path: Path) -> None:
    sentence(_config_error(tmp_path, text), "config.json", "JSON")


def test_config_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"model_type": "\xff"}')
    with refusal(ModelError, "config.json", "JSON"):
        resolve_text(str(tmp_path))


@pytest.mark.parametrize("text", ["[]", "3", "null", '"llama"'])
def test_config_that_is_no_object(text: str, tmp_path: Path) -> None:
    sentence(_config_error(tmp_path, text), "config.json", "no JSON object")


def test_unsupported_architecture(tmp_path: Path) -> None:
    raw = {"architectures": ["MambaForCausalLM"], "model_type": "mamba"}
    sentence(_config_error(tmp_path, raw), "'MambaForCausalLM'", "gpt2, gptj, llama, opt")
    sentence(_config_error(tmp_path, {"model_type": "bert"}), "'bert'")
    sentence(_config_error(tmp_path, {}), "architecture")


def test_missing_field_of_the_rope_scaling(tmp_path: Path) -> None:
    error = _config_error(tmp_path, raw_config("llama", rope_parameters={"rope_type": "llama3", "factor": 8.0}))
    sentence(error, "'low_freq_factor'")


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before False"),
        ("opt", {"word_embed_proj_dim": 12}, "word_embed_proj_dim must be hidden_size"),
        ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm True"),
        ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine False"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
        ("llama", {"rope_parameters": ..., "rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
        ("llama", {"hidden_act": "gelu"}, "'gelu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights False"),
        ("gpt2", {"activation_function": "silu"}, "'silu'"),
        ("gptj", {"activation_function": "quick_gelu"}, "'quick_gelu'"),
        ("opt", {"activation_function": "tanh"}, "'tanh'"),
    ],
)
def test_variants_that_are_not_supported(family: str, changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    """Other arithmetic on these weights would give wrong answers."""
    sentence(_config_error(tmp_path, raw_config(family, **changes)), named)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_attention_heads": 0, "head_dim": ...}, "num_attention_heads"),
        ({"hidden_size": "24"}, "hidden_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"intermediate_size": -40}, "intermediate_size"),
        ({"rope_parameters": "llama3"}, "rope"),
        ({"model_type": ["llama"]}, "config.json"),
    ],
)
def test_fields_that_do_not_describe_a_model(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    sentence(_config_error(tmp_path, raw_config("llama", **changes)), named)


# --- errors in the weights


def test_missing_tensor(tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    _change(tmp_path, model__layers__1__self_attn__k_proj__weight=None)
    with refusal(ModelError, "'model.layers.1.self_attn.k_proj.weight'", str(tmp_path)):
        _load(tmp_path)


@pytest.mark.parametrize(
    ("family", "name", "wanted"),
    [
        ("llama", "model.layers.0.self_attn.v_proj.weight", [16, 24]),
        ("gpt2", "transformer.h.1.mlp.c_fc.weight", [24, 96]),
        ("gptj", "lm_head.bias", [37]),
        ("opt", "model.decoder.embed_positions.weight", [98, 24]),
    ],
)
def test_misshapen_tensor(family: str, name: str, wanted: list[int], tmp_path: Path) -> None:
    model_directory(tmp_path, family)
    _change(tmp_path, **{name.replace(".", "__"): torch.zeros(5, 7)})
    with refusal(ModelError, f"{name!r}", "[5, 7]", str(wanted), str(tmp_path)):
        _load(tmp_path)


@pytest.mark.parametrize("keep", [0, 7, 100, 0.5, -1])
@pytest.mark.parametrize("sharded", [False, True])
def test_truncated_weights(keep: float, sharded: bool, tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    path = _shard(tmp_path)[1] if sharded else tmp_path / WEIGHTS
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    with refusal(ModelError, str(path), "truncated"):
        _load(tmp_path)


def test_missing_shard(tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    shard = _shard(tmp_path)[2]
    shard.unlink()
    with refusal(ModelError, shard.name, str(tmp_path)):
        _load(tmp_path)


@pytest.mark.parametrize(
    "text", ["{", "{}", '{"weight_map": []}', "[]", "7", '{"weight_map": {"a": 1}}', '{"weight_map": {"a": ["b"]}}']
)
def test_broken_index(text: str, tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    _shard(tmp_path)
    (tmp_path / INDEX).write_text(text)
    with refusal(ModelError, INDEX, "download it again"):
        _load(tmp_path)


def test_no_safetensors(tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    (tmp_path / WEIGHTS).rename(tmp_path / "pytorch_model.bin")
    with refusal(ModelError, str(tmp_path), WEIGHTS, "safetensors only"):
        _load(tmp_path)


def test_weights_too_large_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "free_bytes", lambda device: 3 * 2**30)
    with refusal(MachineError, "random:llama-7b", "12.6 GiB", "3.0 GiB", "float16", "cpu"):
        load_weights(resolve_text("random:llama-7b"), "float16")


def test_weights_are_loaded_where_free_memory_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "free_bytes", lambda device: None)
    source = TextSource("x", read_config(RAW["opt"]), None)
    assert load_weights(source, "float64").config == source.config


# --- the tokenizer


def test_no_tokenizer(tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    for name in (str(tmp_path), "random:small"):
        with refusal(ModelError, name, "tokenizer.json", "prompt_token_ids"):
            resolve_text(name).tokenizer()


@pytest.mark.parametrize("text", ["{", "{}", '{"model": {"type": "BPE"}}', "[]"])
def test_broken_tokenizer(text: str, tmp_path: Path) -> None:
    model_directory(tmp_path, "llama")
    (tmp_path / "tokenizer.json").write_text(text)
    with refusal(ModelError, "tokenizer.json", "download it again"):
        resolve_text(str(tmp_path)).tokenizer()

"""The same logits and the same greedy answers as transformers, in float64, for random small models of every family."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from helpers import LLAMA3_ROPE, RAW, layers_logits, raw_config
from torch import Tensor, nn
from transformers.models.gptj.modeling_gptj import GPTJAttention
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from minifuse.core.request import Request
from minifuse.model.linear import Linear, packable
from minifuse.model.text.checkpoint import write_weights
from minifuse.model.text.hugging_face import read_config
from minifuse.model.text.load import TextSource, load_weights, resolve_text
from minifuse.naive import oracle
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.techniques import technique

CONTEXT, NEW = 128, 24


@pytest.fixture(autouse=True)
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers computes these two in float32 for every dtype, which a comparison to 1e-10 would fail on."""

    def norm(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def attend(self: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        scores = q @ k.transpose(-1, -2) / self.scale_attn
        weights = (scores if attention_mask is None else scores + attention_mask).softmax(-1)
        return weights @ v, weights

    monkeypatch.setattr(LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(GPTJAttention, "_attn", attend)


def _common(rng: random.Random, kv: bool = False, **more: Any) -> dict[str, Any]:
    heads = rng.choice([2, 4, 6])
    return dict(
        vocab_size=rng.randint(50, 90),
        hidden_size=heads * rng.choice([4, 8, 12]),
        num_hidden_layers=rng.randint(1, 3),
        num_attention_heads=heads,
        max_position_embeddings=CONTEXT,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
        **more,
    )


def _llama(rng: random.Random, groups: int = 1, **more: Any) -> Any:
    shape = _common(rng)
    return transformers.LlamaConfig(
        **shape,
        num_key_value_heads=shape["num_attention_heads"] // groups,
        intermediate_size=rng.randint(20, 60),
        rms_norm_eps=rng.choice([1e-6, 1e-3]),
        **more,
    )


def _gpt2(rng: random.Random, **more: Any) -> Any:
    shape = _common(rng)
    return transformers.GPT2Config(
        **{k: v for k, v in shape.items() if k[:4] not in ("hidd", "num_", "max_")},
        n_embd=shape["hidden_size"],
        n_layer=shape["num_hidden_layers"],
        n_head=shape["num_attention_heads"],
        n_positions=CONTEXT,
        n_inner=rng.choice([None, 44]),
        **more,
    )


def _gptj(rng: random.Random, **more: Any) -> Any:
    shape = _common(rng)
    head_dim = shape["hidden_size"] // shape["num_attention_heads"]
    return transformers.GPTJConfig(
        **{k: v for k, v in shape.items() if k[:4] not in ("hidd", "num_", "max_")},
        n_embd=shape["hidden_size"],
        n_layer=shape["num_hidden_layers"],
        n_head=shape["num_attention_heads"],
        n_positions=CONTEXT,
        rotary_dim=rng.choice([2, head_dim]) if head_dim > 4 else 2,
        tie_word_embeddings=False,
        **more,
    )


def _opt(rng: random.Random, **more: Any) -> Any:
    shape = _common(rng)
    return transformers.OPTConfig(
        **shape, ffn_dim=rng.randint(20, 60), word_embed_proj_dim=shape["hidden_size"], **more
    )


CASES: dict[str, Callable[[random.Random], Any]] = {
    "llama": lambda rng: _llama(rng),
    "llama grouped": lambda rng: _llama(rng, groups=2, rope_parameters={"rope_type": "default", "rope_theta": 700.0}),
    "llama rope scaling": lambda rng: _llama(rng, groups=2, head_dim=16, rope_parameters=LLAMA3_ROPE),
    "llama tied": lambda rng: _llama(rng, tie_word_embeddings=True),
    "llama biased": lambda rng: _llama(rng, attention_bias=True, mlp_bias=True),
    "gpt2": lambda rng: _gpt2(rng),
    "gpt2 exact gelu, untied": lambda rng: _gpt2(rng, activation_function="gelu", tie_word_embeddings=False),
    "gptj": lambda rng: _gptj(rng),
    "opt": lambda rng: _opt(rng),
    "opt unbiased, untied": lambda rng: _opt(rng, enable_bias=False, tie_word_embeddings=False),
}
every_case = pytest.mark.parametrize("case", CASES)


def _peer(config: Any, seed: int) -> Any:
    """transformers' model with weights so large that an error in a position or a bias shows in every logit."""
    implementation = "eager" if config.model_type == "gptj" else "sdpa"  # OPT's eager softmax is float32
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            center = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
            parameter.normal_(center, 0.3, generator=generator)
    return model


def _peers(case: str, seed: int, directory: Path, **saving: Any) -> tuple[Any, TextSource]:
    peer = _peer(CASES[case](random.Random(f"{case} {seed}")), seed)
    peer.save_pretrained(directory, **saving)
    return peer, resolve_text(str(directory))


def _prompts(vocab_size: int, *lengths: int) -> list[tuple[int, ...]]:
    rng = random.Random(vocab_size)
    return [tuple(rng.randrange(vocab_size) for _ in range(length)) for length in lengths]


@torch.no_grad()
def _peer_logits(peer: Any, tokens: tuple[int, ...]) -> Tensor:
    logits: Tensor = peer(torch.tensor([tokens])).logits[0]
    return logits


def _peer_greedy(peer: Any, prompt: tuple[int, ...]) -> list[int]:
    out = peer.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=NEW,
        min_new_tokens=NEW, pad_token_id=0,
    )  # fmt: skip
    new: list[int] = out[0, len(prompt) :].tolist()
    return new


@every_case
@pytest.mark.parametrize("seed", range(4))
def test_logits(case: str, seed: int, tmp_path: Path) -> None:
    sharded = {"max_shard_size": "8KB"} if seed % 2 else {}
    peer, source = _peers(case, seed, tmp_path, **sharded)
    assert (tmp_path / "model.safetensors.index.json").exists() == bool(sharded)
    (tokens,) = _prompts(source.config.vocab_size, 70)
    wanted = _peer_logits(peer, tokens)
    model = load_weights(source, "float64")
    assert wanted.std() > 0.1
    for computed in (layers_logits, oracle.logits):  # neither uses anything of the other
        assert torch.allclose(computed(model, list(tokens)), wanted, rtol=0, atol=1e-10)


@every_case
def test_greedy_tokens(case: str, tmp_path: Path) -> None:
    peer, source = _peers(case, 9, tmp_path)
    model = load_weights(source, "float64")
    requests = [Request(f"r{i}", prompt, NEW) for i, prompt in enumerate(_prompts(source.config.vocab_size, 1, 9, 23))]
    wanted = [_peer_greedy(peer, request.prompt) for request in requests]
    assert [len(tokens) for tokens in wanted] == [NEW] * 3
    assert oracle.answer(model, requests[1]) == wanted[1]
    for name in ("orca", "static"):
        engine = build_engine(resolve_run(technique(name), source, Settings(dtype="float64")), model)
        served = serve(engine, requests)
        assert [list(answer.token_ids) for answer in served.answers] == wanted, name


@pytest.mark.parametrize("case", ["llama tied", "gpt2", "opt"])
def test_checkpoint_of_the_bare_model(case: str, tmp_path: Path) -> None:
    """GPT-2 and OPT as published: saved without the head, every name without its prefix."""
    peer = _peer(CASES[case](random.Random(3)), 3)
    peer.base_model.save_pretrained(tmp_path)
    source = resolve_text(str(tmp_path))
    (tokens,) = _prompts(source.config.vocab_size, 20)
    got = layers_logits(load_weights(source, "float64"), list(tokens))
    assert torch.allclose(got, _peer_logits(peer, tokens), rtol=0, atol=1e-10)


@every_case
def test_transformers_reads_our_checkpoints(case: str, tmp_path: Path) -> None:
    _, source = _peers(case, 5, tmp_path / "theirs")
    model = load_weights(source, "float64")
    write_weights(model, tmp_path / "ours")
    (tmp_path / "ours" / "config.json").write_text((tmp_path / "theirs" / "config.json").read_text())
    # Read as float32 and compared in float32: its GPT-J makes other position tables when built in float64.
    peer, loading = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float32, output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    (tokens,) = _prompts(source.config.vocab_size, 40)
    single = load_weights(source, "float32")
    assert torch.allclose(_peer_logits(peer, tokens), layers_logits(single, list(tokens)), rtol=1e-3, atol=1e-3)
    written = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float64).state_dict()
    for name, tensor in transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "theirs", dtype=torch.float64
    ).state_dict().items():  # fmt: skip
        assert torch.equal(written[name], tensor), name


def test_rope_of_older_configs() -> None:
    """Before transformers 5, `rope_theta` was a field of its own and the scaling was in `rope_scaling`."""
    scaling = {name: value for name, value in LLAMA3_ROPE.items() if name != "rope_theta"}
    new = read_config(raw_config("llama", rope_parameters=LLAMA3_ROPE))
    old = read_config(raw_config("llama", rope_parameters=..., rope_scaling=scaling, rope_theta=500.0))
    assert old == new
    assert old.rotary is not None
    assert old.rotary.theta == 500.0
    plain = read_config(raw_config("llama", rope_parameters=..., rope_scaling=None, rope_theta=123.0))
    assert plain.rotary is not None
    assert (plain.rotary.theta, plain.rotary.scaling) == (123.0, None)


@pytest.mark.parametrize("family", RAW)
def test_defaults_are_those_of_transformers(family: str) -> None:
    """Every field may be missing in config.json: then it has transformers' default."""
    full = transformers.AutoConfig.for_model(family).to_dict()
    config = read_config(full)
    for name in full.keys() - {"model_type", "eos_token_id"}:
        assert read_config({key: value for key, value in full.items() if key != name}) == config, name
    bare = {"model_type": family, "eos_token_id": full["eos_token_id"]}
    assert read_config(bare) == config


def test_a_gptj_without_rotary_dim(tmp_path: Path) -> None:
    """transformers rotates 64 dimensions, of heads of any size that has them."""
    shape = {"n_embd": 256, "n_layer": 1, "n_head": 2, "n_positions": CONTEXT, "bos_token_id": None}
    peer = _peer(transformers.GPTJConfig(vocab_size=50, eos_token_id=None, **shape), 1)
    peer.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert raw.pop("rotary_dim") == 64
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tokens,) = _prompts(50, 40)
    wanted = _peer_logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), tokens)
    got = layers_logits(load_weights(resolve_text(str(tmp_path)), "float32"), list(tokens))
    assert torch.allclose(got, wanted, rtol=1e-3, atol=1e-3)


ENDS: list[Any] = [..., None, 7, 90, [7, 8], [8, 90, 8]]  # of a vocabulary of 50


@pytest.mark.parametrize("generation", [None, *ENDS])
@pytest.mark.parametrize("config", ENDS)
def test_end_tokens_are_those_of_generate(config: Any, generation: Any, tmp_path: Path) -> None:
    """generation_config.json alone counts where there is one (None: there is none; ...: it lacks the field)."""
    raw = {"model_type": "opt", "hidden_size": 8, "ffn_dim": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    for name, ids in (("config", config), ("generation_config", generation)):
        if name == "config" or generation is not None:
            own = {**raw, "vocab_size": 50} if name == "config" else {}
            (tmp_path / f"{name}.json").write_text(json.dumps(own if ids is ... else {**own, "eos_token_id": ids}))
    transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path)).save_pretrained(
        tmp_path / "weights"
    )
    (tmp_path / "weights" / "model.safetensors").rename(tmp_path / "model.safetensors")
    wanted = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).generation_config.eos_token_id
    as_list = wanted if isinstance(wanted, list) else [] if wanted is None else [wanted]
    assert resolve_text(str(tmp_path)).config.eos_ids == tuple(dict.fromkeys(as_list))


def test_an_end_token_outside_of_the_vocabulary_never_comes(tmp_path: Path) -> None:
    peer, _ = _peers("gpt2", 2, tmp_path)
    vocab_size = peer.config.vocab_size
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": vocab_size}))
    source = resolve_text(str(tmp_path))
    request = Request("r", _prompts(vocab_size, 9)[0], NEW, source.config.eos_ids)
    engine = build_engine(
        resolve_run(technique("orca"), source, Settings(dtype="float64")), load_weights(source, "float64")
    )
    (answer,) = serve(engine, [request]).answers
    assert list(answer.token_ids) == _peer_greedy(peer, request.prompt)


# --- packed weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 7, 32, 100])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_weights_give_the_same(rows: int, bias: bool, dtype: torch.dtype) -> None:
    linear = _linear(dtype, bias)
    x = torch.randn(rows, 48, generator=torch.Generator().manual_seed(rows)).to(dtype)
    plain = linear(x)
    linear.pack()
    assert (linear.packed is not None) == packable(dtype)
    rounding = torch.finfo(dtype).eps
    assert torch.allclose(linear(x), plain, rtol=16 * rounding, atol=128 * rounding)
    assert not torch.equal(linear(2 * x), plain)


def test_float64_is_not_packed() -> None:
    linear = _linear(torch.float64, True)
    linear.pack()
    assert linear.packed is None
    x = torch.randn(5, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(linear(x), nn.functional.linear(x, linear.weight, linear.bias))


def _linear(dtype: torch.dtype, bias: bool) -> Linear:
    linear = Linear(48, 80, bias).to(dtype).requires_grad_(False)
    generator = torch.Generator().manual_seed(1)
    for parameter in linear.parameters():
        parameter.normal_(generator=generator)
    return linear

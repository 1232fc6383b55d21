"""LLaMA with its layers in C: bit for bit the layers that call one operator after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minifuse.kernels.native import library
from minifuse.kernels.native.operators import NativeOperators
from minifuse.kernels.operators import TORCH
from minifuse.model.linear import Linear, pack
from minifuse.model.text.config import ModelConfig, Rotary
from minifuse.model.text.load import build
from minifuse.model.text.native import NativeLlama, in_native
from minifuse.model.text.presets import preset
from minifuse.model.text.rotary import Llama, LlamaLayer
from minifuse.model.text.transformer import Transformer

if not library.has_native("float32"):
    pytest.skip("there is no C compiler", allow_module_level=True)

SMALL = ModelConfig(
    family="llama", vocab_size=97, hidden_size=40, num_layers=2, num_heads=6, num_kv_heads=2, head_dim=10,
    intermediate_size=52, max_context=300, rotary=Rotary(10), attention_bias=True, mlp_bias=True,
)  # fmt: skip


def drawn(config: ModelConfig, dtype: str = "float32") -> Transformer:
    """A packed model whose norms and biases are random, too."""
    model, generator = build(config, dtype), torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    pack(model)
    return model


def in_panels(model: Transformer) -> bool:
    return all(one.in_panels for one in model.modules() if isinstance(one, Linear))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 7, 200])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_halves_are_bit_for_bit_those_of_the_layer(dtype: str, bias: bool, rows: int, threads: int) -> None:
    model, ops = drawn(replace(SMALL, attention_bias=bias, mlp_bias=bias), dtype), NativeOperators(dtype)
    if not in_panels(model):
        pytest.skip("this processor multiplies bfloat16 itself")
    native = in_native(model, ops)
    x, attended = (torch.randn(rows, size).to(model.dtype) for size in (40, 60))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for layer, same in zip(model.layers, native.layers, strict=True):
            assert isinstance(layer, LlamaLayer)
            assert not isinstance(same, LlamaLayer)
            assert torch.equal(same.pre_attention(x, ops), layer.pre_attention(x, ops))
            assert torch.equal(same.post_attention(x, attended, ops), layer.post_attention(x, attended, ops))
    finally:
        torch.set_num_threads(before)


def test_the_rest_is_the_models_own() -> None:
    model = drawn(SMALL)
    assert isinstance(model, Llama)
    native, ids = NativeLlama(model), torch.tensor([5, 1])
    x = native.embed(ids, ids)
    assert torch.equal(x, model.embed(ids, ids))
    assert torch.equal(native.head(x, TORCH), model.head(x, TORCH))
    assert torch.equal(native.rotary(ids).sin, model.rotary(ids).sin)
    assert (native.dtype, native.device, native.config) == (model.dtype, model.device, model.config)


def test_only_packed_llamas_with_the_operators_in_c() -> None:
    ops = NativeOperators("float32")
    assert in_native(model := drawn(SMALL), TORCH) is model
    unpacked = build(SMALL)
    assert in_native(unpacked, ops) is unpacked
    other = drawn(replace(preset("small-opt"), vocab_size=97, num_layers=1))
    assert in_native(other, ops) is other

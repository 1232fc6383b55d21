"""LLaMA with each half of a layer computed in one call of C, for a CPU."""

from __future__ import annotations

from ctypes import byref
from typing import cast

import torch
from torch import Tensor, nn

from minifuse.kernels.native import library
from minifuse.kernels.native.linear import product
from minifuse.kernels.native.operators import NativeOperators
from minifuse.model.linear import Linear
from minifuse.model.operators import Operators
from minifuse.model.text.rotary import Llama, LlamaLayer
from minifuse.model.text.transformer import Layer, Transformer

PRODUCTS = ("qkv", "out", "gate_up", "down")


class NativeLlamaLayer(Layer):
    """The halves of a LLaMA layer, each computed by one team of threads.

    Results are bit for bit those of `layer` with the operators in C.
    """

    def __init__(self, layer: LlamaLayer) -> None:
        super().__init__()
        self.layer = layer  # keeps alive what `_weights` points to
        attention_norm, mlp_norm = layer.attention_norm, layer.mlp_norm
        norms = attention_norm.weight.data_ptr(), mlp_norm.weight.data_ptr()
        products = [product_of(getattr(layer, name)) for name in PRODUCTS]
        self._weights = library.Layer(*norms, *products, mlp_norm.eps)
        self._library = library.native(library.name_of(mlp_norm.weight.dtype))
        self._heads = layer.qkv.out_features // layer.config.head_dim, layer.config.head_dim

    def pre_attention(self, x: Tensor, ops: Operators) -> Tensor:
        rows = x.shape[0]
        heads = x.new_empty(rows, *self._heads)
        given = heads.data_ptr(), x.data_ptr(), byref(self._weights)
        self._library.pre_attention(*given, rows, torch.get_num_threads())
        return heads

    def post_attention(self, x: Tensor, attended: Tensor, ops: Operators) -> Tensor:
        out = torch.empty_like(x)
        given = out.data_ptr(), x.data_ptr(), attended.data_ptr(), byref(self._weights)
        self._library.post_attention(*given, x.shape[0], torch.get_num_threads())
        return out


class NativeLlama(Llama):
    """A LLaMA whose layers are computed in C. It shares the weights of `model`."""

    def __init__(self, model: Llama) -> None:
        nn.Module.__init__(self)
        self.config, self.embedding, self.norm = model.config, model.embedding, model.norm
        self.lm_head, self.rotary_table = model.lm_head, model.rotary_table
        layers = [NativeLlamaLayer(cast(LlamaLayer, layer)) for layer in model.layers]
        self.layers = nn.ModuleList(layers)  # type: ignore[assignment]


def product_of(linear: Linear) -> library.Product:
    """Return the packed weights of a linear layer as C takes them."""
    assert linear.packed is not None
    return product(linear.packed, linear.bias, linear.out_features)


def in_native(model: Transformer, ops: Operators) -> Transformer:
    """Return a LLaMA with its layers in C, or the model itself.

    Its weights must be packed for C, and `ops` be those in C.
    """
    if not (isinstance(ops, NativeOperators) and type(model) is Llama):
        return model
    linears = [getattr(layer, name) for layer in model.layers for name in PRODUCTS]
    if not all(isinstance(linear, Linear) and linear.in_panels for linear in linears):
        return model  # shared among ranks, or not packed
    return NativeLlama(model)

"""One decoder-only transformer, split at attention: the seam that every technique plugs into.

    x = model.embed(token_ids, positions)
    for layer in model.layers:
        heads = layer.pre_attention(x)               # token-wise: all tokens of the iteration at once
        ...rotate, write keys and values, attend: in the layout of the technique...
        x = layer.post_attention(x, out)             # token-wise again
    logits = model.head(x[last_tokens])

A family (LLaMA, GPT) defines a layer; requests, batches and caches do not occur here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from minifuse.kernels.operators import TORCH, Operators
from minifuse.kernels.rotary import RotaryRows
from minifuse.model.linear import Linear
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.layers import RMSNorm, RotaryTable

__all__ = ["Layer", "Transformer"]


class Layer(nn.Module, ABC):
    """One layer in two token-wise halves."""

    @abstractmethod
    def pre_attention(self, x: Tensor, ops: Operators = TORCH) -> Tensor:
        """Norm and project.

        Args:
            x: hidden states, [tokens, hidden_size].

        Returns:
            Query, key and value heads, [tokens, num_heads + 2 * num_kv_heads, head_dim], not yet rotated.
        """

    @abstractmethod
    def post_attention(self, x: Tensor, attended: Tensor, ops: Operators = TORCH) -> Tensor:
        """Project, add, feed forward, add.

        Args:
            x: the hidden states given to `pre_attention`, [tokens, hidden_size].
            attended: attention's result, [tokens, num_heads * head_dim].

        Returns:
            The next layer's hidden states, [tokens, hidden_size].
        """


class RowByRow(Layer):
    """A layer that computes one token at a time, so that a token's bits do not depend on the number of tokens.

    Products of different shapes sum in different orders, and even element-wise operations treat the last few elements
    of a vector differently. Each token is copied, because alignment matters as well.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def pre_attention(self, x: Tensor, ops: Operators = TORCH) -> Tensor:
        return torch.cat([self.layer.pre_attention(row.clone(), ops) for row in x.split(1)])

    def post_attention(self, x: Tensor, attended: Tensor, ops: Operators = TORCH) -> Tensor:
        rows = zip(x.split(1), attended.split(1), strict=True)
        return torch.cat([self.layer.post_attention(row.clone(), out.clone(), ops) for row, out in rows])


class LayerList(nn.ModuleList):
    """A ModuleList whose modules are typed as layers."""

    def __iter__(self) -> Iterator[Layer]:
        return cast(Iterator[Layer], super().__iter__())


def _empty_embedding(rows: int, size: int) -> nn.Embedding:
    """A table whose weights are to be overwritten: `nn.Embedding` itself would first draw them at random."""
    embedding: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, size), freeze=False)
    return embedding


class Transformer(nn.Module):
    """Embeddings, layers and head. Built empty; `minifuse.model.text.load` fills the weights."""

    def __init__(self, config: ModelConfig, layers: list[Layer], norm: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.embedding = _empty_embedding(config.vocab_size, config.hidden_size)
        self.layers = LayerList(layers)
        self.norm = norm
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=config.head_bias)
        if config.tied_embeddings:
            self.lm_head.weight = cast(nn.Parameter, self.embedding.weight)
        self.row_by_row = False
        self.rotary_table: RotaryTable | None = None
        self.position_embedding: nn.Embedding | None = None
        if config.rotary:
            self.rotary_table = RotaryTable(config.rotary, config.max_context)
        else:
            rows = config.max_context + config.position_offset
            self.position_embedding = _empty_embedding(rows, config.hidden_size)

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def pack(self) -> None:
        """Lay the linear layers' weights out for serving (see `Linear.pack`); call it once they will not change."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack()

    def untie(self) -> None:
        """Give the head a weight of its own, to be set: the checkpoint has one."""
        self.config = replace(self.config, tied_embeddings=False)
        self.lm_head.weight = nn.Parameter(torch.empty_like(self.embedding.weight), requires_grad=False)

    def compute_row_by_row(self) -> None:
        """Compute token by token, for the `reference` numerics. Call it after reading weights, instead of `pack`."""
        self.layers = LayerList([RowByRow(layer) for layer in self.layers])
        self.row_by_row = True

    def embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Token ids and positions, both [tokens] -> hidden states [tokens, hidden_size]."""
        x: Tensor = self.embedding(token_ids)
        if self.position_embedding is not None:
            x = x + self.position_embedding(positions + self.config.position_offset)
        return x

    def rotary(self, positions: Tensor) -> RotaryRows | None:
        """The angles of these positions, for the heads of every layer: looked up once per iteration, not per layer.

        None where positions are learned.
        """
        return None if self.rotary_table is None else self.rotary_table(positions)

    def head(self, x: Tensor, ops: Operators = TORCH) -> Tensor:
        """Hidden states [n, hidden_size] -> logits [n, vocab_size]."""
        if self.row_by_row and len(x) > 1:
            return torch.cat([self.head(row.clone(), ops) for row in x.split(1)])
        normed = self.norm(x, ops) if isinstance(self.norm, RMSNorm) else self.norm(x)
        logits: Tensor = self.lm_head(normed)
        return logits

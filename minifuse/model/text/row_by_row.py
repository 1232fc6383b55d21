"""Implements `reference` numerics: no token's bits depend on another token.

Products of different shapes sum in different orders, and even element-wise operations treat the last few elements of a
vector differently. Each token is copied, because alignment matters as well.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import cast

import torch
from torch import Tensor, nn

from minifuse.model.operators import Operators
from minifuse.model.text.transformer import Layer, Transformer


class RowByRow(Layer):
    """A layer that computes one token at a time."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def pre_attention(self, x: Tensor, ops: Operators) -> Tensor:
        return torch.cat([self.layer.pre_attention(row.clone(), ops) for row in x.split(1)])

    def post_attention(self, x: Tensor, attended: Tensor, ops: Operators) -> Tensor:
        rows = zip(x.split(1), attended.split(1), strict=True)
        return torch.cat([self.layer.post_attention(row.clone(), out.clone(), ops) for row, out in rows])


class _EachRow(nn.Module):
    """A part of the head that computes one row at a time."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, *arguments: object) -> Tensor:
        return torch.cat([self.layer(row.clone(), *arguments) for row in x.split(1)])


def compute_row_by_row(model: Transformer) -> None:
    """Make a model compute token by token; its weights must not be packed."""
    model.layers = cast(Seq[Layer], nn.ModuleList([RowByRow(layer) for layer in model.layers]))
    model.norm = _EachRow(model.norm)
    model.lm_head = cast(nn.Linear, _EachRow(model.lm_head))


def computes_row_by_row(model: Transformer) -> bool:
    return isinstance(model.norm, _EachRow)

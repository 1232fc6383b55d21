"""Rotating queries and keys by the angles of their positions, in torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RotaryRows(NamedTuple):
    """The angles of some positions, for every layer's queries and keys.

    Each of the first `dim` dimensions of a head becomes `x cos + partner sin`, where `sin` includes the sign of the
    rotation. The partners of (a, b, c, d) are (b, a, d, c) if interleaved, and (c, d, a, b) otherwise. Dimensions from
    `dim` on stay as they are (GPT-J).
    """

    cos: Tensor  # [tokens, 1, dim]
    sin: Tensor  # [tokens, 1, dim]
    interleaved: bool

    def rows(self, start: int, stop: int) -> RotaryRows:
        """Return the angles of tokens [start, stop)."""
        return RotaryRows(self.cos[start:stop], self.sin[start:stop], self.interleaved)

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate `x` [tokens, heads, head_dim] by the angles of its rows."""
        dim = self.cos.shape[-1]
        if dim < x.shape[-1]:
            return torch.cat((self.rotate(x[..., :dim]), x[..., dim:]), -1)
        partner = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if self.interleaved else x.roll(dim // 2, -1)
        return torch.addcmul(x * self.cos, partner, self.sin)

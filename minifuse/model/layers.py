"""The token-wise pieces both families share: linear layers, RMSNorm, rotary embedding.

Everything here acts on rows of `[tokens, ...]` independently, which is why requests of any length can be
concatenated before it (Orca's selective batching).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from minifuse.model.config import Rotary

if TYPE_CHECKING:
    from minifuse.model.operators import Operators

__all__ = ["Linear", "RMSNorm", "RotaryRows", "RotaryTable", "packable"]

PACKED_ROWS = 32  # the batch oneDNN lays the weights out for; any other batch is right, and nearly as fast


def packable(dtype: torch.dtype) -> bool:
    """Whether this machine's oneDNN has kernels of its own for weights of this type."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Linear(nn.Module):
    """`y = x W^T + b` for x of shape `[tokens, in]`.

    `pack` lays the weights out once in the order oneDNN's kernels read them, where it has kernels for their type. An
    ordinary matrix product repacks them on every call, which for the few rows of a decode step costs more than the
    product itself.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.packed: Tensor | None = None

    def pack(self) -> None:
        weight = self.weight
        if weight.device.type == "cpu" and packable(weight.dtype):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_ROWS)

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
            return out
        return nn.functional.linear(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight`, in float32 at least (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, ops: Operators) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)


class RotaryRows(NamedTuple):
    """The angles of some positions, for every layer's queries and keys.

    Each of the first `dim` dimensions of a head becomes `x cos + partner sin`, the sign of the rotation being part of
    `sin`. Interleaved, the partner of (a, b, c, d) is (b, a, d, c); otherwise it is (c, d, a, b). Dimensions from `dim`
    on stay as they are (GPT-J).
    """

    cos: Tensor  # [tokens, 1, dim]
    sin: Tensor  # [tokens, 1, dim]
    interleaved: bool

    def rows(self, start: int, stop: int) -> RotaryRows:
        """Those of some of the tokens."""
        return RotaryRows(self.cos[start:stop], self.sin[start:stop], self.interleaved)

    def turn(self, x: Tensor) -> Tensor:
        """Rotate `x` [tokens, heads, head_dim] by the angles of its rows."""
        dim = self.cos.shape[-1]
        if dim < x.shape[-1]:
            return torch.cat((self.turn(x[..., :dim]), x[..., dim:]), -1)
        partner = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if self.interleaved else x.roll(dim // 2, -1)
        return torch.addcmul(x * self.cos, partner, self.sin)


class RotaryTable(nn.Module):
    """Cosines and signed sines of every position's angles, looked up once per iteration.

    Angles are computed in float32 whatever the model's dtype: that is what published checkpoints were trained with.
    """

    cos: Tensor  # [max_context, dim]
    sin: Tensor  # [max_context, dim], negative where the partner is subtracted

    def __init__(self, rotary: Rotary, max_context: int) -> None:
        super().__init__()
        half = torch.arange(0, rotary.dim, 2, dtype=torch.int64).float() / rotary.dim
        frequencies = 1.0 / (rotary.theta**half)  # [dim / 2]
        if rotary.scaling is not None:
            scaling = rotary.scaling
            wavelengths = 2 * math.pi / frequencies
            low = scaling.original_context / scaling.low_freq_factor
            high = scaling.original_context / scaling.high_freq_factor
            smooth = (scaling.original_context / wavelengths - scaling.low_freq_factor) / (
                scaling.high_freq_factor - scaling.low_freq_factor
            )
            blended = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
            slow = wavelengths > low
            fast = wavelengths < high
            frequencies = torch.where(fast, frequencies, torch.where(slow, frequencies / scaling.factor, blended))
        self.interleaved = rotary.interleaved
        angles = torch.arange(max_context).float()[:, None] * frequencies  # [max_context, dim / 2]
        cos, sin = angles.cos(), angles.sin()
        if rotary.interleaved:
            cos, sin = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
        else:
            cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, positions: Tensor) -> RotaryRows:
        """The rows of `positions` [tokens], with a place for the heads."""
        return RotaryRows(self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1), self.interleaved)

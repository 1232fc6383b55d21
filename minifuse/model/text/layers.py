"""Token-wise layers shared by the families: RMSNorm and rotary embedding.

They act on the rows of `[tokens, ...]` independently, which is why the tokens of requests of any length can be
concatenated before these layers (Orca's selective batching).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from minifuse.kernels.rotary import RotaryRows
from minifuse.model.operators import Operators
from minifuse.model.text.config import Rotary


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight`, in float32 at least (Zhang and Sennrich, 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor, ops: Operators) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)


class RotaryTable(nn.Module):
    """Cosines and signed sines by position (Su et al., 2021), looked up once per iteration.

    Angles are computed in float32 for every dtype of the model, as in the training of published checkpoints.
    """

    cos: Tensor  # [max_context, dim]
    sin: Tensor  # [max_context, dim], negative where the partner is subtracted

    def __init__(self, rotary: Rotary, max_context: int) -> None:
        super().__init__()
        self.interleaved = rotary.interleaved
        if torch.get_default_device().type == "meta":  # to compute there, torch would import its compiler
            cos, sin = (torch.empty(max_context, rotary.dim, dtype=torch.float32) for _ in range(2))
        else:
            cos, sin = _angles(rotary, max_context)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, positions: Tensor) -> RotaryRows:
        """Look up the angles of `positions` [tokens], with a head dimension of size 1."""
        cos, sin = (table.index_select(0, positions).unsqueeze(1) for table in (self.cos, self.sin))
        return RotaryRows(cos, sin, self.interleaved)


def _angles(rotary: Rotary, max_context: int) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines of all positions, each [max_context, dim]."""
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
    angles = torch.arange(max_context).float()[:, None] * frequencies  # [max_context, dim / 2]
    cos, sin = angles.cos(), angles.sin()
    if rotary.interleaved:
        cos, sin = cos.repeat_interleave(2, -1), torch.stack((-sin, sin), -1).flatten(-2)
    else:
        cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
    return cos, sin

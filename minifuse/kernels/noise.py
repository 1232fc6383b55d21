"""Gumbel noise as a function of (seed, position, token), in torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Make standard Gumbel noise, float64 [rows, vocab_size], by hashing (seed, position, token)."""
    tokens = torch.arange(vocab_size, device=seeds.device)
    key = _mix(_mix(seeds) ^ positions)[:, None]
    bits = _mix(key ^ _mix(tokens)) >> 12 & (1 << 52) - 1
    uniform = (bits.double() + 0.5) / 2.0**52  # strictly inside (0, 1), every value exact
    return -torch.log(-torch.log(uniform))


def rows_of_noise(seeds: Sequence[int], positions: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the low 64 bits of the seeds, and the positions, as int64 [rows]."""
    return torch.tensor([signed(seed) for seed in seeds], device=device), torch.tensor(positions, device=device)


def _mix(x: Tensor) -> Tensor:
    """Apply SplitMix64's finalizer to int64, which wraps like unsigned numbers (Steele, Lea and Flood, 2014)."""
    x = x + signed(0x9E3779B97F4A7C15)
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * signed(0x94D049BB133111EB)
    return x ^ (x >> 31 & (1 << 33) - 1)


def signed(bits: int) -> int:
    """Return the low 64 bits of `bits` as torch's signed integer."""
    bits &= (1 << 64) - 1
    return bits - (1 << 64) if bits >= 1 << 63 else bits

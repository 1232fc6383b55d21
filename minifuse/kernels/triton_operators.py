"""The operators, computed by the Triton kernels."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from threading import Lock

import torch
from torch import Tensor

from minifuse.core.plan import Move
from minifuse.kernels.copy import disjoint, gather_slots, move_slots, scatter_slots
from minifuse.kernels.launch import INTERPRETED
from minifuse.kernels.noise import rows_of_noise
from minifuse.kernels.operators import TORCH, KVTensors
from minifuse.kernels.rms_norm import rms_norm
from minifuse.kernels.rotary import RotaryRows
from minifuse.kernels.rotary_write import rotate_and_write
from minifuse.kernels.sampling import argmax, gumbel_argmax
from minifuse.kernels.swiglu import silu_mul


class TritonOperators:
    """The Triton kernels, as `minifuse.model.operators.Operators`."""

    lock: AbstractContextManager[object] = Lock() if INTERPRETED else nullcontext()  # the interpreter has one thread

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, weight, eps)[0]

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return rms_norm(x, weight, eps, residual)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up)

    def rotate_and_write(
        self, heads: Tensor, rotary: RotaryRows | None, keys: Tensor, values: Tensor, slots: Tensor, live: Tensor | None
    ) -> Tensor:
        num_kv_heads = keys.shape[1]
        q, k, v = heads.split((heads.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads), 1)
        if rotary is None:
            return rotate_and_write(q, k, v, keys, values, slots, None)
        angles = (rotary.cos, rotary.sin)
        return rotate_and_write(q, k, v, keys, values, slots, angles, interleaved=rotary.interleaved)

    def move(self, cache: KVTensors, moves: Seq[Move], layer: int | None = None) -> None:
        layers = slice(None) if layer is None else slice(layer, layer + 1)
        for _, group in groupby(moves, lambda move: (move.source_tier, move.target_tier)):
            alike = list(group)
            if alike[0].crosses and cache.tiers["host"].keys.dtype == cache.keys.dtype:
                self._swap(cache, alike, layers)
            elif not alike[0].crosses and disjoint(runs := [move[1:4] for move in alike]):
                tier = cache.tiers[alike[0].source_tier]
                move_slots(tier.keys[layers], tier.values[layers], runs)
            else:  # copies in 8 bits; or one after the other, as the source of a move may overlap its own target
                TORCH.move(cache, alike, layer)

    @staticmethod
    def _swap(cache: KVTensors, moves: list[Move], layers: slice) -> None:
        """Swap slots through a staging buffer: host-device copies are then long and few."""
        source, target = (cache.tiers[tier] for tier in (moves[0].source_tier, moves[0].target_tier))
        out = moves[0].target_tier == "host"
        device, host = (
            (tier.keys[layers], tier.values[layers]) for tier in ((source, target) if out else (target, source))
        )
        on_device = [(move.source if out else move.target, move.num_tokens) for move in moves]
        on_host = [(move.target if out else move.source, move.num_tokens) for move in moves]
        slots = torch.cat([torch.arange(first, first + count) for first, count in on_device])
        if cache.device.type == "cuda":  # from pinned memory the copy does not block the host
            slots = slots.pin_memory().to(cache.device, non_blocking=True)
        shape = (2, len(device[0]), len(slots), *device[0].shape[2:])
        empty = torch.empty(shape, dtype=device[0].dtype, device=cache.device)
        staging = gather_slots(*device, slots) if out else empty
        start = 0
        for first, count in _runs(on_host):
            for staged, stored in zip(staging, host, strict=True):
                for staged_layer, stored_layer in zip(staged, stored, strict=True):
                    ends = staged_layer[start : start + count], stored_layer[first : first + count]
                    read, written = ends if out else ends[::-1]
                    written.copy_(read, non_blocking=True)
            start += count
        if not out:
            scatter_slots(staging, *device, slots)

    def argmax(self, logits: Tensor) -> list[int]:
        indices: list[int] = argmax(logits).tolist()
        return indices

    def gumbel_argmax(self, scaled: Tensor, seeds: Seq[int], positions: Seq[int]) -> list[int]:
        indices: list[int] = gumbel_argmax(scaled, *rows_of_noise(seeds, positions, scaled.device)).tolist()
        return indices


def _runs(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge consecutive ranges (first, count) if the second begins where the first ends.

    >>> _runs([(4, 2), (6, 2), (0, 3)])
    [(4, 4), (0, 3)]
    """
    runs: list[tuple[int, int]] = []
    for first, count in ranges:
        if runs and sum(runs[-1]) == first:
            runs[-1] = runs[-1][0], runs[-1][1] + count
        else:
            runs.append((first, count))
    return runs

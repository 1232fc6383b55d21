"""Norm, rotary and KV write, SwiGLU, the LSTM cell and sampling: all should be bound by bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import Heads
from .case import BF16, Case, Contender, Trial, Work, normal, permuted

__all__ = ["choices", "gates", "lstm", "norms", "rotations"]

TARGET = ">= 85% of copy at >= 64 MB"
CHOICE_TARGET = "same result for any batch"
FLOAT32, INT64 = 4, 8  # bytes
TORCH, COMPILED = "torch", "torch.compile"


def _one(out: Tensor) -> list[Tensor]:
    return [out]


def _twins(twin: Callable[..., Any], *inputs: Any, read: Callable[[Any], list[Tensor]] = _one) -> dict[str, Contender]:
    """The twin as a contender, in eager mode and compiled."""
    compiled = torch.compile(twin, dynamic=False)
    return {TORCH: Contender(lambda: twin(*inputs), read), COMPILED: Contender(lambda: compiled(*inputs), read)}


def norms(n: int, hidden: int, residual: bool) -> Case:
    def prepare(device: torch.device, dtype: torch.dtype) -> Trial:
        from minifuse.kernels.rms_norm import rms_norm, rms_norm_torch

        x, added, weight = (normal(shape, device, dtype, i) for i, shape in enumerate([(n, hidden)] * 2 + [(hidden,)]))
        inputs = (x, weight, 1e-5, added) if residual else (x, weight, 1e-5)

        def read(out: Any) -> list[Tensor]:
            return [*out] if residual else [out[0]]

        def expected() -> list[Tensor]:
            summed = x + added if residual else x  # rounded, as it is stored
            norm, _ = rms_norm_torch(summed.float(), weight.float(), 1e-5)
            return [norm, summed] if residual else [norm]

        contenders: dict[str, Contender | str] = {
            "rms_norm": Contender(lambda: rms_norm(*inputs), read),
            **_twins(rms_norm_torch, *inputs, read=read),
            "F.rms_norm": "does not add"
            if residual
            else Contender(lambda: [F.rms_norm(x, (hidden,), weight, 1e-5)], read),
        }
        return Trial(contenders, expected)

    work = Work(moved=BF16 * (n * hidden * (4 if residual else 2) + hidden))
    size = f"{n} x {hidden}" + ", added to a residual" * residual
    return Case("rms_norm", size, TARGET, work, ("rms_norm", TORCH, COMPILED, "F.rms_norm"), prepare)


def rotations(n: int, heads: Heads) -> Case:
    """Rotary embedding of n tokens and the KV write."""

    def prepare(device: torch.device, dtype: torch.dtype) -> Trial:
        from minifuse.kernels.rotary_write import rotate_and_write, rotate_and_write_torch

        fused = normal((n, heads.query + 2 * heads.kv, heads.dim), device, dtype, 1)
        q, k, v = fused.split((heads.query, heads.kv, heads.kv), 1)
        angle = normal((n, 1, heads.dim), device, torch.float32, 2)
        slots = permuted(2 * n)[:n].to(device)
        keys, values = (torch.zeros((2 * n, heads.kv, heads.dim), device=device, dtype=dtype) for _ in "kv")
        rotary = (angle.cos(), angle.sin())

        def read(out: Tensor) -> list[Tensor]:
            return [out, keys[slots], values[slots]]

        def expected() -> list[Tensor]:
            stored = [torch.zeros_like(keys, dtype=torch.float32) for _ in "kv"]
            out = rotate_and_write_torch(q.float(), k.float(), v.float(), stored[0], stored[1], slots, rotary)
            return [out, *(kv[slots] for kv in stored)]

        inputs = (q, k, v, keys, values, slots, rotary)
        return Trial(
            {
                "rotate_and_write": Contender(lambda: rotate_and_write(*inputs), read),
                TORCH: Contender(lambda: rotate_and_write_torch(*inputs), read),
            },
            expected,
        )

    row = 2 * BF16 * (heads.query + 2 * heads.kv) * heads.dim + 2 * FLOAT32 * heads.dim + INT64
    work = Work(moved=n * row)  # q, k and v in and out, a cosine and a sine for every dimension, a slot
    return Case("rotate_and_write", f"{n} tokens, {heads}", TARGET, work, ("rotate_and_write", TORCH), prepare)


def gates(n: int, width: int) -> Case:
    def prepare(device: torch.device, dtype: torch.dtype) -> Trial:
        from minifuse.kernels.swiglu import silu_mul, silu_mul_torch

        x = normal((n, 2 * width), device, dtype, 1)
        contenders = {"silu_mul": Contender(lambda: silu_mul(x)), **_twins(silu_mul_torch, x)}
        return Trial(contenders, lambda: [silu_mul_torch(x.float())])

    work = Work(moved=3 * BF16 * n * width)
    return Case("silu_mul", f"{n} x {width}", TARGET, work, ("silu_mul", TORCH, COMPILED), prepare)


def lstm(n: int, width: int) -> Case:
    def prepare(device: torch.device, dtype: torch.dtype) -> Trial:
        from minifuse.kernels.lstm import lstm_cell, lstm_cell_torch

        inputs = (normal((n, 4 * width), device, dtype, 1), normal((n, width), device, dtype, 2))
        contenders = {
            "lstm_cell": Contender(lambda: lstm_cell(*inputs), list),
            **_twins(lstm_cell_torch, *inputs, read=list),
        }
        return Trial(contenders, lambda: [*lstm_cell_torch(*(x.float() for x in inputs))])

    work = Work(moved=7 * BF16 * n * width)  # four gates and the cell; the hidden state and the new cell
    return Case("lstm_cell", f"{n} x {width}", TARGET, work, ("lstm_cell", TORCH, COMPILED), prepare)


def choices(n: int, vocab_size: int, noisy: bool) -> Case:
    """argmax of logits in the run's dtype, or of float32 logits with Gumbel noise, bound by float64 arithmetic."""
    kernel = "gumbel_argmax" if noisy else "argmax"

    def prepare(device: torch.device, dtype: torch.dtype) -> Trial:
        from minifuse.kernels.sampling import argmax, argmax_torch, gumbel_argmax, gumbel_argmax_torch

        x = normal((n, vocab_size), device, torch.float32 if noisy else dtype, 1)
        inputs = (x, permuted(n).to(device), torch.arange(n, device=device)) if noisy else (x,)
        ours, twin = (gumbel_argmax, gumbel_argmax_torch) if noisy else (argmax, argmax_torch)
        contenders = {kernel: Contender(lambda: ours(*inputs)), TORCH: Contender(lambda: twin(*inputs))}
        return Trial(contenders, lambda: [twin(*inputs)], 0.0)

    row = vocab_size * (FLOAT32 if noisy else BF16) + INT64 * (3 if noisy else 1)
    return Case(kernel, f"{n} x {vocab_size}", CHOICE_TARGET, Work(moved=n * row), (kernel, TORCH), prepare)

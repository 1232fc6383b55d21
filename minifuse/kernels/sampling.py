"""Finds the next token of each row: the largest logit, with or without Gumbel noise.

Both variants take two launches. In the first, a program finds the winner among BLOCK tokens of one row; in the second,
the winner among these winners. The winner is defined by a total order (NaN > inf > ... > -inf; of equals, the lower
index), so neither the blocks nor the batch can change it. For a winner that is NaN or infinite, NOT_FINITE is returned
instead of its index. The noise of (seed, position, token) is `minifuse.kernels.noise.gumbel_noise`:

    u = (mix(mix(mix(seed) ^ position) ^ mix(token)) >> 12 + 0.5) / 2^52,   noise = -log(-log(u))
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.core.report import NOT_FINITE
from minifuse.kernels.launch import Form, Shipped, check, check_tensor
from minifuse.kernels.noise import gumbel_noise

BLOCK = 8192  # logits of a program: with 256 threads, four 16-byte loads of bfloat16 in flight per thread
NOISY_BLOCK = 1024  # bound by float64 arithmetic: 8 numbers per thread keep it busy
NUM_WARPS = 8
NOISY_WARPS = 4
NONE = tl.constexpr(NOT_FINITE)


@triton.jit
def _mix(x):
    """SplitMix64's finalizer on uint64, as in `minifuse.kernels.noise`."""
    x += 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _first_largest(x, index):
    """Find the largest of `x` and its `index`: the first NaN, else the first maximum.

    NaNs are marked by an index below 0, so that one search finds either.
    """
    peak = tl.max(x, 0)  # of the numbers that are not NaN
    found = tl.min(tl.where(x != x, index + -(2**31), tl.where(x == peak, index, 2**31 - 1)), 0)
    return tl.where(found < 0, float("nan"), peak), found & 0x7FFFFFFF


@triton.jit
def _winners_kernel(
    values_ptr,  # [n, blocks]
    tokens_ptr,  # [n, blocks] int32
    x_ptr,  # [n, vocab_size]
    seeds_ptr,  # [n] int64, read if NOISY
    positions_ptr,  # [n] int64, read if NOISY
    stride_xn,
    VOCAB_SIZE: tl.constexpr,  # fixed for a model; as a constant, it allows wide loads
    NOISY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each program finds the winner of one block of one row."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    mask = token < VOCAB_SIZE
    x = tl.load(x_ptr + row * stride_xn + token, mask=mask, other=float("-inf"))  # padding loses every tie
    if NOISY:
        seed = tl.load(seeds_ptr + row).to(tl.uint64)
        position = tl.load(positions_ptr + row).to(tl.uint64)
        bits = _mix(_mix(_mix(seed) ^ position) ^ _mix(token.to(tl.uint64))) >> 12
        uniform = (bits.to(tl.float64) + 0.5) * (1.0 / 2**52)  # exact, as in the twin
        x = x.to(tl.float64) - tl.log(-tl.log(uniform))
    else:
        x = x.to(tl.float32)
    value, winner = _first_largest(x, token)
    at = row * tl.num_programs(1) + block
    tl.store(values_ptr + at, value)
    tl.store(tokens_ptr + at, winner)


@triton.jit(do_not_specialize=["blocks"])
def _winner_kernel(
    out_ptr,  # [n] int64
    values_ptr,  # [n, blocks]
    tokens_ptr,  # [n, blocks] int32
    blocks,
    BLOCKS: tl.constexpr,  # the next power of two
):
    """Each program finds the winner of one row among the winners of its blocks."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)
    value = tl.load(values_ptr + row * blocks + block, mask=block < blocks, other=float("-inf"))
    largest, winner = _first_largest(value, block)
    token = tl.load(tokens_ptr + row * blocks + winner).to(tl.int64)
    tl.store(out_ptr + row, tl.where(tl.abs(largest) < float("inf"), token, NONE))


def argmax_torch(logits: Tensor) -> Tensor:
    """Do `argmax` in torch."""
    largest, at = logits.max(-1)
    return at.masked_fill(~largest.isfinite(), NOT_FINITE)


def argmax(logits: Tensor) -> Tensor:
    """Find the index of each row's largest logit; of equal logits, the first.

    The index is NOT_FINITE if that logit is NaN or infinite.

    Args:
        logits: [n, vocab_size], each row contiguous.

    Returns:
        [n] int64.

    Raises:
        KernelError: the kernel cannot take an argument.
    """
    check_tensor("argmax", "logits", logits, [None, None])
    return _argmax("argmax", logits, None, None)


def gumbel_argmax_torch(scaled: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Do `gumbel_argmax` in torch."""
    return argmax_torch(scaled + gumbel_noise(seeds, positions, scaled.shape[-1]))


def gumbel_argmax(scaled: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Draw a token from the softmax of each row, independently of other rows.

    Args:
        scaled: [n, vocab_size] float64 or float32, each row contiguous; -inf where a token may not be drawn.
        seeds: [n] int64.
        positions: [n] int64, the position of each row's new token in its sequence.

    Returns:
        [n] int64: `argmax` of `scaled` plus the noise, added in float64.

    Raises:
        KernelError: the kernel cannot take an argument.
    """
    check_tensor("gumbel_argmax", "scaled", scaled, [None, None], [torch.float64, torch.float32])
    for name, keys in (("seeds", seeds), ("positions", positions)):
        check_tensor("gumbel_argmax", name, keys, [scaled.shape[0]], [torch.int64], scaled.device, contiguous=True)
    return _argmax("gumbel_argmax", scaled, seeds, positions)


def _argmax(kernel: str, x: Tensor, seeds: Tensor | None, positions: Tensor | None) -> Tensor:
    n, vocab_size = x.shape
    check(kernel, 0 < vocab_size < 2**30, f"a row has {vocab_size} logits: give at least one, and fewer than 2^30.")
    out = torch.empty(n, dtype=torch.int64, device=x.device)
    if n == 0:
        return out
    form = _winners_form(vocab_size, noisy=seeds is not None)
    blocks = triton.cdiv(vocab_size, form["BLOCK"])
    values = torch.empty((n, blocks), dtype=torch.float64 if form["NOISY"] else torch.float32, device=x.device)
    tokens = torch.empty((n, blocks), dtype=torch.int32, device=x.device)
    _winners_kernel[(n, blocks)](values, tokens, x, seeds, positions, x.stride(0), **form)
    _winner_kernel[(n,)](out, values, tokens, blocks, **_winner_form(blocks))
    return out


def _winners_form(vocab_size: int, *, noisy: bool) -> Form:
    block, num_warps = (NOISY_BLOCK, NOISY_WARPS) if noisy else (BLOCK, NUM_WARPS)
    return {"VOCAB_SIZE": vocab_size, "NOISY": noisy, "BLOCK": block, "num_warps": num_warps}


def _winner_form(blocks: int) -> Form:
    return {"BLOCKS": triton.next_power_of_2(blocks), "num_warps": 1}


VOCAB_SIZE = 128_256  # of the shipped forms: LLaMA 3's


def _shipped_winners(x: str, noisy: bool) -> Shipped:
    types = {"x_ptr": f"*{x}", "values_ptr": "*fp64" if noisy else "*fp32"}
    types |= {"seeds_ptr": "*i64", "positions_ptr": "*i64"}
    form = _winners_form(VOCAB_SIZE, noisy=noisy)
    return Shipped(f"{'gumbel_argmax' if noisy else 'argmax'} {x}", _winners_kernel, form, types)


def _shipped_winner(value: str, block: int) -> Shipped:
    form = _winner_form(triton.cdiv(VOCAB_SIZE, block))
    return Shipped(f"winner of blocks {value}", _winner_kernel, form, {"out_ptr": "*i64", "values_ptr": f"*{value}"})


SHIPPED = [
    *(_shipped_winners(x, noisy=False) for x in ("bf16", "fp32")),
    *(_shipped_winners(x, noisy=True) for x in ("fp64", "fp32")),
    _shipped_winner("fp32", BLOCK),
    _shipped_winner("fp64", NOISY_BLOCK),
]

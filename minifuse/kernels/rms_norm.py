"""RMSNorm (Zhang and Sennrich, 2019), with or without a preceding addition.

    y = x / sqrt(mean(x^2) + eps) * weight

In a decoder every norm but the first follows an addition, whose sum the next addition needs again. When addition and
norm are one kernel, the sum is written once and not read back: 2 reads and 2 writes of a row instead of 3 and 2.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.launch import Form, Shipped, check, check_tensor

KERNEL = "rms_norm"
WIDEST = 16384  # a row lies in the registers of one program: 32 numbers a thread at 16 warps


@triton.jit
def _rms_norm_kernel(
    out_ptr,  # [n, HIDDEN]
    sum_ptr,  # [n, HIDDEN], written if HAS_RESIDUAL
    x_ptr,  # [n, HIDDEN]
    residual_ptr,  # [n, HIDDEN], read if HAS_RESIDUAL
    weight_ptr,  # [HIDDEN]
    eps,
    stride_xn,
    stride_rn,
    HIDDEN: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each program normalizes one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < HIDDEN
    # A row is read once, the weight by every program: the row should not push it out of L1.
    x = tl.load(x_ptr + row * stride_xn + column, mask=mask, other=0.0, eviction_policy="evict_first")
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * stride_rn + column, mask=mask, other=0.0, eviction_policy="evict_first")
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + row * HIDDEN + column, x, mask=mask)
    x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / HIDDEN + eps)
    tl.store(out_ptr + row * HIDDEN + column, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=mask)


def _form(hidden: int, has_residual: bool) -> Form:
    """Choose warps: two 16-byte loads per thread in bf16, more beyond 16 warps."""
    block = triton.next_power_of_2(hidden)
    num_warps = min(max(block // 512, 1), 16)
    return {"HIDDEN": hidden, "HAS_RESIDUAL": has_residual, "BLOCK": block, "num_warps": num_warps}


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Norm every row of `x`, or of `x + residual`.

    It computes in float32 and rounds once, to x's dtype. With `residual` the sum is rounded too, and the rounded sum is
    normalized, as if it had been stored and read again. A row's bits do not depend on the other rows; they may depend
    on whether rows begin at multiples of 16 bytes, which selects one of two compiled forms.

    Args:
        x: [n, hidden], hidden up to 16384; float32, float16 or bfloat16; rows need not be adjacent.
        weight: [hidden], in any of these dtypes.
        eps: added to the mean of squares.
        residual: what to add to x, shaped like x; None: nothing.

    Returns:
        The norm and the sum [n, hidden], contiguous, in x's dtype; without `residual`, both are the norm.

    Raises:
        KernelError: a shape, a dtype, a stride or a device that the kernel cannot take.
    """
    check_tensor(KERNEL, "x", x, (None, None))
    n, hidden = x.shape
    check(KERNEL, 1 <= hidden <= WIDEST, f"rows of x have {hidden} numbers: give 1 to {WIDEST}.")
    check_tensor(KERNEL, "weight", weight, (hidden,), device=x.device)
    if residual is not None:
        check_tensor(KERNEL, "residual", residual, (n, hidden), (x.dtype,), device=x.device)
    out = torch.empty((n, hidden), dtype=x.dtype, device=x.device)
    summed = out if residual is None else torch.empty_like(out)
    if n:
        added = x if residual is None else residual
        form = _form(hidden, residual is not None)
        _rms_norm_kernel[(n,)](out, summed, x, added, weight, eps, x.stride(0), added.stride(0), **form)
    return out, summed


def rms_norm_torch(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Do `rms_norm` in PyTorch; float64 stays float64."""
    summed = x if residual is None else x + residual
    wide = summed.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    out = (wide * scale * weight.to(wide.dtype)).to(x.dtype)
    return out, out if residual is None else summed


SHIPPED = [
    Shipped(f"rms_norm {hidden}" + " residual" * has_residual, _rms_norm_kernel, _form(hidden, has_residual))
    for hidden in (2048, 4096, 5120, 8192, WIDEST)
    for has_residual in (False, True)
]

"""The gate of a LLaMA's MLP: silu(gate) x up (Shazeer, 2020).

silu(x) = x sigmoid(x),   sigmoid(x) = 1 / (1 + exp(-x))
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.launch import Form, Shipped, check, check_tensor

KERNEL = "silu_mul"
BLOCK = 1024


@triton.jit
def sigmoid(x):
    """Compute 1 / (1 + exp(-x)) in float32 without overflow: no exponent is positive."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0, e, 1.0) / (1.0 + e)


@triton.jit
def _silu_mul_kernel(
    out_ptr,  # [n, WIDTH]
    gate_up_ptr,  # [n, 2 WIDTH]
    stride_n,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each program computes BLOCK columns of one row."""
    row = (tl.program_id(0) // tl.cdiv(WIDTH, BLOCK)).to(tl.int64)
    column = tl.program_id(0) % tl.cdiv(WIDTH, BLOCK) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    gate = tl.load(gate_up_ptr + row * stride_n + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride_n + WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    out = gate * sigmoid(gate) * up
    tl.store(out_ptr + row * WIDTH + column, out.to(out_ptr.dtype.element_ty), mask=mask)


def columns_form(width: int) -> Form:
    """Choose blocks of columns: one 16-byte load per thread and operand in bf16."""
    block = min(BLOCK, triton.next_power_of_2(width))
    return {"WIDTH": width, "BLOCK": block, "num_warps": max(block // 256, 1)}


def silu_mul(gate_up: Tensor) -> Tensor:
    """Compute silu(gate) x up in float32, rounded once.

    Args:
        gate_up: [n, 2 f], in each row f gates and then f ups; float32, float16 or bfloat16; rows need not be adjacent.

    Returns:
        [n, f], contiguous, in the same dtype.

    Raises:
        KernelError: a shape, a dtype or a stride that the kernel cannot take.
    """
    check_tensor(KERNEL, "gate_up", gate_up, (None, None))
    n, both = gate_up.shape
    check(KERNEL, both >= 2 and both % 2 == 0, f"rows of gate_up have {both} numbers: give as many gates as ups.")
    out = torch.empty((n, both // 2), dtype=gate_up.dtype, device=gate_up.device)
    if n:
        form = columns_form(both // 2)
        _silu_mul_kernel[(n * triton.cdiv(both // 2, form["BLOCK"]),)](out, gate_up, gate_up.stride(0), **form)
    return out


def silu_mul_torch(gate_up: Tensor) -> Tensor:
    """Do `silu_mul` in PyTorch; float64 stays float64."""
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


SHIPPED = [Shipped(f"silu_mul {width}", _silu_mul_kernel, columns_form(width)) for width in (11008, 14336)]

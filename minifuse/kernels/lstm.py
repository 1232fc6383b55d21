"""The pointwise part of an LSTM cell, with gates ordered as in torch.nn.LSTM.

i, f, g, o = gates
cell'  = sigmoid(f) cell + sigmoid(i) tanh(g)
hidden = sigmoid(o) tanh(cell')
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from minifuse.kernels.launch import Shipped, check, check_tensor
from minifuse.kernels.swiglu import columns_form, sigmoid

KERNEL = "lstm_cell"


@triton.jit
def _tanh(x):
    """Compute tanh in float32: (1 - e) / (1 + e), e = exp(-2 |x|).

    Near 0, where 1 - e loses digits, the series x - x^3/3 + 2 x^5/15 - 17 x^7/315 + 62 x^9/2835 is used instead.
    """
    size = tl.abs(x)
    e = tl.exp(-2.0 * size)
    far = (1.0 - e) / (1.0 + e)
    y = tl.minimum(size, 0.25)
    y *= y
    near = x + x * y * (-1 / 3 + y * (2 / 15 + y * (-17 / 315 + y * (62 / 2835))))
    return tl.where(size < 0.25, near, tl.where(x < 0, -far, far))


@triton.jit
def _lstm_kernel(
    hidden_ptr,  # [n, WIDTH]
    new_cell_ptr,  # [n, WIDTH]
    gates_ptr,  # [n, 4 WIDTH]
    cell_ptr,  # [n, WIDTH]
    stride_gn,
    stride_cn,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each program computes BLOCK columns of one row."""
    row = (tl.program_id(0) // tl.cdiv(WIDTH, BLOCK)).to(tl.int64)
    column = tl.program_id(0) % tl.cdiv(WIDTH, BLOCK) * BLOCK + tl.arange(0, BLOCK)
    mask = column < WIDTH
    gates_ptr += row * stride_gn
    i = tl.load(gates_ptr + column, mask=mask, other=0.0).to(tl.float32)
    f = tl.load(gates_ptr + WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gates_ptr + 2 * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    o = tl.load(gates_ptr + 3 * WIDTH + column, mask=mask, other=0.0).to(tl.float32)
    cell = tl.load(cell_ptr + row * stride_cn + column, mask=mask, other=0.0).to(tl.float32)
    cell = sigmoid(f) * cell + sigmoid(i) * _tanh(g)
    hidden = sigmoid(o) * _tanh(cell)
    tl.store(hidden_ptr + row * WIDTH + column, hidden.to(hidden_ptr.dtype.element_ty), mask=mask)
    tl.store(new_cell_ptr + row * WIDTH + column, cell.to(new_cell_ptr.dtype.element_ty), mask=mask)


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Compute a step of n LSTM cells in float32, each output rounded once.

    The hidden state is computed from the unrounded new cell state.

    Args:
        gates: [n, 4 h]: each row holds the input, forget, cell and output gates before activation, h of each. Float32,
            float16 or bfloat16; rows need not be adjacent.
        cell: [n, h], in the same dtype; rows need not be adjacent.

    Returns:
        The hidden states and the new cell states, each [n, h], contiguous, in the same dtype.

    Raises:
        KernelError: a shape, a dtype, a stride or a device that the kernel cannot take.
    """
    check_tensor(KERNEL, "cell", cell, (None, None))
    n, width = cell.shape
    check(KERNEL, width >= 1, "rows of cell have no numbers: give 1 or more.")
    check_tensor(KERNEL, "gates", gates, (n, 4 * width), (cell.dtype,), device=cell.device)
    hidden, new_cell = (torch.empty((n, width), dtype=cell.dtype, device=cell.device) for _ in range(2))
    if n:
        form = columns_form(width)
        grid = (n * triton.cdiv(width, form["BLOCK"]),)
        _lstm_kernel[grid](hidden, new_cell, gates, cell, gates.stride(0), cell.stride(0), **form)
    return hidden, new_cell


def lstm_cell_torch(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Do `lstm_cell` in PyTorch; float64 stays float64."""
    wide = torch.promote_types(gates.dtype, torch.float32)
    i, f, g, o = gates.to(wide).chunk(4, -1)
    new_cell = f.sigmoid() * cell.to(wide) + i.sigmoid() * g.tanh()
    hidden = o.sigmoid() * new_cell.tanh()
    return hidden.to(cell.dtype), new_cell.to(cell.dtype)


SHIPPED = [Shipped(f"lstm_cell {width}", _lstm_kernel, columns_form(width)) for width in (512, 1024)]

"""Products with packed weights, by the C kernels of a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from minifuse.kernels.native.library import native


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def packed_panels(weight: Tensor) -> Tensor:
    """Return weights [outputs, inputs] in the order in which `linear` reads them.

    Panels of P outputs lie behind each other, each [inputs, P]; the last one is filled up with zeros. For 3 outputs of
    2 inputs and P = 2, the panels are [[w00, w10], [w01, w11]] and [[w20, 0], [w21, 0]].
    """
    library, (outputs, inputs) = native(_name(weight.dtype)), weight.shape
    size = library.panel_size()
    panels = torch.empty(-(-outputs // size), inputs, size, dtype=weight.dtype)
    library.pack(panels.data_ptr(), weight.contiguous().data_ptr(), outputs, inputs)
    return panels


def linear(x: Tensor, panels: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    """Compute x W^T + bias, of x [..., inputs] and the panels of W."""
    x = x.contiguous()
    inputs = x.shape[-1]
    out = x.new_empty(*x.shape[:-1], outputs)
    pointers = out.data_ptr(), x.data_ptr(), panels.data_ptr(), None if bias is None else bias.data_ptr()
    sizes = x.numel() // inputs, inputs, outputs
    native(_name(x.dtype)).linear(*pointers, *sizes, torch.get_num_threads())
    return out

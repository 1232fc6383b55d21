"""Products with packed weights, by the C kernels of a CPU."""

from __future__ import annotations

from ctypes import byref

import torch
from torch import Tensor

from minifuse.kernels.native.library import Product, name_of, native


def packed_panels(weight: Tensor) -> Tensor:
    """Return weights [outputs, inputs] in the order in which `linear` reads them.

    Panels of P outputs lie behind each other, each [inputs, P]; the last one is filled up with zeros. For 3 outputs of
    2 inputs and P = 2, the panels are [[w00, w10], [w01, w11]] and [[w20, 0], [w21, 0]].
    """
    library, (outputs, inputs) = native(name_of(weight.dtype)), weight.shape
    size = library.panel_size()
    panels = torch.empty(-(-outputs // size), inputs, size, dtype=weight.dtype)
    library.pack(panels.data_ptr(), weight.contiguous().data_ptr(), outputs, inputs)
    return panels


def product(panels: Tensor, bias: Tensor | None, outputs: int) -> Product:
    """Return pointers to the weights and sizes of a product, as C takes them."""
    return Product(panels.data_ptr(), None if bias is None else bias.data_ptr(), panels.shape[1], outputs)


def linear(x: Tensor, panels: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
    """Compute x W^T + bias, of x [..., inputs] and the panels of W."""
    x = x.contiguous()
    weights = product(panels, bias, outputs)
    out = x.new_empty(*x.shape[:-1], outputs)
    rows, threads = x.numel() // weights.inputs, torch.get_num_threads()
    native(name_of(x.dtype)).linear(out.data_ptr(), x.data_ptr(), byref(weights), rows, threads)
    return out

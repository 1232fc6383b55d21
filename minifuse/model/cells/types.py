"""Defines cell types, and learns the outputs of a cell by running it (BatchMaker, 2.3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from minifuse.core.errors import RequestRefused


class Spec(NamedTuple):
    """One row of a cell's input or output: shape without the batch, and dtype."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        """Write the spec as `float32[3x1024]`, or `int64` for one number."""
        dtype, shape = str(self.dtype).removeprefix("torch."), "x".join(map(str, self.shape))
        return f"{dtype}[{shape}]" if self.shape else dtype


TOKEN = Spec((), torch.int64)


@dataclass(frozen=True, slots=True, eq=False)
class CellType:
    """Cells that can be batched: one definition, weights and input shape (BatchMaker, 2.3.1).

    `token_output`, an attribute of the module, is the number of the output that is a token of the answer, or None.
    """

    name: str
    cell: nn.Module
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    token_output: int | None


def outputs_of(
    module: nn.Module, inputs: tuple[Spec, ...], device: torch.device, where: str, allowed: str
) -> tuple[Spec, ...]:
    """Run a cell on zeros, check its outputs, and return their specs.

    Args:
        where: the beginning of error messages, which names the node.
        allowed: says what to give instead if the cell cannot take these inputs; it ends the message.

    Raises:
        RequestRefused: the cell cannot take these inputs, or its outputs are not as described in `CellModel`.
    """
    beginning = f"{where} with {', '.join(map(str, inputs)) or 'no inputs'}"
    specs: list[tuple[Spec, ...]] = []
    for rows in (1, 3):
        zeros = [torch.zeros(rows, *spec.shape, dtype=spec.dtype, device=device) for spec in inputs]
        try:
            with torch.inference_mode():
                ran = module(*zeros)
        except Exception as error:  # torch raises many kinds for shapes that do not fit
            raise RequestRefused(f"{beginning}, which the cell cannot take ({brief(error)}): {allowed}.") from error
        outputs = ran if isinstance(ran, list | tuple) else (ran,)
        if not outputs or not all(isinstance(part, Tensor) for part in outputs):
            raise RequestRefused(f"{where}, whose outputs are no tensors: let it return a tensor or a tuple of them.")
        shapes = [tuple(part.shape) for part in outputs]
        if not all(shape[:1] == (rows,) for shape in shapes):
            raise RequestRefused(
                f"{where}, whose outputs are {', '.join(map(str, shapes))} for a batch of {rows}: "
                "let their first dimension be the batch."
            )
        storages = {tensor.untyped_storage().data_ptr() for tensor in zeros if tensor.numel()}
        if device.type != "meta" and any(part.untyped_storage().data_ptr() in storages for part in outputs):
            raise RequestRefused(f"{where}, which gives an input back, and that may be a view of states: clone it.")
        specs.append(tuple([Spec(shape[1:], part.dtype) for shape, part in zip(shapes, outputs, strict=True)]))
    if specs[0] != specs[1]:
        raise RequestRefused(
            f"{where}, whose outputs are {', '.join(map(str, specs[0]))} in a batch of 1 and "
            f"{', '.join(map(str, specs[1]))} in a batch of 3: let rows not depend on the batch."
        )
    token_output = getattr(module, "token_output", None)
    if token_output is not None and (token_output not in range(len(specs[0])) or specs[0][token_output] != TOKEN):
        raise RequestRefused(
            f"{where}, whose attribute token_output is {token_output!r}: let that output be {TOKEN}, an id a row."
        )
    return specs[0]


def brief(error: Exception) -> str:
    """Shorten an error to its class and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0].rstrip('.')}"


def matrix_weights(cell: nn.Module) -> int:
    """Count the weights that every row is multiplied with: all matrices except embeddings."""
    return sum(
        parameter.numel()
        for part in cell.modules()
        if not isinstance(part, nn.Embedding)
        for parameter in part.parameters(recurse=False)
        if parameter.dim() > 1
    )

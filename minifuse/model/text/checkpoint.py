"""Reading and writing the weights of a Hugging Face directory: single or sharded safetensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from minifuse.core.errors import ModelError
from minifuse.model.text.fields import read_object
from minifuse.model.text.names import is_buffer, parameter_rows, source_of, without_prefix
from minifuse.model.text.parts import WHOLE, Part
from minifuse.model.text.shape import TextShape
from minifuse.model.text.transformer import Transformer

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
ROWS = 4096  # of embedding and head, compared at a time
DTYPES = {"F64", "F32", "F16", "BF16"}  # that weights may have, as safetensors names them


def _weight_files(directory: Path) -> list[Path]:
    """Find the weight files; a single file wins over an index, as in transformers."""
    if (directory / SINGLE).exists():
        return [directory / SINGLE]
    index = read_object(directory / INDEX)
    if index is None:
        raise ModelError(
            f"{directory} holds no {SINGLE} and no {INDEX}; minifuse reads safetensors only: "
            "convert other formats with transformers' save_pretrained."
        )
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise ModelError(f"{directory / INDEX} is not a safetensors index: download it again.")
    names = sorted(set(shards.values()))
    for name in names:
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise ModelError(
                f"{directory / INDEX} names the shard {name!r}, which may only be a file in that directory: "
                "download it again."
            )
        if not (directory / name).is_file():
            raise ModelError(f"{directory} lacks the shard {name!r}, which its index names: download it again.")
    return [directory / name for name in names]


class _Checkpoint:
    """The tensors in all shards of a directory, read one at a time."""

    def __init__(self, directory: Path, config: TextShape, stack: ExitStack) -> None:
        self.directory = directory
        self.config = config
        self.shard_of: dict[str, Any] = {}
        self.unread: set[str] = set()
        self.num_bytes = 0  # that were read
        for path in _weight_files(directory):
            try:
                opened = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{path} is truncated or not a safetensors file ({error}): download it again."
                ) from None
            self.shard_of.update(dict.fromkeys(opened.keys(), opened))
        self.unread.update(self.shard_of)

    def tensor(self, name: str, shape: tuple[int, ...], part: Part = WHOLE, transposed: bool = False) -> Tensor:
        """Read a part of a tensor; in older checkpoints its name lacks a prefix.

        Args:
            shape: the shape of the whole tensor, not transposed.
            transposed: whether the tensor is stored transposed; the returned part never is.
        """
        stored_name = name if name in self.shard_of else without_prefix(name, self.config)
        if stored_name not in self.shard_of:
            raise ModelError(
                f"{self.directory} has no tensor {name!r}, which its config.json calls for: "
                "take weights and config.json from the same model."
            )
        stored = self.shard_of[stored_name].get_slice(stored_name)
        if (dtype := stored.get_dtype()) not in DTYPES:
            raise ModelError(
                f"The tensor {name!r} in {self.directory} holds {dtype}, quantised or no weights at all, and minifuse "
                f"reads {', '.join(sorted(DTYPES))}: take the weights that are not quantised."
            )
        expected = list(reversed(shape)) if transposed else list(shape)
        if stored.get_shape() != expected:
            raise ModelError(
                f"The tensor {name!r} in {self.directory} has shape {stored.get_shape()} where config.json calls "
                f"for {expected}: take weights and config.json from the same model."
            )
        self.unread.discard(stored_name)
        tensors = [stored[index].t() if transposed else stored[index] for index in _indices(part, transposed)]
        self.num_bytes += sum(tensor.nbytes for tensor in tensors)
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def has_own_head(self) -> bool:
        """Tell whether a head is stored that differs from the tied embedding."""
        num_rows, shape = self.config.vocab_size, (self.config.vocab_size, self.config.hidden_size)
        head, embedding = (source_of(f"{name}.weight", self.config).names[0] for name in ("lm_head", "embedding"))
        if head not in self.shard_of:
            return False
        for first in range(0, num_rows, ROWS):
            part = Part((range(first, min(first + ROWS, num_rows)),))
            if not torch.equal(self.tensor(head, shape, part), self.tensor(embedding, shape, part)):
                return True
        return False

    def check_all_read(self) -> None:
        """Raise `ModelError` if a stored tensor was not read.

        Buffers that older versions stored are ignored."""
        left = sorted(name for name in self.unread if not is_buffer(name, self.config))
        if left:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise ModelError(
                f"{self.directory} has the tensor {left[0]!r}{more}, for which the model of its config.json has no "
                f"use (it has {self.config.num_layers} layers, and weights that are not quantised): take weights and "
                "config.json from the same model."
            )


def _indices(part: Part, transposed: bool) -> list[tuple[slice, ...]]:
    """Return the indices of a stored tensor that select a part."""
    if part.columns is not None:
        columns = slice(part.columns.start, part.columns.stop)
        return [(columns, slice(None)) if transposed else (slice(None), columns)]
    if part.rows is None:
        return [(slice(None),)]
    rows = [slice(one.start, one.stop) for one in part.rows] or [slice(0, 0)]
    return [(slice(None), one) if transposed else (one,) for one in rows]


Target = Callable[[str], tuple[Tensor, Part]]


@torch.no_grad()
def read_weights(model: Transformer, directory: Path, target: Target | None = None) -> int:
    """Fill every parameter of `model` from `directory`, converting to the model's dtype.

    As in transformers, embedding and head are not tied if the files hold different tensors for them, whatever
    config.json says.

    Args:
        target: given a parameter's name, returns the tensor to fill and the part of the parameter that it takes. Only
            these parts are read, and the model may be on the meta device. By default all of `model` is filled.

    Returns:
        How many bytes were read.

    Raises:
        ModelError: a file is missing or truncated, or a tensor is missing, unused, quantised, not finite, or of the
            wrong shape. The message names it.
    """
    config = model.config
    with ExitStack() as stack:
        checkpoint = _Checkpoint(directory, config, stack)
        if config.tied_embeddings and checkpoint.has_own_head():
            _untie(model)
        for parameter_name, parameter in model.named_parameters():
            source = source_of(parameter_name, config)
            sizes = parameter_rows(parameter_name, config) or (parameter.shape[0],)
            into, part = (parameter, WHOLE) if target is None else target(parameter_name)
            first = filled = 0  # rows already done, of the whole parameter and of its part
            for name, size in zip(source.names, sizes, strict=True):
                own = part.within(first, size)
                tensor = checkpoint.tensor(name, (size, *parameter.shape[1:]), own, source.transposed)
                piece = into[filled : filled + own.num_rows(size)]
                piece.copy_(tensor)
                if not _finite(piece):
                    raise ModelError(_not_finite(name, directory, tensor, piece.dtype))
                first, filled = first + size, filled + len(piece)
        checkpoint.check_all_read()
        return checkpoint.num_bytes


def _untie(model: Transformer) -> None:
    """Give the head a weight of its own, to be read from the checkpoint."""
    model.config = replace(model.config, tied_embeddings=False)
    model.lm_head.weight = nn.Parameter(torch.empty_like(model.embedding.weight), requires_grad=False)


def _finite(tensor: Tensor) -> bool:
    """Tell whether all numbers are finite, in one pass: `aminmax` propagates a NaN."""
    if not tensor.numel():
        return True
    least, largest = tensor.aminmax()
    return bool(least.isfinite() and largest.isfinite())


def _not_finite(name: str, directory: Path, stored: Tensor, dtype: torch.dtype) -> str:
    if _finite(stored):
        short = str(dtype).removeprefix("torch.")
        return f"The tensor {name!r} in {directory} has numbers too large for {short}: choose a --dtype of more range."
    return f"The tensor {name!r} in {directory} has numbers that are NaN or infinite: download it again."


def write_weights(
    model: Transformer, directory: Path, convert: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> None:
    """Save the weights under Hugging Face's names, so that transformers can read them.

    Args:
        convert: is applied to each tensor, for example to lower the precision.
    """
    tensors: dict[str, Tensor] = {}
    for parameter_name, parameter in model.named_parameters():
        source = source_of(parameter_name, model.config)
        sizes = parameter_rows(parameter_name, model.config) or (parameter.shape[0],)
        for name, piece in zip(source.names, parameter.detach().split(list(sizes)), strict=True):
            tensors[name] = convert(piece.t() if source.transposed else piece).contiguous()
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / SINGLE, metadata={"format": "pt"})

"""Reading and writing the weights of a Hugging Face directory: single or sharded safetensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from minifuse.errors import ModelError
from minifuse.model.text.names import parameter_rows, source_of, without_prefix
from minifuse.model.text.transformer import Transformer

__all__ = ["read_weights", "write_weights"]

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


def _weight_files(directory: Path) -> list[Path]:
    if (directory / INDEX).exists():
        try:
            shards = sorted(set(json.loads((directory / INDEX).read_text())["weight_map"].values()))
            if not all(isinstance(shard, str) for shard in shards):
                raise TypeError
        except (ValueError, KeyError, AttributeError, TypeError):
            raise ModelError(f"{directory / INDEX} is not a safetensors index: download it again.") from None
        for shard in shards:
            if not (directory / shard).exists():
                raise ModelError(f"{directory} lacks the shard {shard}, which its index names: download it again.")
        return [directory / shard for shard in shards]
    if (directory / SINGLE).exists():
        return [directory / SINGLE]
    raise ModelError(
        f"{directory} holds no {SINGLE} and no {INDEX}; minifuse reads safetensors only: "
        "convert other formats with transformers' save_pretrained."
    )


class _Checkpoint:
    """All tensors of a directory, in any of its shards, read one at a time."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.shard_of: dict[str, Any] = {}
        for path in _weight_files(directory):
            try:
                opened = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{path} is truncated or not a safetensors file ({error}): download it again."
                ) from None
            self.shard_of.update(dict.fromkeys(opened.keys(), opened))

    def tensor(self, name: str, bare: str) -> Tensor:
        stored_name = name if name in self.shard_of else bare
        if stored_name not in self.shard_of:
            raise ModelError(
                f"{self.directory} has no tensor {name!r}, which its config.json calls for: "
                "take weights and config.json from the same model."
            )
        tensor: Tensor = self.shard_of[stored_name].get_tensor(stored_name)
        return tensor


@torch.no_grad()
def read_weights(model: Transformer, directory: Path) -> None:
    """Fill every parameter of `model` from `directory`, converting to the model's dtype.

    Raises:
        ModelError: a file is missing or truncated, a tensor is missing, or one has the wrong shape (named).
    """
    config = model.config
    with ExitStack() as stack:
        checkpoint = _Checkpoint(directory, stack)
        for parameter_name, parameter in model.named_parameters():
            source = source_of(parameter_name, config)
            sizes = parameter_rows(parameter_name, config) or (parameter.shape[0],)
            pieces = parameter.split(list(sizes))
            for name, piece in zip(source.names, pieces, strict=True):
                tensor = checkpoint.tensor(name, without_prefix(name, config))
                shape = tuple(reversed(piece.shape)) if source.transposed else tuple(piece.shape)
                if tuple(tensor.shape) != shape:
                    raise ModelError(
                        f"The tensor {name!r} in {directory} has shape {list(tensor.shape)} where config.json calls "
                        f"for {list(shape)}: take weights and config.json from the same model."
                    )
                piece.copy_(tensor.t() if source.transposed else tensor)


def write_weights(
    model: Transformer, directory: Path, convert: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> None:
    """Save `model` under Hugging Face's names, which transformers reads too; `convert` may lower the precision."""
    tensors: dict[str, Tensor] = {}
    for parameter_name, parameter in model.named_parameters():
        source = source_of(parameter_name, model.config)
        sizes = parameter_rows(parameter_name, model.config) or (parameter.shape[0],)
        for name, piece in zip(source.names, parameter.detach().split(list(sizes)), strict=True):
            tensors[name] = convert(piece.t() if source.transposed else piece).contiguous()
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / SINGLE, metadata={"format": "pt"})

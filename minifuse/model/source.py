"""Finds a model by name, and describes it before its weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Protocol

from minifuse.core.errors import UsageError
from minifuse.model.cells.source import resolve_cells
from minifuse.model.text.load import resolve_text
from minifuse.model.text.tokenizer import Tokenizer


class Config(Protocol):
    """The part of a model's shape that all kinds of model have."""

    @property
    def kind(self) -> str:
        """Return "transformer", or the kind of cells: "lstm", ... (`minifuse.model.kinds`)."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int | None:
        """Return the most tokens of prompt and answer together; None if there is no limit."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Return the tokens that end an answer; empty for a model that produces no tokens."""
        ...

    @property
    def num_parameters(self) -> int: ...


class Source(Protocol):
    """Describes a model that was found by name, and loads it."""

    kind: ClassVar[str]  # "transformer" or "cells": see `minifuse.techniques.MODELS`

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Config: ...

    @property
    def has_weights(self) -> bool:
        """Tell whether there is a checkpoint; otherwise weights are random."""
        ...

    @property
    def has_tokenizer(self) -> bool: ...

    def tokenizer(self) -> Tokenizer:
        """Read the tokenizer. Raises `ModelError` if there is no tokenizer (prompts are then token ids)."""
        ...

    def digest(self) -> str:
        """Hash what identifies the model: shape, vocabulary and folder, but not weights."""
        ...

    def slot_bytes(self, dtype: str) -> int:
        """Count the bytes of a slot: a token's KV, or a node's states."""
        ...

    def load(self, dtype: str = "float32", device: str = "cpu", seed: int = 0, numerics: str = "fast") -> Any:
        """Load the model with its weights, ready to serve.

        Raises:
            ModelError: a checkpoint does not fit its config.json.
            MachineError: the weights would not fit this machine's free memory.
        """
        ...

    def outline(self, dtype: str = "float32", seed: int = 0) -> Any:
        """Make what virtual time uses instead of the loaded model, or return None."""
        ...


def resolve(name: str | Path) -> Source:
    """Find the model called `name`: `tiny`, a directory, `random:PRESET`, or cells such as `lstm:hidden=256`.

    Raises:
        UsageError: there is no such model.
        ModelError: the directory has no readable config.json, or one of another architecture.
    """
    if not isinstance(name, (str, Path)):
        raise UsageError(f"The model is {name!r:.60}: give its name, as 'tiny', or its directory.")
    return resolve_cells(str(name)) or resolve_text(str(name))

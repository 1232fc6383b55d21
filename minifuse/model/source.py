"""A model that has been found and described, its weights not yet read. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Protocol

from minifuse.core.errors import UsageError
from minifuse.model.cells.source import resolve_cells
from minifuse.model.text.load import resolve_text
from minifuse.model.text.tokenizer import Tokenizer


class Config(Protocol):
    """The shapes of a model, as far as all kinds of model have them."""

    @property
    def kind(self) -> str:
        """ "transformer", or the kind of cells: "lstm", ... (`minifuse.model.kinds`)."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_context(self) -> int | None:
        """Tokens of prompt and answer together, at most; None where there is no bound."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer; empty for a model that produces no tokens."""
        ...

    @property
    def num_parameters(self) -> int: ...


class Source(Protocol):
    """A model that has been found: everything known without its weights, and loading them."""

    kind: ClassVar[str]  # "transformer" or "cells": see `minifuse.techniques.MODELS`

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Config: ...

    @property
    def has_weights(self) -> bool:
        """Whether there is a checkpoint. Otherwise weights are random."""
        ...

    @property
    def has_tokenizer(self) -> bool: ...

    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises `ModelError` if there is none: prompts must then be token ids."""
        ...

    def digest(self) -> str:
        """What tells it from other models without reading its weights: its shape and vocabulary, and where it lies."""
        ...

    def slot_bytes(self, dtype: str) -> int:
        """Bytes of one slot of memory: the KV of a token, or the states of a node."""
        ...

    def load(self, dtype: str = "float32", device: str = "cpu", seed: int = 0, numerics: str = "fast") -> Any:
        """The model with its weights, ready to serve.

        Raises:
            ModelError: a checkpoint does not fit its config.json.
            MachineError: the weights would not fit this machine's free memory.
        """
        ...

    def outline(self, dtype: str = "float32", seed: int = 0) -> Any:
        """What a run in virtual time has instead of the model with its weights; None if it needs nothing."""
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

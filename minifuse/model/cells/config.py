"""Describes the shapes of cell models, built in or from plugins (BatchMaker, 2.7.3 to 2.7.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from minifuse.core.errors import UsageError

if TYPE_CHECKING:
    from minifuse.model.cells.model import CellModel


PAD, GO, EOS = 0, 1, 2  # the first ids of the vocabulary of a seq2seq model

Build = Callable[["CellConfig", str, str, int], "CellModel"]  # config, dtype, device, seed

BUILT_IN = ("lstm", "seq2seq", "treelstm")
_REGISTERED: dict[str, Build] = {}


@dataclass(frozen=True, slots=True)
class CellConfig:
    """Fixes the shapes of a model of cells."""

    kind: str
    hidden_size: int = 1024
    vocab_size: int = 30000
    max_children: int = 2  # of a node of a tree

    @property
    def max_context(self) -> None:
        """Return None: a graph may be of any size."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Return the tokens that end an answer; empty for a model that produces no tokens."""
        return (EOS,) if self.kind == "seq2seq" else ()

    @property
    def sizes(self) -> dict[str, int]:
        """Count the weights of each cell's matrices, without embeddings and biases.

        A batch reads each weight once, and uses it in two flops per row.
        """
        return _describe(self).sizes

    @property
    def num_parameters(self) -> int:
        """Count all parameters: matrices, embeddings and biases."""
        return _describe(self).num_parameters

    def slot_bytes(self, dtype: str) -> int:
        """Count the bytes of a slot: hidden and cell state, and a decoder's word."""
        return _describe(self, dtype).slot_bytes


@dataclass(frozen=True, slots=True)
class _Description:
    sizes: dict[str, int]
    num_parameters: int
    slot_bytes: int


@lru_cache(16)
def _describe(config: CellConfig, dtype: str = "float32") -> _Description:
    """Build the model to get its sizes; only a plugin's model is built with weights."""
    load = resolve_name("minifuse.model.cells.rnn:load_cells")  # imports torch
    model = load(config, config.kind, dtype, "meta" if config.kind in BUILT_IN else "cpu")
    return _Description(model.sizes, model.num_parameters, model.slot_bytes)


def register_cells(kind: str, build: Build) -> None:
    """Register a kind of cell model under the name `kind`, for `--model KIND`.

    The user can give it the same settings as built-in kinds, for example `KIND:hidden=512`.

    Args:
        build: makes the model from its config, dtype ("float32", ...), device ("cpu", ...) and seed.

    Raises:
        UsageError: the name is taken, or is not an identifier.
    """
    if not kind.isidentifier():
        raise UsageError(f"The kind of cell model {kind!r} is no name: give letters, digits and underscores.")
    if kind in BUILT_IN or _REGISTERED.setdefault(kind, build) is not build:
        raise UsageError(f"There is already a kind of cell model called {kind!r}: choose another name.")


def registered(kind: str) -> Build | None:
    """Return the function that builds a plugin's kind, or None if it is not registered."""
    return _REGISTERED.get(kind)

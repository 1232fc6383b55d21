"""Finds the model of cells that the user names, such as `treelstm:hidden=512`.

resolve_cells("lstm:hidden=256,vocab=8000")  ->  CellSource("lstm:hidden=256,vocab=8000", CellConfig("lstm", ...))
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, ClassVar, NoReturn

from minifuse.core.errors import ModelError, UsageError
from minifuse.io.parsing import parse_int, unknown
from minifuse.model.cells.config import BUILT_IN, CellConfig, registered

if TYPE_CHECKING:
    from minifuse.model.cells.model import CellModel


_SETTINGS = {
    "hidden": ("hidden_size", 1, 65536),
    "vocab": ("vocab_size", 4, 10_000_000),
    "children": ("max_children", 1, 16),
}


@dataclass(frozen=True, slots=True)
class CellSource:
    """A model of cells that is not built yet; its weights are random."""

    name: str
    config: CellConfig
    kind: ClassVar[str] = "cells"
    has_weights: ClassVar[bool] = False
    has_tokenizer: ClassVar[bool] = False

    def digest(self) -> str:
        return blake2b(repr(self.config).encode(), digest_size=16).hexdigest()

    def slot_bytes(self, dtype: str) -> int:
        """Count the bytes of the states of one node."""
        return self.config.slot_bytes(dtype)

    def tokenizer(self) -> NoReturn:
        raise ModelError(f"{self.name} has no tokenizer: give prompt_token_ids instead.")

    def load(self, dtype: str = "float32", device: str = "cpu", seed: int = 0, numerics: str = "fast") -> CellModel:
        """Make the model with random weights; `numerics` has no effect. Raises the errors of `load_cells`."""
        from minifuse.model.cells.rnn import load_cells

        return load_cells(self.config, self.name, dtype, device, seed)

    def outline(self, dtype: str = "float32", seed: int = 0) -> CellModel:
        """Make the model without weights, to unfold requests but not to compute.

        A plugin's model is loaded with its weights, because it need not support the device `meta`.
        """
        return self.load(dtype, "meta" if self.config.kind in BUILT_IN else "cpu", seed)


def resolve_cells(name: str) -> CellSource | None:
    """Find the model of cells called `name`; None if its kind is unknown.

    Settings follow the kind, as in `treelstm:hidden=512,vocab=8000`.

    Raises:
        UsageError: a setting of a known kind is unknown, or its value is out of range.
    """
    kind, _, settings = name.partition(":")
    if kind not in BUILT_IN and registered(kind) is None:
        return None
    known = {key: _SETTINGS[key] for key in _SETTINGS if key != "children" or kind not in ("lstm", "seq2seq")}
    values: dict[str, int] = {}
    for part in settings.split(",") if ":" in name else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            raise unknown(f"setting of the model {kind}", key, known)
        if not equals:
            raise UsageError(f'The model is "{name}", with no value for {key}: give {key}=NUMBER.')
        field, low, high = known[key]
        if field in values:
            raise UsageError(f'The model is "{name}", with {key} twice: give it once.')
        values[field] = parse_int(value, f"{key} of the model {kind}", low, high)
    return CellSource(name, CellConfig(kind, **values))

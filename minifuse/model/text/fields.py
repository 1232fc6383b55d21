"""The fields of a `config.json`, each checked as it is read."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minifuse.core.errors import ModelError
from minifuse.io.lines import read_bounded

LARGEST = 2**31 - 1  # of a size: no model comes near, and products of some such sizes are still exact
REQUIRED: Any = object()


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None: there is no such file.

    Raises:
        ModelError: the file cannot be read, or holds something else.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            raw = json.loads(read_bounded(file, str(path)))
    except FileNotFoundError:
        return None
    except RecursionError:
        raise ModelError(f"{path} cannot be read as JSON (too many brackets in brackets): download it again.") from None
    except (ValueError, OSError) as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}): download it again.") from None
    if not isinstance(raw, dict):
        raise ModelError(f"{path} holds no JSON object: download it again.")
    return raw


class Fields:
    """Reads one JSON object of a model's description. Every method raises `ModelError`, naming the field.

    A field without a default must be there. A default of None allows `null` as well.

    Args:
        source: the file, for messages.
        needed_by: what needs the fields, for messages.
    """

    def __init__(self, raw: Mapping[str, Any], source: str, needed_by: str) -> None:
        self.raw, self.source, self.needed_by = raw, source, needed_by

    def __contains__(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def whole(self, name: str, default: int | None, *, alias: str | None = None) -> Any:
        """A whole number of at least 1, which may stand under another name too."""
        if alias is not None and alias in self.raw:
            if self.raw.get(name, self.raw[alias]) != self.raw[alias]:
                raise ModelError(
                    f"{self.source} has {name} {reprlib.repr(self.raw[name])} and {alias} "
                    f"{reprlib.repr(self.raw[alias])}, which are names of one number: take one of them out."
                )
            name = alias
        value = self._get(name, default)
        if value is default or (type(value) is int and 1 <= value <= LARGEST):
            return value
        raise self.wrong(name, "a whole number of at least 1, and below 2^31")

    def number(self, name: str, default: float = REQUIRED, *, least: float = 0.0, most: float = math.inf) -> float:
        """A finite number above 0, from `least` to `most`."""
        value = self._get(name, default)
        try:
            number = float(value) if type(value) in (int, float) else math.nan
        except OverflowError:
            number = math.inf
        if 0 < number < math.inf and least <= number <= most:
            return number
        bounds = f"from {least:g} on" if least else f"above 0{'' if most == math.inf else f', at most {most:g}'}"
        raise self.wrong(name, f"a finite number {bounds}")

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if isinstance(value, bool):
            return value
        raise self.wrong(name, "true or false")

    def text(self, name: str, default: str) -> str:
        value = self._get(name, default)
        if isinstance(value, str):
            return value
        raise self.wrong(name, "a text")

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One token id, a list of such, or none; each once. Published ids may lie outside of the vocabulary."""
        value = self.raw.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if all(type(token) is int and 0 <= token <= LARGEST for token in ids):
            return tuple(dict.fromkeys(ids))
        raise self.wrong(name, "a token id, which is a whole number from 0, or a list of such")

    def object(self, name: str) -> Fields | None:
        """An object in this one; None: there is none, or an empty one."""
        value = self.raw.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(value, f"{name} of {self.source}", self.needed_by)

    def _get(self, name: str, default: Any) -> Any:
        if default is None and self.raw.get(name) is None:
            return None
        if name not in self.raw and default is REQUIRED:
            raise ModelError(
                f"{self.source} has no field {name!r}, which {self.needed_by} needs: take the config.json "
                "that came with the weights."
            )
        return self.raw.get(name, default)

    def wrong(self, name: str, allowed: str) -> ModelError:
        """The error of a field that is not what is `allowed`."""
        return ModelError(
            f"{self.source} has {name} {reprlib.repr(self.raw[name])}, which must be {allowed}: "
            "take the config.json that came with the weights."
        )

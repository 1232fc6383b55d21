"""Reads the JSON files of a model's directory, and checks their fields with pydantic."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from minifuse.core.errors import ModelError
from minifuse.io.lines import read_bounded

if TYPE_CHECKING:
    from pydantic import BaseModel

M = TypeVar("M", bound="BaseModel")


def read_object(path: Path) -> dict[str, Any] | None:
    """Read the JSON object in a file; return None if there is no file.

    Raises:
        ModelError: the file cannot be read, or holds no JSON object.
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


def checked(kind: type[M], raw: Mapping[str, Any], source: str) -> M:
    """Check the fields of a JSON object.

    Args:
        source: the file, for messages.

    Raises:
        ModelError: a field is missing or not allowed; the message names file and field.
    """
    from pydantic import ValidationError

    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
    if wrong["type"] == "missing":
        problem = f"{source} has no field {wrong['loc'][0]!r}"
    elif wrong["loc"]:
        problem = f"{source} has {wrong['loc'][0]} {reprlib.repr(wrong['input'])} ({wrong['msg']})"
    else:
        problem = f"{source} makes no sense ({wrong['msg']})"
    raise ModelError(f"{problem}: take the file that came with the weights.") from None

"""Reads text from outside: bounded files and streams, lines of JSON.

Refusals name the place, such as `prompts.jsonl:3`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, AnyStr, TypeVar

from minifuse.core.errors import MachineError, UsageError
from minifuse.io.parsing import did_you_mean, one_of

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

BYTE_ORDER_MARK = "\ufeff"  # editors and shells on Windows put it before a text
MOST_TEXT = 1 << 30  # limit on bytes of a file or stream, or on characters of a text stream
MOST_LINE = 1 << 26
ALTERNATIVE = re.compile(r"str|int|constrained-\w+|\w+\[.*\]")  # pydantic's names for the alternatives of a union

M = TypeVar("M", bound="BaseModel")


def read_object(where: str, line: str, kind: type[M]) -> M:
    """Read a line that holds a JSON object into a pydantic model.

    Args:
        where: names the line in messages.

    Raises:
        UsageError: the line holds no JSON object, or a field is unknown, missing, given twice, or of a wrong type.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise UsageError(f"{where}: field {_show(name)} stands here twice: give it once.")
            found[name] = value
        return found

    try:
        return as_model(where, json.loads(line, object_pairs_hook=once), kind)
    except json.JSONDecodeError as error:
        problem = f"not JSON ({error.msg} at column {error.colno}): give one object on each line"
    except (ValueError, RecursionError):  # a number of thousands of digits, or brackets thousands deep
        problem = "not readable as JSON: give numbers and lists of sane size"
    raise UsageError(f"{where}: {problem}.")


def as_model(where: str, given: object, kind: type[M]) -> M:
    """Make a pydantic model from plain data.

    Args:
        where: names the data in messages.

    Raises:
        UsageError: a field is unknown, missing, or of a wrong type.
    """
    from pydantic import ValidationError  # its import takes longer than most commands

    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise UsageError(f"{where}: {misfit(error, kind)}.") from None


def misfit(error: ValidationError, kind: Any = None) -> str:
    """Say why data does not fit a type, or the pydantic model `kind`.

    For a union, report on the alternative that fits best.
    """
    errors = error.errors()
    wrong = max(errors, key=lambda error: len(error["loc"]))
    path = _path(wrong["loc"])
    if wrong["type"] == "extra_forbidden" and kind is not None:
        *above, name = wrong["loc"]
        known = reduce(lambda owner, field: owner.model_fields[field].annotation, above, kind).model_fields
        return f"unknown field {_show(name)}{did_you_mean(name, known)}: give {one_of(known)}"
    if wrong["type"] == "json_invalid":
        return str(wrong["msg"])
    if wrong["type"] == "missing":
        return f"{path} is missing: give it"
    if wrong["type"] == "model_type":
        return f"{_show(wrong['input'])} is not an object: give one"
    allowed = one_of(dict.fromkeys(error["msg"] for error in errors if _path(error["loc"]) == path))
    return f"{path} is {_show(wrong['input'])}: {allowed}"


def _path(loc: tuple[str | int, ...]) -> str:
    """Write the path to a value, such as `limits.steps` or `prompt[1]`."""
    parts = [part for part in loc if not ALTERNATIVE.fullmatch(str(part))]
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in parts).removeprefix(".") or "it"


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a UTF-8 file.

    Only a newline ends a line: JSON strings may hold Unicode's other line separators.

    Raises:
        UsageError: the file cannot be read, or a line is not UTF-8.
        MachineError: the file or a line is too long.
    """
    try:
        with path.open("rb") as file:
            data = read_bounded(file, str(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): give a file of JSON lines.") from None
    yield from split_lines(data, str(path))


def split_lines(data: bytes, name: str) -> Iterator[str]:
    """Split a UTF-8 text into lines, dropping a byte order mark. Raises as `read_lines`.

    Args:
        name: names the text in messages.
    """
    for number, line in enumerate(data.removeprefix(BYTE_ORDER_MARK.encode()).split(b"\n"), start=1):
        if len(line) > MOST_LINE:
            raise too_long(f"{name}:{number}", MOST_LINE)
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{name}:{number}: byte {error.start + 1} of this line is not UTF-8: give UTF-8."
            ) from None


def read_bounded(stream: IO[AnyStr], name: str) -> AnyStr:
    """Read a whole stream of at most `MOST_TEXT` bytes or characters.

    Args:
        name: names the stream in messages.

    Raises:
        MachineError: the stream has more than `MOST_TEXT`.
    """
    parts = []
    length = 0
    while part := stream.read(1 << 20):
        parts.append(part)
        if (length := length + len(part)) > MOST_TEXT:
            raise too_long(name, MOST_TEXT)
    return stream.read(0).join(parts)


def too_long(name: str, most: int) -> MachineError:
    """Return the error for a text that takes too much memory."""
    return MachineError(f"{name} has more than {most >> 20:,} MiB, the most that is read: give less.")


def _show(value: object) -> str:
    """Write a value as JSON, shortened to fit a sentence."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

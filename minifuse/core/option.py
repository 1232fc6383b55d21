"""Declares an option of a stage: a field of a frozen dataclass, with what the command line needs to know."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    unit: str = "",
    batch_size: bool = False,
    of_evictions: bool = False,
    offered: bool = False,
) -> Any:
    """A dataclass field with a range or choices; `unit="s"` accepts 500ms and 2s (`minifuse/options.py` parses it).

    Args:
        batch_size: it bounds how many requests are served at once, which is what `--max-batch` sets.
        of_evictions: it changes nothing in a run that evicts no sequence.
        offered: where it is None, the model that is served may offer a value.
    """
    metadata: dict[str, Any] = {"help": help, "minimum": minimum, "maximum": maximum, "choices": choices, "unit": unit}
    metadata |= {"batch_size": batch_size, "of_evictions": of_evictions, "offered": offered}
    return field(default=default, metadata=metadata)

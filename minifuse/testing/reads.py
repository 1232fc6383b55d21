"""Which of its options a stage reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import Any
from unittest.mock import patch


@contextmanager
def recorded(options: set[type[Any]]) -> Iterator[set[tuple[type[Any], str]]]:
    """The options that are read in this block, each with its class. `vars` of options reads none."""
    read: set[tuple[type[Any], str]] = set()

    def recording(cls: Any) -> Callable[[Any, str], Any]:
        names, get = {field.name for field in fields(cls)}, cls.__getattribute__

        def getattribute(self: Any, name: str) -> Any:
            if name in names:
                read.add((cls, name))
            return get(self, name)

        return getattribute

    with ExitStack() as stack:
        for cls in options:
            stack.enter_context(patch.object(cls, "__getattribute__", recording(cls)))
        yield read

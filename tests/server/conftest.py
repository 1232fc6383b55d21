"""A server in a thread of the test's process, on a port of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from minifuse.model.source import resolve
from minifuse.model.text.load import TextSource
from minifuse.serve.settings import Settings
from minifuse.server.background import BackgroundServer


@cache
def tiny() -> tuple[TextSource, Any]:
    source = resolve("tiny")
    assert isinstance(source, TextSource)
    return source, source.load()


class Running(BackgroundServer):
    """A server that keeps what it wrote to its log."""

    def __init__(
        self, name: str = "pensieve", *, state: Path | None = None, kv_memory: int | None = None, **settings: Any
    ) -> None:
        self.log: list[str] = []
        super().__init__(name, engine=Settings(kv_memory=kv_memory), state=state, log=self.log.append, **settings)


@pytest.fixture(scope="session")
def served() -> Iterator[Running]:
    """A server that tests share."""
    with Running() as one:
        yield one

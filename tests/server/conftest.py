"""A server in a thread of the test's process, on a port of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from minifuse.model.source import resolve
from minifuse.model.text.load import TextSource
from minifuse.serve.engine import ServingEngine
from minifuse.serve.history import History
from minifuse.serve.resolve import resolve_run
from minifuse.serve.settings import Settings
from minifuse.server.engine_gateway import EngineGateway
from minifuse.server.running import HttpServer, listening
from minifuse.server.settings import ServerSettings
from minifuse.techniques import technique


@cache
def tiny() -> tuple[TextSource, Any]:
    source = resolve("tiny")
    assert isinstance(source, TextSource)
    return source, source.load()


@dataclass
class Running:
    """A server, its address, and what it wrote to its log."""

    http: HttpServer
    port: int
    log: list[str] = field(default_factory=list)

    @property
    def engine(self) -> ServingEngine:
        assert isinstance(self.http.gateway, EngineGateway)
        return self.http.gateway.engine

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running(
    name: str = "pensieve", *, state: Path | None = None, kv_memory: int | None = None, **settings: Any
) -> Iterator[Running]:
    """Serve `tiny` with a technique until the block ends."""
    source, model = tiny()
    resolved = resolve_run(technique(name), source, Settings(kv_memory=kv_memory))
    mine = ServerSettings(port=0, **{"drain_s": 1.0, **settings})
    lines: list[str] = []
    with listening(mine) as opened, nullcontext() if state is None else History(state) as history:
        gateway = partial(EngineGateway, resolved, model, mine)
        http = HttpServer(gateway, source, mine, opened, history, lines.append)
        thread = threading.Thread(target=http.run, name="server")
        thread.start()
        assert http.started.wait(30)
        try:
            yield Running(http, opened.getsockname()[1], lines)
        finally:
            http.stop()
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(scope="session")
def served() -> Iterator[Running]:
    """A server that tests share."""
    with running() as one:
        yield one

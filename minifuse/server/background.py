"""A server in a thread of this process, for notebooks and tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Self

from minifuse.core.errors import MachineError, UsageError
from minifuse.model.source import resolve
from minifuse.model.text.load import TextSource
from minifuse.serve.engine import ServingEngine
from minifuse.serve.history import History
from minifuse.serve.resolve import resolve_run
from minifuse.serve.settings import Settings
from minifuse.server.dialogues import Dialogues
from minifuse.server.engine_gateway import EngineGateway
from minifuse.server.running import HttpServer, listening
from minifuse.server.settings import ServerSettings
from minifuse.techniques import technique


class BackgroundServer:
    """Serves a model until `stop`, or until the end of a `with` block.

        with BackgroundServer("pensieve") as server:
            client = OpenAI(base_url=f"{server.url}/v1", api_key="any")

    As the last value of a notebook cell, the server shows its live page.

    Args:
        name: the technique.
        model: a model that has a tokenizer.
        engine: settings of the run, such as memory, dtype and options of stages.
        state: the file that stores chats.
        log: called with a line of JSON for each HTTP request.
        more: fields of `ServerSettings`; without `port`, any free port is taken.

    Raises:
        UsageError: the model or a setting does not suit a server.
    """

    def __init__(
        self,
        name: str = "pensieve",
        model: str = "tiny",
        engine: Settings | None = None,
        *,
        state: Path | None = None,
        log: Callable[[str], None] = lambda line: None,
        **more: Any,
    ) -> None:
        source = resolve(model)
        if not isinstance(source, TextSource) or not source.has_tokenizer:
            raise UsageError(f"A server reads text, and {source.name} has no tokenizer: choose another model.")
        run = resolve_run(technique(name), source, engine or Settings())
        settings = ServerSettings(**{"port": 0, "drain_s": 1.0, **more})
        settings.check_apart(run)
        with ExitStack() as resources:
            opened = resources.enter_context(listening(settings))
            history = None if state is None else resources.enter_context(History(state))
            gateway = partial(EngineGateway, run, run.load(), settings)
            self._http = HttpServer(gateway, source, settings, opened, history, log)
            self._thread = threading.Thread(target=self._http.run, name="server", daemon=True)
            self._thread.start()
            while not self._http.started.wait(0.1):
                if not self._thread.is_alive():
                    raise MachineError("The server failed at its start: the error is above.")
            self._resources = resources.pop_all()
        self.port: int = opened.getsockname()[1]
        self.url = f"http://{settings.host}:{self.port}"

    @property
    def gateway(self) -> EngineGateway:
        assert isinstance(self._http.gateway, EngineGateway)
        return self._http.gateway

    @property
    def dialogues(self) -> Dialogues:
        return self._http.dialogues

    @property
    def engine(self) -> ServingEngine:
        return self.gateway.engine

    def stop(self) -> None:
        """End the server as SIGTERM does; a second call does nothing."""
        if self._thread.is_alive():
            self._http.stop()
            self._thread.join()
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{self._http.source.name} at {self.url}>"

    def _repr_html_(self) -> str:
        return f'<iframe src="{escape(self.url)}/" width="100%" height="700" style="border: 0"></iframe>'

"""Runs a server: the socket, the gateway, the drain on SIGTERM."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from minifuse.core.errors import UsageError
from minifuse.model.text.load import TextSource
from minifuse.serve.history import History, ModelIdentity
from minifuse.server.app import make_app
from minifuse.server.completions import Completions
from minifuse.server.dialogues import Dialogues
from minifuse.server.gateway import Gateway, Texts
from minifuse.server.guards import Guards
from minifuse.server.protocol import IDLE_S, Protocol
from minifuse.server.settings import ServerSettings
from minifuse.server.template import template_of

SENDING_S = 5  # for sending the last errors at the deadline of a drain
BACKLOG = 2048
MOST_HEADER_BYTES = 64 * 1024


@contextmanager
def listening(settings: ServerSettings) -> Iterator[socket.socket]:
    """Open the socket of a server.

    Raises:
        UsageError: the address is in use, or is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    where = f"{settings.host}, port {settings.port}"
    try:
        # asyncio sends small answers at once (TCP_NODELAY) only if the socket names its protocol.
        opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((settings.host, settings.port))
        opened.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"The server cannot listen at {where} ({why}): give another --port or --host.") from None
    with opened:
        yield opened


class HttpServer:
    """Serves one model on a socket.

    Args:
        make_gateway: makes the gateway, given a function that returns the history of a request. It is called in the web
            server's event loop.
        opened: the socket, see `listening`.
        history: the state file of chats.
        log: called with one JSON line at the end of each HTTP request.

    Attributes:
        gateway: serves the requests; defined once `started` is set.
    """

    gateway: Gateway

    def __init__(
        self,
        make_gateway: Callable[[Texts], Gateway],
        source: TextSource,
        settings: ServerSettings,
        opened: socket.socket,
        history: History | None = None,
        log: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ) -> None:
        self.source, self.settings = source, settings
        self.started = threading.Event()
        self._make_gateway, self._opened, self._history, self._log = make_gateway, opened, history, log

    def run(self) -> int:
        """Serve until SIGTERM, SIGINT or `stop`; return how many requests were aborted at the end.

        Raises:
            BaseException: a stage or the model failed. Every unfinished request was answered with an error.
        """
        return asyncio.run(self._serve())

    def stop(self) -> None:
        """End the server as SIGTERM does, from any thread."""
        self._events.call_soon_threadsafe(self._server.handle_exit, signal.SIGTERM, None)

    async def _serve(self) -> int:
        settings, source = self.settings, self.source
        tokenizer = source.tokenizer()
        template = template_of(source, tokenizer)
        self._events = asyncio.get_running_loop()
        dialogues = Dialogues(ModelIdentity(source.name, source.digest()), self._history)
        self.gateway = self._make_gateway(dialogues.text)
        completions = Completions(self.gateway, source, tokenizer, template, dialogues, settings)
        self.dialogues = dialogues
        app = make_app(self.gateway, completions)
        config = uvicorn.Config(
            Guards(app, settings.api_keys, settings.most_body_bytes, self._log),
            http=Protocol,  # on h11: httptools, where it is installed, reads headers without end
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=math.ceil(settings.drain_s) + SENDING_S,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        )
        logger = logging.getLogger("uvicorn")
        logger.handlers, logger.propagate = [_JsonLines(self._log)], False
        self._server = _Server(config, self.gateway, settings.drain_s)
        watching = asyncio.create_task(self._stop_when_failed())
        try:
            self.started.set()
            await self._server.serve(sockets=[self._opened])
        finally:
            watching.cancel()
            num_given_up = await self.gateway.close()
        if self.gateway.failure is not None:
            raise self.gateway.failure
        return num_given_up

    async def _stop_when_failed(self) -> None:
        await self.gateway.failed.wait()
        self._server.should_exit = True


class _JsonLines(logging.Handler):
    """Logs the web server's errors, with their tracebacks, as JSON lines."""

    def __init__(self, log: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):  # a drain ended
            return
        self._log(json.dumps({"level": record.levelname.lower(), "message": self.format(record)}))


class _Server(uvicorn.Server):
    """A web server that refuses new requests after SIGTERM or Ctrl-C."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, drain_s: float) -> None:
        super().__init__(config)
        self._gateway, self._drain_s = gateway, drain_s

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # only `stop` ends this server
            yield
            return
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.getsignal(number) for number in numbers}
        for number in numbers:
            signal.signal(number, lambda number, frame: loop.call_soon_threadsafe(self.handle_exit, number, frame))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._gateway.draining:
            self._gateway.draining = True
            asyncio.get_running_loop().call_later(self._drain_s, self._gateway.expire)
        super().handle_exit(sig, frame)

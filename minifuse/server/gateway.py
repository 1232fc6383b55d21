"""The web server's interface to the engine: requests in, pieces of answers out."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from minifuse.core.request import Request
from minifuse.server.failures import Refused
from minifuse.server.live import Recording
from minifuse.server.loop import Piece

Texts = Callable[[Request], tuple[int, ...]]  # the tokens that precede a request's prompt
RETRY_S = 1  # seconds that a refused client is told to wait


class Gateway(ABC):
    """Serves the requests of the web server.

    Args:
        most_unfinished: requests that may be running or waiting; more are refused with 429.

    Attributes:
        draining: new requests are refused, because the server shuts down.
        failure: the error of a stage or of the model, after which nothing is served.
        failed: set once there is a `failure`.
        recording: recent events, to show live; None if they cannot be shown.
    """

    def __init__(self, most_unfinished: int) -> None:
        self.most_unfinished = most_unfinished
        self.draining = False
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self.recording: Recording | None = None

    @property
    @abstractmethod
    def num_unfinished(self) -> int: ...

    @abstractmethod
    def served(self, prompts: Sequence[Request]) -> AbstractAsyncContextManager[AsyncIterator[Piece]]:
        """Serve the prompts of a request; yield an iterator of their pieces.

        Leaving the block early aborts the request: its memory is free within one iteration.

        Raises:
            Refused: the request can never be served (400), too many are unfinished (429), or the server has failed or
                shuts down (503).
        """

    @abstractmethod
    def give_up(self, names: Sequence[str]) -> None:
        """Abort some prompts of a request soon, while its other prompts go on."""

    @abstractmethod
    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus's text format."""

    @abstractmethod
    async def close(self) -> int:
        """Abort all unfinished requests and stop; return how many there were."""

    def check_open(self, num_prompts: int) -> None:
        """Raise `Refused` if `num_prompts` more prompts cannot be taken in now."""
        if self.failure is not None:
            raise Refused(503, "The engine has failed, and nothing is served any more: restart the server.")
        if self.draining:
            raise Refused(503, "The server is shutting down: ask another one.", headers={"Retry-After": str(RETRY_S)})
        if self.num_unfinished + num_prompts > self.most_unfinished:
            raise Refused(
                429,
                f"{self.num_unfinished} requests are unfinished, and the server takes {self.most_unfinished} at most: "
                "try again later.",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(RETRY_S)},
            )

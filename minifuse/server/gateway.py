"""Between the web server's event loop and what serves: requests in, pieces of answers out."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from minifuse.core.request import Request
from minifuse.server.failures import Refused
from minifuse.server.live import Recording
from minifuse.server.loop import Piece

Texts = Callable[[Request], tuple[int, ...]]  # what precedes a request's prompt
RETRY_S = 1  # what a client is told to wait


class Gateway(ABC):
    """What serves requests, as the web server sees it.

    Args:
        most_unfinished: requests that may run and wait at one time; more are refused with 429.

    Attributes:
        draining: nothing more is taken in.
        failure: of a stage or of the model; nothing more is served.
        failed: is set then.
        recording: of what is served, if it can be shown live.
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
        """Serve the prompts of a request; yields their pieces as they come.

        Whoever leaves the block early gives the request up: its memory is free within one iteration.

        Raises:
            Refused: it can never be served (400), too many wait (429), or nothing is served any more (503).
        """

    @abstractmethod
    def give_up(self, names: Sequence[str]) -> None:
        """Abort prompts soon, of a request that goes on: nobody waits for more of them."""

    @abstractmethod
    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus's text format."""

    @abstractmethod
    async def close(self) -> int:
        """Give up what is unfinished. Returns how many requests that were."""

    def check_open(self, num_prompts: int) -> None:
        """Raise `Refused` if so many prompts are not taken in now."""
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

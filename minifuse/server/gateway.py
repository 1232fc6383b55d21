"""The web server's interface to the engine: requests in, pieces of answers out."""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from minifuse.core.request import Request
from minifuse.server.failures import Refused
from minifuse.server.live import Recording
from minifuse.server.loop import Piece
from minifuse.server.settings import ServerSettings

Texts = Callable[[Request], tuple[int, ...]]  # what precedes a request's prompt
RETRY_S = 1, 60  # the shortest and the longest wait that a client is told
ENDS = 32  # how many ends of requests are used to estimate the time of the next


class Gateway(ABC):
    """Serves the requests of the web server.

    Attributes:
        draining: whether the server is shutting down, and accepts no more requests.
        num_expired: how many requests were unfinished at the drain's deadline; None before that.
        failure: the error of a stage or of the model that ended the engine; None if there was none.
        failed: the event that is set when there is a `failure`.
        recording: the engine's last events, for the live page; None if there is no live page.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.most_unfinished = settings.most_unfinished
        self.draining = False
        self.num_expired: int | None = None
        self._ends: deque[float] = deque(maxlen=ENDS)  # when the last requests ended
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

    def expire(self) -> None:
        """End every unfinished request with an error: the drain's deadline has come."""
        self.num_expired = self.num_unfinished

    def note_end(self) -> None:
        """Record that a request has ended."""
        self._ends.append(time.monotonic())

    @property
    def retry_s(self) -> int:
        """Estimate the seconds until a request ends, from the ends of the last requests."""
        least, most = RETRY_S
        if len(self._ends) < 2:
            return least
        return max(least, min(most, math.ceil((self._ends[-1] - self._ends[0]) / (len(self._ends) - 1))))

    def check_open(self, num_prompts: int) -> None:
        """Raise `Refused` unless the server accepts `num_prompts` more prompts now."""
        if num_prompts > self.most_unfinished:
            most = self.most_unfinished
            raise Refused(400, f"{num_prompts} answers are asked for, and the server takes {most}: ask for fewer.")
        if self.failure is not None:
            raise Refused(503, "The engine has failed, and nothing is served any more: restart the server.")
        if self.draining:
            raise Refused(
                503, "The server is shutting down: ask another one.", headers={"Retry-After": str(RETRY_S[0])}
            )
        if self.num_unfinished + num_prompts > self.most_unfinished:
            raise Refused(
                429,
                f"{self.num_unfinished} requests are unfinished, and the server takes {self.most_unfinished} at most: "
                "try again later.",
                code="rate_limit_exceeded",
                headers={"Retry-After": str(self.retry_s)},
            )

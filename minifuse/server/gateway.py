"""Between the web server's event loop and the engine's thread: requests in, pieces of answers out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from minifuse.core.errors import RequestRefused, one_line
from minifuse.core.request import Request
from minifuse.serve.engine import ServingEngine
from minifuse.server.failures import Refused
from minifuse.server.loop import EngineLoop, Piece

RETRY_S = 1  # what a client is told to wait if nothing is known better


class Gateway:
    """The engine as the web server sees it.

    Args:
        most_unfinished: requests that may run and wait at one time; more are refused with 429.

    Attributes:
        draining: nothing more is taken in.
        failure: of a stage or of the model; nothing more is served.
    """

    def __init__(self, engine: ServingEngine, most_unfinished: int) -> None:
        self.engine = engine
        self.most_unfinished = most_unfinished
        self.draining = False
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self._queues: dict[str, asyncio.Queue[Piece]] = {}  # by request
        self._tasks: set[asyncio.Task[None]] = set()  # that nobody awaits
        self._events = asyncio.get_running_loop()
        self._loop = EngineLoop(engine, self._deliver, self._fail)
        self._loop.start()

    @property
    def num_unfinished(self) -> int:
        return len(self._queues)

    @asynccontextmanager
    async def served(self, prompts: Sequence[Request]) -> AsyncIterator[AsyncIterator[Piece]]:
        """Serve the prompts of a request; yields their pieces as they come.

        Whoever leaves the block early gives the request up: its memory is free within one iteration.

        Raises:
            Refused: it can never be served (400), too many wait (429), or nothing is served any more (503).
        """
        self._check_open(len(prompts))
        queue: asyncio.Queue[Piece] = asyncio.Queue()
        unfinished = {prompt.id for prompt in prompts}
        self._queues |= dict.fromkeys(unfinished, queue)

        async def pieces() -> AsyncIterator[Piece]:
            while unfinished:
                piece = await queue.get()
                if piece.answer is not None:
                    unfinished.discard(piece.request)
                    self._queues.pop(piece.request, None)
                yield piece

        submitted = asyncio.create_task(asyncio.to_thread(self._loop.submit, *prompts))
        try:
            await asyncio.shield(submitted)
            yield pieces()
        except RequestRefused as refusal:
            unfinished.clear()
            raise Refused(400, one_line(str(refusal))) from None
        finally:
            for prompt in prompts:
                self._queues.pop(prompt.id, None)
            if unfinished:
                self.give_up(tuple(unfinished), submitted)

    def give_up(self, names: Sequence[str], submitted: asyncio.Task[None] | None = None) -> None:
        """Abort requests soon, once they are `submitted`: nobody waits for more of them."""

        async def abort() -> None:
            if submitted is not None:
                await asyncio.wait([submitted])
            await asyncio.to_thread(self._loop.abort, names)

        task = asyncio.create_task(abort())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_open(self, num_prompts: int) -> None:
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

    # --- from the engine's thread

    def _deliver(self, pieces: list[Piece]) -> None:
        self._events.call_soon_threadsafe(self._hand_out, pieces)

    def _hand_out(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if (queue := self._queues.get(piece.request)) is not None:  # else nobody waits for it any more
                queue.put_nowait(piece)

    def _fail(self, failure: BaseException) -> None:
        self.failure = failure
        self._events.call_soon_threadsafe(self.failed.set)

    # --- the end

    async def close(self) -> int:
        """Give up what is unfinished. Returns how many requests that were."""
        self.draining = True
        num_given_up = self.num_unfinished
        await asyncio.to_thread(self._loop.close)
        return num_given_up

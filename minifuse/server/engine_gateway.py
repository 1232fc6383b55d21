"""A gateway to an engine in a thread of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import generate_latest

from minifuse.core.errors import RequestRefused, one_line
from minifuse.core.request import Request
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import ResolvedRun
from minifuse.server.failures import Refused
from minifuse.server.gateway import Gateway, Texts
from minifuse.server.live import Recording
from minifuse.server.loop import EngineLoop, Piece
from minifuse.server.metrics import ServerMetrics
from minifuse.server.settings import ServerSettings


class EngineGateway(Gateway):
    """Serves requests with an engine in a thread of this process.

    Args:
        model: the loaded model, as `build_engine` takes it.
        number: the number of this engine among several, for the metrics.
    """

    def __init__(self, run: ResolvedRun, model: Any, settings: ServerSettings, texts: Texts, number: int = 0) -> None:
        super().__init__(settings)
        self._metrics = ServerMetrics(settings.name or run.source.name, number)
        if not settings.api_keys:  # a page for everybody would show what each tenant asks
            self.recording = Recording()
        observers = () if self.recording is None else (self.recording,)
        self.engine = build_engine(run, model, into=self._metrics.read, observers=observers)
        if self.recording is not None:
            self.recording.header.update(self.engine.trace.header)
        self._metrics.watch(self.engine)
        self.engine.arrivals.stored = texts
        self._queues: dict[str, asyncio.Queue[Piece]] = {}  # by request
        self._tasks: set[asyncio.Task[None]] = set()  # kept here because nobody awaits them
        self._events = asyncio.get_running_loop()
        self._loop = EngineLoop(self.engine, self._deliver, self._fail)
        self._loop.start()

    @property
    def num_unfinished(self) -> int:
        return len(self._queues)

    @asynccontextmanager
    async def served(self, prompts: Sequence[Request]) -> AsyncIterator[AsyncIterator[Piece]]:
        self.check_open(len(prompts))
        queue: asyncio.Queue[Piece] = asyncio.Queue()
        unfinished = {prompt.id for prompt in prompts}
        self._queues |= dict.fromkeys(unfinished, queue)

        async def pieces() -> AsyncIterator[Piece]:
            while unfinished:
                piece = await queue.get()
                if piece.answer is not None:
                    self.note_end()
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
                self._abort_soon(tuple(unfinished), submitted)

    def give_up(self, names: Sequence[str]) -> None:
        self._abort_soon(names, None)

    def expire(self) -> None:
        super().expire()
        self.give_up(tuple(self._queues))

    def _abort_soon(self, names: Sequence[str], submitted: asyncio.Task[None] | None) -> None:
        """Abort requests once they are submitted."""

        async def abort() -> None:
            if submitted is not None:
                await asyncio.wait([submitted])
                if submitted.cancelled() or submitted.exception() is not None:
                    return  # the engine has refused them
            await asyncio.to_thread(self._loop.abort, names)

        task = asyncio.create_task(abort())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def metrics(self) -> bytes:
        return await asyncio.to_thread(generate_latest, self._metrics.registry)

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
        self.draining = True
        num_given_up = self.num_unfinished + (self.num_expired or 0)
        await asyncio.to_thread(self._loop.close)
        return num_given_up

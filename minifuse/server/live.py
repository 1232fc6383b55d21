"""Shows on the replay page what the engine does now."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response
from sse_starlette import EventSourceResponse

from minifuse.core.report import StepReport
from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import TracedRun
from minifuse.trace.log import Event, Trace

MOST_EVENTS = 500  # how many events are kept when a recording has twice as many
PAUSE_S = 0.2  # the shortest pause between two pictures
SHARE = 0.2  # the share of the time that drawing may take
FRAME = Path(__file__).parent / "live.html"
NOTHING = (
    "<!doctype html><title>minifuse</title><p>Nothing has been served yet: send a request, and it is drawn here.</p>"
)


class Recording(Trace):
    """The last events of an engine.

    The oldest iterations are dropped first; a request is kept until its last iteration is dropped.

    Attributes:
        count: number of all events, dropped ones included.
        drawing_s: seconds it took to draw the last page.
    """

    def __init__(self) -> None:
        self.count, self.drawing_s = 0, 0.0
        self._drawing = threading.Lock()
        self._drawn: tuple[int, str] = 0, NOTHING  # the count that a page shows, and the page
        super().__init__()

    def _add(self, event: Event | StepReport) -> None:
        super()._add(event)
        self.count += 1
        if len(self._events) > 2 * MOST_EVENTS:
            self._events = [self.header, *self._latest()]

    def _latest(self) -> list[Event | StepReport]:
        """Return the last events, preceded by the `request` events of requests unfinished before them."""
        older, later = self._events[1:-MOST_EVENTS], self._events[-MOST_EVENTS:]
        ended: set[str] = set()
        for event in older:
            if isinstance(event, StepReport):
                ended.update(event.finished)
            elif event["event"] in ("aborted", "refused"):
                ended.add(event["id"])
        asked = [one for one in older if not isinstance(one, StepReport) and one["event"] == "request"]
        return [*(one for one in asked if one["id"] not in ended), *later]

    def page(self) -> str:
        """Return a replay page that shows the latest step; all viewers share one page."""
        with self._drawing:
            count = self.count
            if self._drawn[0] != count:
                begun = time.perf_counter()
                self._drawn = count, self._draw()
                self.drawing_s = time.perf_counter() - begun
            return self._drawn[1]

    def _draw(self) -> str:
        run = TracedRun("the recording", list(self.kept()))
        if run.empty:
            return NOTHING
        told = record([run])
        return assemble(told, f"i={len(told['runs'][0]['steps']) - 1}")


def add_routes(app: FastAPI, recording: Recording, is_ending: Callable[[], bool]) -> None:
    """Add `/`, a frame that loads `/live` again whenever `/live/events` reports new events.

    Args:
        is_ending: tells whether the server is shutting down; the stream of events then ends.
    """
    drawing = ThreadPoolExecutor(1, "drawing")  # apart from the threads that serve

    @app.get("/", response_class=HTMLResponse)
    async def frame() -> str:
        return FRAME.read_text(encoding="utf-8")

    @app.get("/live", response_class=HTMLResponse)
    async def live() -> str:
        return await asyncio.get_running_loop().run_in_executor(drawing, recording.page)

    @app.get("/live/events")
    async def events() -> Response:
        return EventSourceResponse(_changes(recording, is_ending), sep="\n")


async def _changes(recording: Recording, is_ending: Callable[[], bool]) -> AsyncIterator[dict[str, str]]:
    """Yield the number of events when it has grown; pause longer if drawing is slow."""
    told = -1
    while not is_ending():
        if recording.count != told:
            told = recording.count
            yield {"data": str(told)}
        await asyncio.sleep(max(PAUSE_S, recording.drawing_s / SHARE))

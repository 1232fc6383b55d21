"""What the engine does now, drawn by the replay page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, Response
from sse_starlette import EventSourceResponse

from minifuse.core.plan import Reason
from minifuse.core.report import StepReport
from minifuse.core.requests import Requests
from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import TracedRun
from minifuse.trace.log import Event, Trace

MOST_EVENTS = 3_000  # of a recording
PAUSE_S = 0.2  # between two pictures, at least
SHARE = 0.2  # of the time, that drawing may take
FRAME = Path(__file__).parent / "live.html"
NOTHING = (
    "<!doctype html><title>minifuse</title><p>Nothing has been served yet: send a request, and it is drawn here.</p>"
)


class Recording(Trace):
    """The events of an engine since it last had no request and this was full.

    Attributes:
        count: of all events so far.
        drawing_s: how long the last page took.
    """

    def __init__(self) -> None:
        self.count, self.drawing_s = 0, 0.0
        super().__init__()

    def completed(self, report: StepReport, requests: Requests | None = None) -> None:
        super().completed(report, requests)
        if requests is not None:
            self._begin_anew(requests)

    def waited(self, reasons: Iterable[Reason], end_s: float, in_vain: bool, requests: Requests) -> None:
        super().waited(reasons, end_s, in_vain, requests)
        self._begin_anew(requests)

    def _add(self, event: Event | StepReport) -> None:
        super()._add(event)
        self.count += 1

    def _begin_anew(self, requests: Requests) -> None:
        if len(self._events) > MOST_EVENTS and not requests.unfinished:
            self._events = [self.header]

    def page(self) -> str:
        """Draw the recording as a replay page that stands at its end."""
        begun = time.perf_counter()
        run = TracedRun("the recording", list(self.kept()))
        if run.empty:
            return NOTHING
        told = record([run])
        page = assemble(told, f"i={len(told['runs'][0]['steps']) - 1}")
        self.drawing_s = time.perf_counter() - begun
        return page


def add_routes(app: FastAPI, recording: Recording) -> None:
    """Add `/`, which shows the recording as it grows: a frame that loads `/live` whenever `/live/events` says so."""

    @app.get("/", response_class=HTMLResponse)
    async def frame() -> str:
        return FRAME.read_text(encoding="utf-8")

    @app.get("/live", response_class=HTMLResponse)
    async def live() -> str:
        return await asyncio.to_thread(recording.page)

    @app.get("/live/events")
    async def events() -> Response:
        return EventSourceResponse(_changes(recording), sep="\n")


async def _changes(recording: Recording) -> AsyncIterator[dict[str, str]]:
    """Yield the number of events whenever it has grown; pause for longer if a page takes longer to draw."""
    told = -1
    while True:
        if recording.count != told:
            told = recording.count
            yield {"data": str(told)}
        await asyncio.sleep(max(PAUSE_S, recording.drawing_s / SHARE))

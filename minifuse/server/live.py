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

MOST_EVENTS = 3_000  # a longer recording begins anew when no request is unfinished
PAUSE_S = 0.2  # least seconds between two pictures
SHARE = 0.2  # largest part of the time that drawing may take
FRAME = Path(__file__).parent / "live.html"
NOTHING = (
    "<!doctype html><title>minifuse</title><p>Nothing has been served yet: send a request, and it is drawn here.</p>"
)


class Recording(Trace):
    """The recent events of an engine.

    A recording of more than `MOST_EVENTS` begins anew when no request is unfinished.

    Attributes:
        count: number of all events, dropped ones included.
        drawing_s: seconds it took to draw the last page.
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
        """Draw the recording as a replay page, opened at the last step."""
        begun = time.perf_counter()
        run = TracedRun("the recording", list(self.kept()))
        if run.empty:
            return NOTHING
        told = record([run])
        page = assemble(told, f"i={len(told['runs'][0]['steps']) - 1}")
        self.drawing_s = time.perf_counter() - begun
        return page


def add_routes(app: FastAPI, recording: Recording) -> None:
    """Add `/`, whose frame loads `/live` again whenever `/live/events` tells of new events."""

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
    """Yield the number of events whenever it changes; slow drawing makes the pauses longer."""
    told = -1
    while True:
        if recording.count != told:
            told = recording.count
            yield {"data": str(told)}
        await asyncio.sleep(max(PAUSE_S, recording.drawing_s / SHARE))

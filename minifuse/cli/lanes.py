"""`minifuse run --live`: the last iterations of a run as lanes, and who has which part of the memory."""

from __future__ import annotations

import math
import textwrap
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Sequences
from itertools import cycle, islice
from typing import Any

from minifuse.core.errors import one_line, shortened
from minifuse.core.places import State
from minifuse.core.plan import Work
from minifuse.core.report import StepReport
from minifuse.core.request import Phase, Request, Sequence
from minifuse.core.shapes import Rectangle, Region, StateRows
from minifuse.serve.engine import ServingEngine
from minifuse.show.timeline import ENDED, HELD, IDLE, PREPROCESSING, PROMPT, RUNNING, SUSPENDED, WAITING
from minifuse.trace.history import is_prefill
from minifuse.trace.idle_rows import Rows, idle_columns, rows_of_shape

LEGEND = (
    f"{WAITING} waits, {PREPROCESSING} pre-processed, {PROMPT} prompt, {RUNNING} token or node, {HELD} held, "
    f"{SUSPENDED} suspended, {ENDED} ends, {IDLE} ended and still computed: idle; letters: the request that has the "
    "slots"
)
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  # of requests, in the memory
FREE = "."
LABEL_WIDTH = 12
REMEMBERED = 200  # iterations: as many columns as a wide terminal has
STATES = {Phase.RECEIVED: WAITING, Phase.SUSPENDED: SUSPENDED}  # of a sequence, where it is not held
Column = tuple[StepReport, dict[str, list[Work]]]  # an iteration, and its work by sequence


class Lanes:
    """The picture of the last iterations. A step costs next to nothing: all is worked out when it is drawn.

    Args:
        engine: that runs; its sequences are those that have not ended.
        requests: all, in the order in which those that arrive at the same time are shown.
    """

    def __init__(self, engine: ServingEngine, requests: Iterable[Request] = ()) -> None:
        self._engine = engine
        self._order = {request.id: i for i, request in enumerate(requests)}
        self._last: deque[StepReport] = deque(maxlen=REMEMBERED)
        self._first: dict[str, int] = {}  # the step that admitted each
        self._top = 1  # slots of the device that have been used, from the first on

    def step(self, report: StepReport) -> None:
        """An iteration has completed."""
        if report.plan.work:
            self._last.append(report)
            for name in report.plan.admitted:
                self._first.setdefault(name, report.plan.step)

    def lines(self, width: int, rows: int) -> Iterator[str]:
        """The picture in lines of this width, with so many rows of requests at most, in the order of arrival.

        Where there are more, those that run are shown, as many that ended last as there is room for, and then those
        that wait.
        """
        explained = legend(width)
        rows -= len(explained) - 1
        last = list(self._last)
        reports = last[-max(1, width - LABEL_WIDTH - 3) :]
        columns = [(report, _by_name(report)) for report in reports]
        alive = self._engine.sequences
        idle = _idle(last, len(last) - len(reports))
        ended = [
            name
            for i, report in enumerate(last, len(reports) - len(last))
            for name in report.finished
            if i >= 0 or name in idle
        ]
        inside = [name for name in alive if name in self._first]
        waiting = [name for name in alive if name not in self._first]
        room = max(0, rows - len(inside))
        shown = [*ended[len(ended) - min(room, len(ended)) :], *inside, *waiting][:rows]
        still = [name for name, computed in idle.items() if computed[-1] == len(reports) - 1]
        latest = reports[-1].plan.sequences if reports else ()
        names = dict(zip(sorted({*inside, *latest, *still}, key=self._arrival), cycle(NAMES), strict=False))
        for name in sorted(shown, key=self._arrival):
            label = f"{names.get(name, ' ')} {shortened(one_line(name), LABEL_WIDTH):<{LABEL_WIDTH}}"
            prompt = len(self._request(name).prompt)
            signs = list(lane_of(name, alive.get(name), columns, self._first.get(name), prompt))
            for column in idle.get(name, ()):
                signs[column] = IDLE
            yield f"{label} {''.join(signs)}".rstrip()
        left_out = len(alive) - sum(name in alive for name in shown)
        if left_out:
            yield f"{left_out} more run or wait"
        if reports:
            yield from self._memory(reports, names, width)
        yield from explained

    def _arrival(self, name: str) -> tuple[float, int]:
        """When a request arrived, and its place among those that arrived at the same time."""
        return self._request(name).arrival_s, self._order.get(name, 0)

    def _request(self, name: str) -> Request:
        return (self._engine.sequences.get(name) or self._engine.finished[name]).request

    def _memory(self, reports: list[StepReport], names: dict[str, str], width: int) -> Iterator[str]:
        """Whose the slots of the device are, as far as the last iterations tell."""
        places: dict[str, list[range]] = {}
        for report in reversed(reports):
            plan = report.plan
            told = {work.sequence for work in plan.work} - places.keys()
            for work, place in zip(plan.work, plan.places, strict=True):
                if work.sequence in told and work.sequence in names:
                    slots = (
                        place.slots(work.start, work.stop) if isinstance(place, State) else place.slots(0, work.stop)
                    )
                    places.setdefault(work.sequence, []).extend(
                        [slots] if isinstance(slots, range) else [range(slot, slot + 1) for slot in slots]
                    )
        self._top = max([self._top, *(slots.stop for spans in places.values() for slots in spans)])
        owned = [(names[name], slots) for name, spans in places.items() for slots in spans]
        columns = max(1, width - LABEL_WIDTH - 3)
        label = f"slots 0-{self._top - 1}"
        yield f"{label:<{LABEL_WIDTH + 2}} {map_of_memory(owned, self._top, columns)}"
        usage = reports[-1].usage
        aside = f"{usage.used:,} used and {usage.reserved:,} reserved of {usage.capacity:,}"
        more = [(usage.host, "on the host"), (usage.kept, "kept"), (usage.kept_on_host, "kept on the host")]
        others = "".join(f", {number:,} {what}" for number, what in more if number)
        yield f"{'memory':<{LABEL_WIDTH + 2}} {aside}{others}"[:width]


def legend(width: int) -> list[str]:
    """What the signs mean, in lines of this width."""
    return textwrap.wrap(LEGEND, width)


def _rows_of(report: StepReport) -> Rows:
    """The rows, or buffers, that an iteration computes whole, and whose work lies in them."""
    plan = report.plan
    if plan.shape is None:
        return [], {}
    places: Any = zip([work.sequence for work in plan.work], plan.places, strict=True)
    assert isinstance(plan.shape, Rectangle | Region | StateRows)
    return rows_of_shape(type(plan.shape).__name__, plan.shape._asdict(), places)


def _idle(reports: Sequences[StepReport], skipped: int) -> dict[str, list[int]]:
    """For requests that have ended, the columns in which their row was computed all the same.

    Args:
        skipped: iterations on the left for which there is no column.
    """
    ended_s = {name: report.ended_s for report in reports for name in report.finished}
    found = idle_columns(
        (((report.plan.worker, report.plan.phase), _rows_of(report)) for report in reports),
        lambda name, index: ended_s.get(name, math.inf) <= reports[index].started_s,
    )
    columns = {name: [index - skipped for index in every if index >= skipped] for name, every in found.items()}
    return {name: every for name, every in columns.items() if every}


def _by_name(report: StepReport) -> dict[str, list[Work]]:
    found: dict[str, list[Work]] = {}
    for work in report.plan.work:
        found.setdefault(work.sequence, []).append(work)
    return found


def lane_of(name: str, sequence: Sequence | None, columns: Sequences[Column], first: int | None, prompt: int) -> str:
    """The signs of a request in these columns; told backwards, from what it is now.

    Args:
        sequence: of the request; None: it has ended.
        first: the step that admitted it for the first time; None: none has.
        prompt: tokens of its prompt.
    """
    if first is None and sequence is not None:
        arrival_s = sequence.request.arrival_s
        return "".join([WAITING if arrival_s < report.ended_s else " " for report, _ in columns])
    state = " " if sequence is None else STATES.get(sequence.phase, HELD)
    signs: list[str] = []
    last = " "  # what it does in its next iteration, and since when
    began_s = math.inf
    for report, works in reversed(columns):
        plan = report.plan
        if name in report.finished:
            signs.append(ENDED)
            last, state, began_s = RUNNING, HELD, report.started_s
        elif name in works:
            last = _sign(plan.phase, prompt, works[name])
            signs.append(last)
            state, began_s = HELD, report.started_s
        elif name in plan.evicted:
            signs.append(SUSPENDED)
        elif state == HELD and began_s < report.ended_s:  # on another worker, beside this one
            signs.append(last)
        else:
            came = sequence is None or state != WAITING or sequence.request.arrival_s < report.ended_s
            signs.append(state if came else " ")
        if name in plan.admitted:
            state = WAITING if plan.step == first else SUSPENDED
        elif name in plan.evicted:
            state = HELD
    return "".join(reversed(signs))


def _sign(phase: Phase, prompt: int, own: list[Work]) -> str:
    """What an iteration does for a request that it computes."""
    if phase is Phase.PREPROCESSING:
        return PREPROCESSING
    return PROMPT if any(is_prefill(work.start, work.stop, work.cell, prompt) for work in own) else RUNNING


def map_of_memory(owned: Iterable[tuple[str, range]], num_slots: int, columns: int) -> str:
    """Memory as a line of characters: of each part of the slots whose most of it is, or that it is free.

    >>> map_of_memory([("A", range(0, 4)), ("B", range(6, 8))], 10, 5)
    'AA.B.'
    """
    columns = min(columns, num_slots)
    counts: list[dict[str, int]] = [{} for _ in range(columns)]
    for name, slots in owned:
        first, last = slots.start * columns // num_slots, (slots.stop - 1) * columns // num_slots
        for part in islice(range(columns), first, last + 1):
            start, stop = -(-part * num_slots // columns), -(-(part + 1) * num_slots // columns)
            inside = min(stop, slots.stop) - max(start, slots.start)
            counts[part][name] = counts[part].get(name, 0) + inside
    return "".join(max(part.items(), key=lambda item: item[1])[0] if part else FREE for part in counts)

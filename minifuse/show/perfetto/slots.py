"""Writes rows and buffers as tracks: who used each one, and when it was idle."""

from __future__ import annotations

from dataclasses import dataclass

from minifuse.show.perfetto.events import TraceEvent, Tracks, complete, nanoseconds
from minifuse.trace.history import History
from minifuse.trace.idle_rows import idle_rows, rows_of

ABOVE = 10  # tracks of transfers stand above those of slots


@dataclass(slots=True)
class _Held:
    """A row or buffer that one request uses in consecutive iterations."""

    name: str
    start_ns: int
    end_ns: int
    last: int  # the last iteration, counted among the worker's iterations with a shape
    slot: int
    iterations: int = 1


def slot_events(history: History, tracks: Tracks) -> list[TraceEvent]:
    """Return a slice for each period in which one request used a row or buffer.

    Memory in blocks and ragged layouts have no rows, and so no tracks.
    """
    idle: dict[int, set[str]] = {}
    for name, indices in idle_rows(history).items():
        for index in indices:
            idle.setdefault(index, set()).add(name)
    owners: dict[tuple[int, int], str] = {}  # row -> its last owner
    held: dict[tuple[str, int, int], _Held] = {}
    ended: list[tuple[tuple[str, int, int], _Held]] = []
    numbers: dict[int, int] = {}  # how many shapes each worker has computed
    for index, one in enumerate(history.iterations):
        every, working = rows_of(one)
        if not every:
            continue
        number = numbers[one.worker] = numbers.get(one.worker, -1) + 1
        owners |= working
        noun = "row" if one.event["shape"]["kind"] == "Rectangle" else "buffer"
        for position, row in enumerate(every):
            owner = owners.get(row)
            works = row in working
            if owner is None or not (works or owner in idle.get(index, ())):
                continue
            key = noun, one.worker, position if noun == "row" else row[0] // row[1]
            name = owner if works else f"idle ({owner} has ended)"
            start_ns, end_ns = nanoseconds(one.start_s), nanoseconds(one.end_s)
            now = held.get(key)
            if now is not None and now.name == name and now.last == number - 1 and now.slot == row[0]:
                now.end_ns, now.last, now.iterations = max(now.end_ns, end_ns), number, now.iterations + 1
                continue
            if now is not None:
                ended.append((key, now))
            held[key] = _Held(name, start_ns, end_ns, number, row[0])
    ended += held.items()
    several = len({worker for (_, worker, _), _ in ended}) > 1
    events = []
    for (noun, worker, position), one_held in sorted(ended, key=lambda item: (item[1].start_ns, item[0])):
        title = f"{noun} {position}" + (f" of worker {worker}" if several else "")
        span = one_held.start_ns, one_held.end_ns
        track = tracks.place(title, ABOVE + position, *span)
        args = {"first slot": one_held.slot, "iterations": one_held.iterations}
        events.append(complete(one_held.name, "slots", track, *span, args))
    return events

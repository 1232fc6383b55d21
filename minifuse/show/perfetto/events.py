"""Makes events of Chrome's trace format, and tracks of slices that do not overlap.

Times are whole nanoseconds; only the file has microseconds. So slices that touch still touch in the file.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

TraceEvent = dict[str, Any]
ENGINE, REQUESTS, MEMORY = 1, 2, 3  # processes
FIRST_TRACK = 10  # a thread with the number of its process would be called its main thread
PROCESSES = {ENGINE: "engine", REQUESTS: "requests", MEMORY: "memory"}  # in the order in which they are shown


def nanoseconds(seconds: float) -> int:
    """Round to whole nanoseconds."""
    return round(seconds * 1e9)


def _event(phase: str, name: str, pid: int, tid: int, at_ns: int, **more: Any) -> TraceEvent:
    return {"ph": phase, "name": name, "pid": pid, "tid": tid, "ts": at_ns / 1000, **more}


def complete(
    name: str, category: str, track: tuple[int, int], start_ns: int, end_ns: int, args: Mapping[str, Any]
) -> TraceEvent:
    """Make a slice on `track`, a process and one of its threads."""
    return _event("X", name, *track, start_ns, dur=(end_ns - start_ns) / 1000, cat=category, args=dict(args))


def async_begin(name: str, category: str, number: int, at_ns: int, args: Mapping[str, Any] | None = None) -> TraceEvent:
    """Begin a span of a request; spans with the same number nest."""
    span = _event("b", name, REQUESTS, 0, at_ns, cat=category, id2={"local": hex(number)})
    return span if args is None else {**span, "args": dict(args)}


def async_end(name: str, category: str, number: int, at_ns: int) -> TraceEvent:
    return _event("e", name, REQUESTS, 0, at_ns, cat=category, id2={"local": hex(number)})


def counter(name: str, pid: int, at_ns: int, values: Mapping[str, float]) -> TraceEvent:
    """Make a counter: its values hold until the next counter of this name."""
    return _event("C", name, pid, 0, at_ns, args=dict(values))


def flow_start(name: str, category: str, number: int, track: tuple[int, int], at_ns: int) -> TraceEvent:
    """Start an arrow at the slice that this track has at this moment."""
    return _event("s", name, *track, at_ns, cat=category, id=number)


def flow_end(name: str, category: str, number: int, track: tuple[int, int], at_ns: int) -> TraceEvent:
    """End an arrow; `bp` binds it to the slice at this moment, not the next."""
    return _event("f", name, *track, at_ns, cat=category, id=number, bp="e")


def process_metadata() -> list[TraceEvent]:
    """Return the names of the processes, and their order."""
    return [
        {"ph": "M", "name": name, "pid": pid, "tid": 0, "args": args}
        for pid, title in PROCESSES.items()
        for name, args in (("process_name", {"name": title}), ("process_sort_index", {"sort_index": pid}))
    ]


@dataclass(slots=True)
class Tracks:
    """The tracks of one process; a row whose slices overlap has several tracks.

    >>> tracks = Tracks(ENGINE)
    >>> [tracks.place("worker 0", 0, start, end) for start, end in ((0, 5), (3, 8), (5, 9))]
    [(1, 10), (1, 11), (1, 10)]
    """

    pid: int
    rows: dict[tuple[Hashable, int], int] = field(default_factory=dict)  # row's title, index of its track -> tid
    ends: dict[int, int] = field(default_factory=dict)  # tid -> end of its last slice
    titles: dict[int, tuple[str, int]] = field(default_factory=dict)  # tid -> title, place in the order

    def place(self, title: str, order: int, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return the track of a slice. Call this in order of the slices' starts."""
        copy = 0
        while True:
            tid = self.rows.setdefault((title, copy), len(self.rows) + FIRST_TRACK)
            if self.ends.get(tid, start_ns) <= start_ns:
                break
            copy += 1
        self.titles.setdefault(tid, (title if not copy else f"{title} ({copy + 1})", order))
        self.ends[tid] = end_ns
        return self.pid, tid

    def number(self, events: list[TraceEvent]) -> None:
        """Renumber the tracks in order, also in `events`, because viewers may sort by number."""
        in_order = sorted(self.titles, key=lambda tid: (self.titles[tid][1], tid))
        numbers = {tid: FIRST_TRACK + i for i, tid in enumerate(in_order)}
        self.titles = {numbers[tid]: self.titles[tid] for tid in in_order}
        for event in events:
            if event["pid"] == self.pid and event["tid"] in numbers:
                event["tid"] = numbers[event["tid"]]

    def metadata(self) -> list[TraceEvent]:
        """Return the names of the tracks, and their order."""
        return [
            {"ph": "M", "name": name, "pid": self.pid, "tid": tid, "args": args}
            for tid, (title, order) in sorted(self.titles.items())
            for name, args in (("thread_name", {"name": title}), ("thread_sort_index", {"sort_index": order}))
        ]

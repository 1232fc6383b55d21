"""`minifuse trace`: what a trace tells, as text, as JSON, or for Perfetto."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from minifuse.cli.declare import STDOUT, argument, file_or_stdout, json_switch, option, takes, whole
from minifuse.cli.options import BY
from minifuse.cli.streams import print_result
from minifuse.cli.text import LEAST_WIDTH, console, tell
from minifuse.core.errors import UsageError
from minifuse.io.output import whole_file
from minifuse.trace.gaps import longest_gaps
from minifuse.trace.history import History
from minifuse.trace.log import Event
from minifuse.trace.metrics import Groups, read_events
from minifuse.trace.reading import STANDARD_INPUT, load_trace
from minifuse.trace.waits import reasons_of_waits, waited_for

WIDTH, WIDEST, ROWS = 80, 10_000, 32
PERFETTO = "write the run here in Chrome's trace format, for ui.perfetto.dev (- is standard output)"


@dataclass(frozen=True)
class TraceOptions:
    """The options of `trace`."""

    path: Annotated[str | None, argument("TRACE", "a file that --trace wrote; - is standard input")]
    width: Annotated[int | None, option("--width", "characters of a line: 80", "N", parse=whole(LEAST_WIDTH, WIDEST))]
    rows: Annotated[int | None, option("--rows", "requests in the timeline, at most: 32", "N", parse=whole())]
    by: Annotated[str | None, BY]
    perfetto: Annotated[Path | Literal["-"] | None, option("--perfetto", PERFETTO, "FILE", parse=file_or_stdout)]
    json: Annotated[bool, json_switch()]


@takes(TraceOptions)
def trace(options: TraceOptions) -> int:
    """Summarise a trace: who ran when, who waited for what and how long, and the longest gaps between tokens."""
    if options.path is None:
        raise UsageError("No trace is given: give a file that --trace wrote, or - for standard input.")
    if options.json and options.perfetto is not None:
        raise UsageError("--json and --perfetto are both given, and each is another form of the run: give one.")
    for flag, given in (("--width", options.width), ("--rows", options.rows), ("--by", options.by)):
        if given is not None and options.perfetto is not None:
            raise UsageError(
                f"{flag} and --perfetto are both given, and there are no lines in that form: leave it out."
            )
    where = Path(options.path)
    if isinstance(options.perfetto, Path) and options.path != STDOUT and options.perfetto.resolve() == where.resolve():
        raise UsageError(f"--perfetto is {str(options.perfetto)!r}, the trace itself: give another file.")
    loaded = load_trace(STDOUT if options.path == STDOUT else where)
    history = History.of(loaded.events, STANDARD_INPUT if options.path == STDOUT else options.path)
    if loaded.notice is not None and not options.json:
        tell(f"note: {loaded.notice}")
    if options.perfetto is not None:
        _write(history, options.perfetto)
    else:
        _show(history, options, loaded.notice, _groups(loaded.events, options.by))
    return 0


def _groups(events: list[Event], by: str | None) -> Groups | None:
    if by is None:
        return None
    groups = read_events(events).grouped(by)
    if not groups.keys() - {None}:
        raise UsageError(f"--by is {by}, and no request of the trace has one: leave it out.")
    return groups


def _write(history: History, to: Path | Literal["-"]) -> None:
    from minifuse.show.perfetto.document import document_lines

    lines = document_lines(history)
    if to == STDOUT:
        for line in lines:
            print_result(line)
        return
    with whole_file(to) as file:
        file.writelines(f"{line}\n" for line in lines)
    print(f"{to}: open it at https://ui.perfetto.dev.")


def _show(history: History, options: TraceOptions, notice: str | None, groups: Groups | None) -> None:
    from minifuse.cli.summary import as_json, as_lines, timeline_of
    from minifuse.cli.tables import by_group, groups_as_json

    width = options.width or WIDTH
    timeline = timeline_of(history, width, options.rows or ROWS)
    told = reasons_of_waits(history)
    waits, gaps = waited_for(told), longest_gaps(history, told)
    if options.json:
        told_by = {} if groups is None else {"groups": groups_as_json(groups, str(options.by))}
        print_result(json.dumps(as_json(history, timeline, waits, gaps, notice) | told_by))
        return
    for line in as_lines(history, timeline, waits, gaps, width):
        print(line)
    if groups is not None:
        out, kind = console(), "cells" if history.of_cells else "transformer"
        out.width = width
        out.print("", *by_group({"": groups}, str(options.by), kind, width), sep="\n")

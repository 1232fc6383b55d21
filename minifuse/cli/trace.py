"""`minifuse trace`: summarises a trace, as text, as JSON, or for Perfetto."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from minifuse.cli.declare import argument, json_switch, option, takes, whole
from minifuse.cli.files import STDOUT, file_or_stdout, refuse_overwriting
from minifuse.cli.options import BY
from minifuse.cli.streams import print_result
from minifuse.cli.text import LEAST_WIDTH, console, tell
from minifuse.core.errors import UsageError
from minifuse.io.output import whole_file
from minifuse.trace.gaps import longest_gaps
from minifuse.trace.history import History
from minifuse.trace.metrics import read_events
from minifuse.trace.reading import STANDARD_INPUT, load_trace
from minifuse.trace.running import Groups
from minifuse.trace.waits import reasons_of_waits, waited_for

WIDTH, WIDEST, ROWS = 80, 10_000, 32
PERFETTO = "write the run here in Chrome's trace format, for ui.perfetto.dev (- is standard output)"


@dataclass(frozen=True)
class TraceOptions:
    """The options of `trace`."""

    path: Annotated[str | None, argument("TRACE", "a file that --trace wrote; - is standard input")] = None
    width: Annotated[
        int | None, option("--width", "characters of a line: 80", "N", parse=whole(LEAST_WIDTH, WIDEST))
    ] = None
    rows: Annotated[int | None, option("--rows", "requests in the timeline, at most: 32", "N", parse=whole())] = None
    by: Annotated[str | None, BY] = None
    perfetto: Annotated[Path | Literal["-"] | None, option("--perfetto", PERFETTO, "FILE", parse=file_or_stdout)] = None
    json: Annotated[bool, json_switch()] = False


@takes(TraceOptions)
def trace(options: TraceOptions) -> int:
    """Summarise a trace: who ran when, who waited for what, and the longest gaps."""
    if options.path is None:
        raise UsageError("No trace is given: give a file that --trace wrote, or - for standard input.")
    others = {"--json": options.json, "--width": options.width, "--rows": options.rows, "--by": options.by}
    for flag, given in others.items():
        if given and options.perfetto is not None:
            raise UsageError(f"{flag} and --perfetto are both given, and have no use for each other: give one.")
    from_stdin = options.path == STDOUT
    if not from_stdin:
        refuse_overwriting([("--perfetto", options.perfetto)], [options.path])
    loaded = load_trace(STDOUT if from_stdin else Path(options.path))
    history = History.of(loaded.events, STANDARD_INPUT if from_stdin else options.path)
    if loaded.notice is not None and not options.json:
        tell(f"note: {loaded.notice}")
    if options.perfetto is not None:
        _write(history, options.perfetto)
        return 0
    groups = None if options.by is None else read_events(loaded.events, by=options.by).groups()
    if groups is not None and not groups.keys() - {None}:
        raise UsageError(f"--by is {options.by}, and no request of the trace has one: leave it out.")
    _show(history, options, loaded.notice, groups)
    return 0


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
    from minifuse.cli.tables import by_group, groups_as_json
    from minifuse.show.summary import as_json, as_lines, timeline_of

    width = options.width or WIDTH
    timeline = timeline_of(history, width, options.rows or ROWS)
    told = reasons_of_waits(history)
    waits, gaps = waited_for(told), longest_gaps(history, told)
    if options.json:
        summary = as_json(history, timeline, waits, gaps, notice)
        print_result(json.dumps(summary | groups_as_json(groups, options.by)))
        return
    for line in as_lines(history, timeline, waits, gaps, width):
        print(line)
    if groups is not None:
        out, kind = console(), "cells" if history.of_cells else "transformer"
        out.width = width
        out.print("", *by_group({"": groups}, str(options.by), kind, width), sep="\n")

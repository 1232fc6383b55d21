"""`minifuse replay`: shows traces of one workload on a page that any browser opens."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from minifuse.cli.declare import argument, option, takes
from minifuse.cli.files import STDOUT, refuse_overwriting, writable_file
from minifuse.cli.text import tell
from minifuse.core.errors import MinifuseError, UsageError
from minifuse.io.parsing import all_of
from minifuse.show.page import write_page
from minifuse.show.traced_runs import TracedRun, read_run
from minifuse.trace.reading import STANDARD_INPUT, load_trace

TRACES = "files that --trace wrote, of the same requests; - is standard input"
PAGE = "write the page here, one HTML file that any browser opens"
REPLAYED = "write a page here that replays the run in any browser; as with --trace, iterations take a little longer"


def _page_file(text: str, flag: str) -> Path:
    """Parse the path of a page, and check that it can be written."""
    if text == STDOUT:
        raise UsageError(f"{flag} is -, and a page is a file that a browser opens: give it a name, such as page.html.")
    return writable_file(text, flag)


REPLAY = option("--replay", REPLAYED, "FILE.html", panel="Output", parse=_page_file)


@dataclass(frozen=True)
class ReplayOptions:
    """The options of `replay`."""

    traces: Annotated[Sequence[str], argument("TRACE", TRACES)] = ()
    output: Annotated[Path | None, option("-o", PAGE, "FILE.html", parse=_page_file)] = None


@takes(ReplayOptions)
def replay(options: ReplayOptions) -> int:
    """Put runs of one workload on a page to scrub through and compare."""
    if not options.traces:
        raise UsageError("No trace is given: give one or more files that --trace wrote, of the same requests.")
    if options.output is None:
        raise UsageError("-o is not given: give the HTML file to write, as in minifuse replay run.jsonl -o page.html.")
    files = [Path(path) for path in options.traces if path != STDOUT]
    if len({path.resolve() for path in files}) + (STDOUT in options.traces) < len(options.traces):
        raise UsageError(f"{' '.join(options.traces)} names a trace twice: name each once.")
    refuse_overwriting([("-o", options.output)], files)
    runs = [
        TracedRun(STANDARD_INPUT, *load_trace(STDOUT)) if path == STDOUT else read_run(path) for path in options.traces
    ]
    _show_page(runs, options.output)
    return 0


class Page:
    """The page that a run writes, and the files of its traces.

    Args:
        path: the file of the page; None if no page is wanted.
        traces: a trace's file, or a folder for the traces of several techniques; None if no trace is written.
    """

    def __init__(self, path: Path | None, traces: Path | None) -> None:
        self.path, self.traces = path, traces

    def trace(self, technique: str) -> Path | None:
        """Return where to write the trace of a technique."""
        if self.traces is None or not self.traces.is_dir():
            return self.traces
        return self.traces / f"{technique}.jsonl"

    def write(self, techniques: Sequence[str]) -> bool:
        """Write the page of these techniques; return False if that fails."""
        if self.path is None:
            return True
        try:
            runs = [read_run(trace, name) for name in techniques if (trace := self.trace(name)) is not None]
            if len(runs) > 1 and (served := [run for run in runs if not run.empty]):
                if idle := [run.name for run in runs if run.empty]:
                    tell(f"note: {all_of(idle)} served no request, and is not on the page.")
                runs = served
            _show_page(runs, self.path)
        except MinifuseError as error:
            tell(f"error: {error}")
            return False
        return True


@contextmanager
def page_of(path: Path | None, traces: Path | None) -> Iterator[Page]:
    """Yield the page of a run; traces needed only by the page are temporary."""
    if path is None or traces is not None:
        yield Page(path, traces)
        return
    with tempfile.TemporaryDirectory(prefix="minifuse-") as folder:
        yield Page(path, Path(folder))


def _show_page(runs: Sequence[TracedRun], page: Path) -> None:
    """Write a page; print where it is, and what a trace lacks."""
    write_page(runs, page)
    for run in runs:
        if run.notice is not None:
            tell(f"note: {run.notice}")
    names = all_of([str(run.events[0].get("technique", run.name)) for run in runs])
    tell(f"note: {page} replays {names}: open it in a browser.")

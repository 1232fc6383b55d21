"""`minifuse replay`: traces of one workload as a page that any browser opens."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

from minifuse.cli.declare import STDOUT, argument, option, takes, writable_file
from minifuse.cli.plugin import refuse_overwriting
from minifuse.cli.text import tell
from minifuse.core.errors import MinifuseError, UsageError
from minifuse.io.parsing import all_of
from minifuse.show.page import write_page
from minifuse.show.traced_runs import TracedRun, read_run
from minifuse.trace.reading import STANDARD_INPUT, load_trace

TRACES = "files that --trace wrote, of the same requests; - is standard input"
PAGE = "write the page here, one HTML file that any browser opens"
REPLAYED = "write a page here that replays the run in any browser; as with --trace, iterations take a little longer"


def page_file(text: str, flag: str) -> Path:
    """A parser: the path of a page that can be written."""
    if text == STDOUT:
        raise UsageError(f"{flag} is -, and a page is a file that a browser opens: give it a name, such as page.html.")
    return writable_file(text, flag)


REPLAY = option("--replay", REPLAYED, "FILE.html", panel="Output", parse=page_file)


class Replayed(Protocol):
    """Options with --replay among them."""

    @property
    def replay(self) -> Path | None: ...
    @property
    def model(self) -> str: ...
    @property
    def prompts(self) -> str | None: ...


@dataclass(frozen=True)
class ReplayOptions:
    """The options of `replay`."""

    traces: Annotated[list[str], argument("TRACE", TRACES, many=True)]
    output: Annotated[Path | None, option("-o", PAGE, "FILE.html", parse=page_file)]


@takes(ReplayOptions)
def replay(options: ReplayOptions) -> int:
    """Put runs of one workload on a page: scrub through them, compare two, and see why each request waits."""
    if not options.traces:
        raise UsageError("No trace is given: give one or more files that --trace wrote, of the same requests.")
    if options.output is None:
        raise UsageError("-o is not given: give the HTML file to write, as in minifuse replay run.jsonl -o page.html.")
    files = [Path(path) for path in options.traces if path != STDOUT]
    if len({path.resolve() for path in files}) + (STDOUT in options.traces) < len(options.traces):
        raise UsageError(f"{' '.join(options.traces)} names a trace twice: name each once.")
    refuse_overwriting_traces(options.output, files, "-o")
    runs = [
        TracedRun(STANDARD_INPUT, *load_trace(STDOUT)) if path == STDOUT else read_run(path) for path in options.traces
    ]
    show_page(runs, options.output)
    return 0


def refuse_overwriting_traces(page: Path, traces: Iterable[Path], flag: str) -> None:
    """Raise `UsageError` if the page would be written over one of these files, by whatever name or link."""
    for trace in traces:
        if page.resolve() == trace.resolve() or (page.exists() and trace.exists() and page.samefile(trace)):
            raise UsageError(f"{flag} is {str(page)!r}, which the command uses for something else: give another file.")


def refuse_overwriting_by_page(options: Replayed, written: Iterable[object]) -> None:
    """Raise `UsageError` if --replay names a file that the run reads, or another that it writes."""
    if options.replay is not None:
        refuse_overwriting(options.replay, options.model, options.prompts, "--replay")
        refuse_overwriting_traces(options.replay, [one for one in written if isinstance(one, Path)], "--replay")


class Page:
    """The page that a run leaves, and the files of its traces; None: none is wanted.

    Args:
        path: of the page.
        traces: a trace's file, or a folder for those of several techniques.
    """

    def __init__(self, path: Path | None, traces: Path | None) -> None:
        self.path, self.traces = path, traces

    def trace(self, technique: str) -> Path | None:
        """Where the trace of a technique goes."""
        if self.traces is None or not self.traces.is_dir():
            return self.traces
        return self.traces / f"{technique}.jsonl"

    def write(self, techniques: Sequence[str]) -> bool:
        """Make the page of the traces of these techniques, and say where it is. Returns False if it cannot be made."""
        if self.path is None:
            return True
        try:
            runs = [read_run(trace, name) for name in techniques if (trace := self.trace(name)) is not None]
            if len(runs) > 1 and (served := [run for run in runs if not run.empty]):
                if idle := [run.name for run in runs if run.empty]:
                    tell(f"note: {all_of(idle)} served no request, and is not on the page.")
                runs = served
            show_page(runs, self.path)
        except MinifuseError as error:
            tell(f"error: {error}")
            return False
        return True


@contextmanager
def page_of(path: Path | None, traces: Path | None) -> Iterator[Page]:
    """The page of a run; if it is wanted and no traces are, these go to a folder that is gone afterwards."""
    if path is None or traces is not None:
        yield Page(path, traces)
        return
    with tempfile.TemporaryDirectory(prefix="minifuse-") as folder:
        yield Page(path, Path(folder))


def show_page(runs: Sequence[TracedRun], page: Path) -> None:
    """Write the page of these runs, and say where it is, and what of a trace it lacks."""
    write_page(runs, page)
    for run in runs:
        if run.notice is not None:
            tell(f"note: {run.notice}")
    names = all_of([str(run.events[0].get("technique", run.name)) for run in runs])
    tell(f"note: {page} replays {names}: open it in a browser.")

"""`minifuse tutorial`: the chapters of the course, installed as `minifuse/tutorials`."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from minifuse.cli.declare import argument, switch, takes
from minifuse.cli.streams import print_result
from minifuse.cli.text import tell
from minifuse.core.errors import UsageError
from minifuse.io.output import write_whole
from minifuse.io.shipped import places, shipped
from minifuse.labs.chapter import student_notebook

PLACES = places("tutorials", "tutorials")
SERVERS = {"notebook": "jupyter notebook", "jupyterlab": "jupyter lab"}  # module -> its command
INSTALL = "pip install -e '.[tutorials]' -c constraints.txt"


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter of the course: its source, and the executed notebook in the same folder."""

    source: Path

    @property
    def number(self) -> str:
        """Return the number of the chapter, in two digits."""
        return self.source.name[:2]

    @property
    def notebook(self) -> Path:
        return self.source.with_suffix(".ipynb")

    @property
    def title(self) -> str:
        """Return the first heading, without its number."""
        heading = next(line for line in self.source.read_text(encoding="utf-8").splitlines() if line.startswith("# # "))
        return heading.partition(". ")[2]


def chapters() -> list[Chapter]:
    """Return every chapter, in order.

    Raises:
        MachineError: this installation lacks the chapters.
    """
    place = shipped(PLACES, "The tutorials are")
    return [Chapter(source) for source in sorted(place.glob("[0-9][0-9]_*.py"))]


@dataclass(frozen=True)
class TutorialOptions:
    """The options of `tutorial`."""

    chapter: Annotated[str | None, argument("[NN]", "a chapter, by its number; without one, all are listed")] = None
    copy: Annotated[bool, switch("--copy", "copy the chapter to this folder, and open nothing")] = False
    solved: Annotated[bool, switch("--solved", "the chapter with its outputs and solutions, to read or to teach")] = (
        False
    )


@takes(TutorialOptions)
def tutorial(options: TutorialOptions) -> int:
    """List the chapters of the course, or copy one here and open it."""
    known = chapters()
    if options.chapter is None:
        given = [f"--{name}" for name in ("copy", "solved") if getattr(options, name)]
        if given:
            raise UsageError(f"{given[0]} is given without a chapter: give its number, as in minifuse tutorial 01.")
        lines = [f"{one.number}  {one.title}" for one in known]
        how = "minifuse tutorial NN copies a chapter to this folder and opens it; --solved: with outputs and solutions."
        print_result("\n".join([*lines, f"\n{how}"]))
        return 0
    notebook = _copied(_chapter(options.chapter, known), options.solved)
    server = next((name for name in SERVERS if find_spec(name) is not None), None)
    if options.copy or server is None or not _is_terminal():
        how = f"{SERVERS[server]} {notebook.name}" if server else f"{INSTALL}, then jupyter notebook {notebook.name}"
        tell(f"note: to open it: {how}")
        return 0
    return subprocess.run([sys.executable, "-m", server, notebook.name], check=False).returncode


def _is_terminal() -> bool:
    """Return whether a user at a terminal could stop a server."""
    return sys.stdout.isatty()


def _chapter(text: str, known: list[Chapter]) -> Chapter:
    """Find the chapter with this number; the leading zero may be missing."""
    numbers = [one.number for one in known]
    number = text.zfill(2)
    if number not in numbers:
        raise UsageError(f"There is no chapter {text!r}: give a number from {numbers[0]} to {numbers[-1]}.")
    return known[numbers.index(number)]


def _copied(chapter: Chapter, solved: bool) -> Path:
    """Write the student's notebook, or the executed one, to the current folder.

    An existing copy is kept: it may hold a student's work."""
    copy = Path(f"{chapter.source.stem}{'_solved' if solved else ''}.ipynb")
    if copy.exists():
        tell(f"note: {copy} is here already, and is left as it is: move it away for a new copy.")
        return copy
    executed = chapter.notebook.read_text(encoding="utf-8")
    write_whole(copy, executed if solved else student_notebook(executed))
    print_result(f"{copy} is {'the executed' if solved else 'your'} copy of chapter {chapter.number}: {chapter.title}.")
    return copy

"""Executes the chapters of the course, and writes each beside its source as a notebook with its outputs.

python -m tools.tutorials            # all of them
python -m tools.tutorials 01 07      # these
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import jupytext
from nbclient import NotebookClient
from nbformat import NotebookNode

from minifuse.labs.chapter import PLOT, fold_source

CHAPTERS = Path(__file__).parents[1] / "tutorials"
MOST_S = 240  # of a cell, here; a chapter is to take two minutes


def executed(source: Path) -> NotebookNode:
    """The notebook of a chapter, with the outputs of a run from top to bottom.

    Raises:
        CellExecutionError: a cell failed.
    """
    os.environ.pop("MPLBACKEND", None)  # by which pictures would not be shown
    notebook: NotebookNode = jupytext.read(source)
    where = {"metadata": {"path": str(CHAPTERS)}}
    NotebookClient(notebook, timeout=MOST_S, kernel_name="python3", resources=where).execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"  # the same each time
        cell.metadata.pop("execution", None)  # when each cell ran
        if PLOT in cell.metadata.get("tags", ()):
            fold_source(cell)
    return notebook


def main(wanted: list[str]) -> None:
    for source in sorted(CHAPTERS.glob("[0-9][0-9]_*.py")):
        if not wanted or source.name[:2] in wanted:
            begin = time.monotonic()
            notebook = executed(source)
            jupytext.write(notebook, source.with_suffix(".ipynb"))
            print(f"{source.stem}: {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])

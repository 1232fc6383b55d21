"""Makes a student's notebook of an executed chapter, with places for predictions and code.

A chapter marks its cells with tags, which jupytext keeps in the source (`# %% tags=["plot"]`):

    tag           the cell                                   in a student's notebook
    plot          code that draws                            folded (in the executed one as well)
    prediction    questions, in markdown                     a cell to write in follows
    task          code with a marked solution (skeleton.py)  its skeleton; the solution follows, folded

After a prediction, the code up to the next text is folded, and so is that text up to its first heading or next
question: they give the answer away. So does a box's paragraph on agreement, which is folded too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from minifuse.labs.skeleton import BLOCK, skeleton

Cell = dict[str, Any]
PLOT, PREDICTION, TASK = "plot", "prediction", "task"
QUESTION = re.compile(r"\b[Pp]redict\b|\b[Bb]efore you (?:run|look|press)\b")
AGREEMENT = re.compile(r"^> (\*\*Agreement\.\*\*.*?)(?=^>$|\Z)", re.MULTILINE | re.DOTALL)  # of a paper's box
NUMBERED = re.compile(r"^(\d+)\. ", re.MULTILINE)


def student_notebook(executed: str) -> str:
    """Return the student's notebook of an executed chapter, both as JSON.

    Raises:
        UsageError: a task has no marked solution.
    """
    notebook = json.loads(executed)
    notebook["cells"] = [*_cells(notebook["cells"])]
    for number, cell in enumerate(notebook["cells"]):
        cell["id"] = f"cell-{number}"
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _cells(cells: list[Cell]) -> Iterator[Cell]:
    """Yield the cells of a student's notebook."""
    predicted = False  # between a prediction and the text that tells what happened
    for cell in cells:
        tags = cell["metadata"].get("tags", ())
        if cell["cell_type"] == "code":
            yield from _code(cell, tags, fold=predicted or PLOT in tags)
            continue
        cell["source"] = AGREEMENT.sub(_folded_agreement, _text(cell))
        if predicted:
            cell["source"] = _folded_answer(cell["source"])
        predicted = PREDICTION in tags
        yield cell
        if predicted:
            yield _markdown(_place(cell["source"]))


def _code(cell: Cell, tags: list[str], fold: bool) -> Iterator[Cell]:
    cell["outputs"], cell["execution_count"] = [], None
    if TASK not in tags:
        if fold:
            fold_source(cell)
        yield cell
        return
    whole = _text(cell)
    cell["source"] = skeleton(whole, "a task of the chapter").rstrip()
    yield cell
    yield _markdown(_details("A solution", f"```python\n{_without_markers(whole)}\n```"))


def fold_source(cell: Cell) -> None:
    """Hide the source of a code cell; Jupyter shows it at a click."""
    cell["metadata"].setdefault("jupyter", {})["source_hidden"] = True


def _text(cell: Cell) -> str:
    """Return the source of a cell, which a notebook may hold as lines."""
    return "".join(cell["source"])


def _markdown(text: str) -> Cell:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def _details(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def _place(questions: str) -> str:
    """Return a place to answer the questions, numbered or not, at the end of a cell."""
    last = questions[[*QUESTION.finditer(questions)][-1].start() :]
    numbers = NUMBERED.findall(last)
    lines = [f"{number}. ..." for number in numbers] or ["..."]
    return "\n".join(["**Your prediction** (write it here before you run the next cell):", "", *lines])


def _folded_agreement(paragraph: re.Match[str]) -> str:
    """Fold what a box tells of measurements that the chapter asks to predict."""
    text = paragraph[1].replace("\n> ", "\n").strip()
    folded = _details("How far our figures agree (open it at the end of the chapter)", text)
    return "".join(f"> {line}".rstrip() + "\n" for line in folded.splitlines())


def _folded_answer(text: str) -> str:
    """Fold the paragraphs before the first heading or question."""
    paragraphs = text.split("\n\n")
    after = next(
        (i for i, one in enumerate(paragraphs) if one.startswith("#") or QUESTION.search(one)), len(paragraphs)
    )
    if not after:
        return text
    answer = _details("What happened (open it when you have run the cells above)", "\n\n".join(paragraphs[:after]))
    return "\n\n".join([answer, *paragraphs[after:]])


def _without_markers(text: str) -> str:
    return BLOCK.sub(lambda block: block["solution"], text).rstrip()

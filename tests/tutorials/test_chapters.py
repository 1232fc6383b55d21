"""The chapters of the course: each notebook is its source with outputs, and runs from top to bottom.

pytest -m tutorials
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from minifuse.cli.tutorial import Chapter, chapters
from minifuse.labs.chapter import PLOT, PREDICTION, QUESTION, TASK
from minifuse.papers import EXPERIMENTS

pytestmark = pytest.mark.tutorials
jupytext = pytest.importorskip("jupytext", reason="the chapters need the extra `tutorials`")

CHAPTERS = chapters()
WORDS, PICTURES = (2000, 3000), (8, 15)  # of a chapter
PARTS = (
    *(
        r"\*\*You will be able to\*\*",
        "^##+ A prediction",
        "^##+ One knob",
        "^##+ Where .* loses",
        "^##+ How the papers tell it",
    ),
    *("^## Exercises", r"\*Hint: ", "<details>", "^## Further reading"),
)
BOX = ("Claim", "Setting", "What we measure", "Agreement", "Errata")  # a paper's box, in this order
BOX_WORDS = (120, 350)
VERDICTS = re.compile(r"\b(agrees?|below|above|undecided|not measured)\b")
PAPERS = {"05": "flover", "06": "flover", "07": "batchmaker", "08": "pensieve", "09": "baton", "10": "fluidinfer"}
FIGURE = re.compile(r"\b[a-z]+-(?:(?:fig|table)\d+(?:\.\d+)?|short\b)")
DRAWS, COMPUTES = re.compile(r"\bplt\.(?:subplots|figure)\("), re.compile(r"\bassert\b|\bplay\(")
FOREIGN = re.compile(r"/(?:work|root|home|opt|tmp)/")  # paths of the machine on which it ran


@pytest.fixture(params=CHAPTERS, ids=lambda chapter: chapter.number)
def chapter(request: pytest.FixtureRequest) -> Chapter:
    return request.param  # type: ignore[no-any-return]


def cells(path: Path) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source.strip()) for cell in jupytext.read(path).cells]


def outputs(path: Path) -> list[Any]:
    return [output for cell in jupytext.read(path).cells for output in cell.get("outputs", ())]


def is_quote(line: str) -> bool:
    return line.startswith(">")


def box(chapter: Chapter) -> str:
    """Return the quoted lines of the chapter's first cell."""
    return "\n".join(line[1:].strip() for line in cells(chapter.source)[0][1].splitlines() if is_quote(line))


def test_the_notebook_is_the_source(chapter: Chapter) -> None:
    assert cells(chapter.source) == cells(chapter.notebook), f"build it: python -m tools.tutorials {chapter.number}"


def test_the_notebook_has_the_outputs_of_one_run(chapter: Chapter) -> None:
    code = [cell for cell in jupytext.read(chapter.notebook).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert not [one for one in outputs(chapter.notebook) if one.output_type == "error"]
    assert not FOREIGN.search(str([one for one in outputs(chapter.notebook) if one.output_type == "stream"]))


def test_the_chapters_own_solutions_pass_their_checks(chapter: Chapter) -> None:
    told = [one.data["text/plain"] for one in outputs(chapter.notebook) if "text/plain" in one.get("data", {})]
    assert not [one for one in told if one.startswith("not yet")]
    asked = [
        source
        for kind, source in cells(chapter.source)
        if kind == "code" and source.rsplit("\n", 1)[-1].startswith("check(")
    ]
    assert len([one for one in told if one.startswith("passed")]) == len(asked)


def test_a_chapter_has_its_parts_and_its_length(chapter: Chapter) -> None:
    text = "\n".join(source for kind, source in cells(chapter.source) if kind == "markdown")
    for part in PARTS:
        assert re.search(part, text, re.MULTILINE), part
    without_box = " ".join(line for line in text.splitlines() if not is_quote(line))
    assert WORDS[0] <= len(without_box.split()) <= WORDS[1]
    pictures = [one for one in outputs(chapter.notebook) if "image/png" in one.get("data", {})]
    assert PICTURES[0] <= len(pictures) <= PICTURES[1]
    code = "\n".join(source for kind, source in cells(chapter.source) if kind == "code")
    assert "show_source(" in code
    assert any("<iframe" in one.get("data", {}).get("text/html", "") for one in outputs(chapter.notebook))


@pytest.mark.parametrize("number", PAPERS)
def test_a_papers_chapter_opens_with_its_box(number: str) -> None:
    text = box(CHAPTERS[int(number) - 1])
    _, *parts = re.split(r"^\*\*(.+?)\.\*\*", text, flags=re.MULTILINE)
    assert tuple(parts[::2]) == BOX
    said = dict(zip(parts[::2], parts[1::2], strict=True))
    assert all(len(part.split()) >= 5 for part in said.values())
    assert VERDICTS.search(said["Agreement"])
    assert "benchmarks/results/README.md" in said["Agreement"]
    assert BOX_WORDS[0] <= len(text.split()) <= BOX_WORDS[1]


def test_only_a_papers_chapter_has_a_box() -> None:
    assert {one.number for one in CHAPTERS if box(one)} == set(PAPERS)


def test_the_boxes_name_every_figure_of_the_papers() -> None:
    named = {(PAPERS[number], name) for number in PAPERS for name in FIGURE.findall(box(CHAPTERS[int(number) - 1]))}
    figures = {(figure.group, name) for name, figure in EXPERIMENTS.items()}
    assert named == {(group, name) for group, name in figures if group in PAPERS.values()}


def test_what_asks_draws_and_is_to_be_written_has_its_tag(chapter: Chapter) -> None:
    asked = drawn = tasks = 0
    for cell in jupytext.read(chapter.source).cells:
        tags = cell.metadata.get("tags", ())
        if PREDICTION in tags:
            asked += 1
            assert cell.cell_type == "markdown", cell.source[:80]
            assert QUESTION.search(cell.source), f"it asks nothing: {cell.source[:80]}"
        if DRAWS.search(cell.source) and cell.cell_type == "code":
            drawn += 1
            assert PLOT in tags, f"it draws, and has no tag: {cell.source[:80]}"
        if PLOT in tags:
            assert not COMPUTES.search(cell.source), f"it draws and does more: {cell.source[:80]}"
        tasks += TASK in tags
    assert asked
    assert drawn
    assert tasks == (3 <= int(chapter.number) <= 10)


def test_a_right_solution_passes_its_check(chapter: Chapter) -> None:
    checks = [str(one.get("data", {})) for one in outputs(chapter.notebook) if "no law is broken on" in str(one)]
    assert len(checks) == (3 <= int(chapter.number) <= 10)
    assert all("passed: " in one for one in checks)


def test_it_runs_from_top_to_bottom(chapter: Chapter) -> None:
    from tools.tutorials import executed

    executed(chapter.source)


def test_chapters_are_numbered_without_a_gap() -> None:
    assert [one.number for one in CHAPTERS] == [f"{n:02}" for n in range(1, len(CHAPTERS) + 1)]

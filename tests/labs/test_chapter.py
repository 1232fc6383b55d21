"""What students are given of a chapter: nothing is answered yet, and there is a place for each answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from minifuse.cli.tutorial import Chapter, chapters
from minifuse.core.errors import UsageError
from minifuse.labs.chapter import student_notebook

SOLVED = """def admission(joining):
    # BEGIN SOLUTION: may it join?
    return None if joining < 2 else "full"
    # END SOLUTION"""


def markdown(text: str, *tags: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {"tags": [*tags]}, "source": text.splitlines(keepends=True)}


def code(text: str, *tags: str) -> dict[str, Any]:
    printed = {"output_type": "stream", "name": "stdout", "text": "42\n"}
    rest = {"execution_count": 3, "outputs": [printed]}
    return {"cell_type": "code", "metadata": {"tags": [*tags]}, "source": text.splitlines(keepends=True), **rest}


def given(*cells: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells of the student's notebook, sources as one text."""
    found = json.loads(student_notebook(json.dumps({"cells": [*cells], "nbformat": 4})))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in found]


def is_folded(cell: dict[str, Any]) -> bool:
    return bool(cell["metadata"].get("jupyter", {}).get("source_hidden", False))


def test_code_has_no_outputs_and_what_draws_is_folded() -> None:
    plain, drawn = given(code("print(42)"), code("axes.plot()", "plot"))
    assert [(cell["outputs"], cell["execution_count"]) for cell in (plain, drawn)] == [([], None)] * 2
    assert (is_folded(plain), is_folded(drawn)) == (False, True)


def test_each_question_has_a_place_and_its_answer_is_folded() -> None:
    asked, place, answer, told = given(
        markdown("Two lists.\n\n1. not a question\n\nPredict:\n\n1. How many?\n2. Which?", "prediction"),
        code("assert found == 42"),
        markdown("It is 42.\n\nFor a reason.\n\n## Next\n\nMore."),
    )
    assert asked["source"].endswith("2. Which?")
    assert place["source"].splitlines()[1:] == ["", "1. ...", "2. ..."]
    assert is_folded(answer)
    assert told["source"].startswith("<details><summary>What happened")
    assert told["source"].index("For a reason.") < told["source"].index("</details>") < told["source"].index("## Next")


def test_a_text_that_tells_and_asks_folds_what_it_tells() -> None:
    *_, told, place = given(
        markdown("Predict: does it help?", "prediction"),
        code("run()"),
        markdown("It does not.\n\nAnd so on.\n\nPredict the next.", "prediction"),
    )
    assert told["source"].index("And so on.") < told["source"].index("</details>") < told["source"].index("Predict the")
    assert place["source"].splitlines()[-1] == "..."


def test_a_task_is_unsolved_and_its_solution_is_folded() -> None:
    task, solution = given(code(SOLVED, "task"))
    assert task["source"].splitlines() == ["def admission(joining):", '    raise NotImplementedError("may it join?")']
    assert not is_folded(task)
    assert solution["source"].startswith(
        "<details><summary>A solution</summary>\n\n```python\ndef admission(joining):\n"
    )
    assert 'return None if joining < 2 else "full"' in solution["source"]
    assert "SOLUTION" not in solution["source"]


def test_a_box_folds_how_far_figures_agree() -> None:
    (box,) = given(
        markdown("Text.\n\n> **Claim.** 2 times.\n>\n> **Agreement.** Only\n> 1.3 times.\n>\n> **Errata.** None.")
    )
    *before, claim, _, opens, _, told, more, _, closes, _, errata = box["source"].splitlines()
    assert before == ["Text.", ""]
    assert claim == "> **Claim.** 2 times."
    assert opens.startswith("> <details><summary>How far our figures agree")
    assert (told, more, closes) == ("> **Agreement.** Only", "> 1.3 times.", "> </details>")
    assert errata == "> **Errata.** None."


def test_a_task_without_a_solution_is_refused() -> None:
    with pytest.raises(UsageError, match="a task of the chapter has no solution that is marked"):
        given(code("pass", "task"))


@pytest.mark.parametrize("chapter", chapters(), ids=lambda chapter: chapter.number)
def test_every_chapter_makes_a_notebook_that_gives_nothing_away(chapter: Chapter) -> None:
    cells = json.loads(student_notebook(chapter.notebook.read_text()))["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    assert not any("SOLUTION" in "".join(cell["source"]) for cell in cells)
    shown = ["".join(cell["source"]).replace("\n>\n", "\n\n") for cell in cells]
    assert not any("\n\n> **Agreement" in text and "<details>" not in text for text in shown)
    places = [cell for cell in cells if "".join(cell["source"]).startswith("**Your prediction**")]
    assert places
    assert len({cell["id"] for cell in cells}) == len(cells)

"""`minifuse tutorial`: the chapters are listed, one is copied and opened, and a student's own copy is never lost."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minifuse.cli import tutorial
from minifuse.cli.tutorial import PLACES, chapters
from minifuse.labs.chapter import student_notebook

Cli = Callable[..., Any]
PROJECT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that are started, on a terminal with Jupyter."""
    commands: list[list[str]] = []

    def run(command: list[str], check: bool) -> Any:
        commands.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(tutorial.subprocess, "run", run)
    monkeypatch.setattr(tutorial, "find_spec", lambda name: name if name == "notebook" else None)
    monkeypatch.setattr(tutorial, "_is_terminal", lambda: True)
    return commands


def test_all_chapters_are_listed_with_their_titles(minifuse: Cli) -> None:
    lines = minifuse("tutorial").out.splitlines()
    assert lines[0] == "01  One token at a time"
    assert [line[:2] for line in lines if line[:2].isdigit()] == [one.number for one in chapters()]


@pytest.mark.parametrize("typed", ["01", "1"])
def test_a_chapter_is_copied_and_opened(typed: str, minifuse: Cli, folder: Path, started: list[list[str]]) -> None:
    outcome = minifuse("tutorial", typed)
    copy = folder / "01_one_token_at_a_time.ipynb"
    assert outcome.code == 0
    assert copy.read_text() == student_notebook((PROJECT / "tutorials" / copy.name).read_text())
    assert "is your copy of chapter 01" in outcome.out
    assert [command[1:] for command in started] == [["-m", "notebook", copy.name]]


def test_a_solved_chapter_has_its_outputs_and_lies_beside_the_students(minifuse: Cli, folder: Path) -> None:
    minifuse("tutorial", "01")
    outcome = minifuse("tutorial", "01", "--solved")
    solved = folder / "01_one_token_at_a_time_solved.ipynb"
    assert solved.read_bytes() == (PROJECT / "tutorials" / "01_one_token_at_a_time.ipynb").read_bytes()
    assert "is the executed copy of chapter 01" in outcome.out
    assert len([*folder.iterdir()]) == 2


def test_a_copy_that_is_there_is_opened_as_it_is(minifuse: Cli, folder: Path, started: list[list[str]]) -> None:
    mine = folder / "01_one_token_at_a_time.ipynb"
    mine.write_text("my own work")
    outcome = minifuse("tutorial", "01")
    assert "is here already, and is left as it is" in outcome.err
    assert mine.read_text() == "my own work"
    assert len(started) == 1


def test_nothing_is_opened_with_copy_or_without_a_terminal(
    minifuse: Cli, folder: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "note: to open it: jupyter notebook 01_" in minifuse("tutorial", "01", "--copy").err
    monkeypatch.setattr(tutorial, "_is_terminal", lambda: False)
    assert "note: to open it: jupyter notebook 01_" in minifuse("tutorial", "01").err
    assert started == []


def test_with_jupyterlab_alone_its_own_command_is_told(
    minifuse: Cli, folder: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tutorial, "find_spec", lambda name: name if name == "jupyterlab" else None)
    assert "note: to open it: jupyter lab 01_" in minifuse("tutorial", "01", "--copy").err
    minifuse("tutorial", "01")
    assert [command[1:3] for command in started] == [["-m", "jupyterlab"]]


def test_without_jupyter_it_is_told_how_to_install_it(
    minifuse: Cli, folder: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tutorial, "find_spec", lambda name: None)
    outcome = minifuse("tutorial", "01")
    assert outcome.code == 0
    assert "note: to open it: pip install -e '.[tutorials]' -c constraints.txt, then jupyter notebook" in outcome.err
    assert [path.name for path in folder.iterdir()] == ["01_one_token_at_a_time.ipynb"]
    assert started == []


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["99"], ["There is no chapter '99'", "give a number from 01 to"]),
        (["one"], ["There is no chapter 'one'"]),
        (["../01"], ["There is no chapter '../01'"]),
        (["--copy"], ["--copy is given without a chapter"]),
        (["--solved"], ["--solved is given without a chapter"]),
    ],
)
def test_bad_input_is_refused_in_a_sentence(typed: list[str], words: list[str], minifuse: Cli, folder: Path) -> None:
    minifuse("tutorial", *typed).refused(*words)
    assert not [*folder.iterdir()]


def test_the_wheel_has_the_chapters_where_they_are_read() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    forced = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert [PROJECT / forced["tutorials"], PROJECT / "tutorials"] == [*PLACES]


def test_the_wheel_has_the_table_that_chapter_11_reads() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    forced = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    asked = re.search(r'places\("(.+?)", "(.+?)"\)', (PROJECT / "tutorials" / "11_a_kernel.py").read_text())
    assert asked is not None
    assert forced[asked[2]] == f"minifuse/{asked[1]}"
    assert (PROJECT / asked[2]).exists()

"""A student's file in its own process: values, errors, steps, and everything that it may not do."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

from minifuse.labs.submission import Limits, StudentFault, Submission, check_form

FILE = Path(__file__).with_name("hostile.py")
LIMITS = Limits(steps=100_000, seconds=2, withheld=("minifuse.memory.shuffle",))


def refused(function: str, *arguments: Any) -> str:
    """What is told of a call that must not succeed."""
    with pytest.raises(StudentFault) as fault, Submission(FILE, LIMITS) as work:
        work.call(function, *arguments)
    return str(fault.value)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("fork", "a lab may not do this (os.fork)"),
        ("forks_below", "may not import _posixsubprocess"),
        ("runs_a_program", "may not import subprocess"),
        ("runs_a_shell", "(os.system)"),
        ("exits", "raised SystemExit (0)"),
        ("exits_at_once", "ended its process (exit code 0)"),
        ("kills_the_judge", "(os.kill)"),
        ("reads_a_file", "may not read /etc/passwd"),
        ("reads_below", "may not read /etc/passwd"),
        ("lists_a_folder", "may not read /."),
        ("writes_results", "may not write files"),
        ("writes_below", "may not write files"),
        ("writes_to_every_channel", "the judge's own channel"),
        ("connects", "may not import socket"),
        ("asks_a_server", "may not import socket"),
        ("imports_the_engine", "may not import minifuse.engine"),
        ("patches_the_engine", "has no attribute 'Engine'"),
        ("imports_the_reference", "minifuse.memory.shuffle is withheld in this lab"),
        ("calls_c", "may not import ctypes"),
        ("looks_for_the_guard", "(gc.get_objects)"),
        ("ten_gigabytes", "more than 512 MB of memory"),
        ("a_list_of_ten_gigabytes", "more than 512 MB of memory"),
        ("never_returns_from_itself", "RecursionError"),
        ("no_end", "more than 100,000 steps"),
        ("no_end_in_c", "stopped after 2 s of computing"),
        ("a_set", "no plain data (Object of type set"),
        ("nothing", "there is no nothing, which the lab asks for"),
    ],
)
def test_what_a_submission_may_not_do(function: str, told: str) -> None:
    assert told in refused(function)


def test_hidden_tests_cannot_be_read(tmp_path: Path) -> None:
    hidden = Path(__file__).resolve().parents[2] / "tutorials" / "labs" / "04-the-memory-shuffle" / "lab.toml"
    assert hidden.is_file()
    assert "may not read" in refused("reads_hidden_tests", str(hidden))


def test_a_link_leads_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "solution.py"
    file.write_text(FILE.read_text())
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(StudentFault, match="may not read /etc/passwd"), Submission(file, LIMITS) as work:
        work.call("follows_a_link", str(tmp_path / "link"))


def test_what_is_printed_is_shown_and_is_no_result() -> None:
    with Submission(FILE, LIMITS) as work:
        assert work.call("prints_results") == 0
        assert work.call("add", 1, 2) == 3
    assert work.printed.splitlines() == ["hello from the submission", '{"score": 100, "tests": []}']


def test_objects_live_in_the_students_process() -> None:
    with Submission(FILE, LIMITS) as work:
        box = work.make("Box", 3)
        other = box.copy()
        assert [box("grow", 4), other("grow", 1), box("grow", 0)] == [7, 4, 7]
        del other
        gc.collect()
        assert box("grow", 1, form=int) == 8


def test_steps_are_lines_and_the_same_each_time() -> None:
    counts = []
    for _ in range(2):
        with Submission(FILE, LIMITS) as work:
            work.call("add", 1, 2)
            counts.append(work.steps)
    assert counts == [1, 1]


@pytest.mark.parametrize("name", ["settrace", "f_back", "__closure__"])
def test_the_count_of_steps_cannot_be_reached(name: str, tmp_path: Path) -> None:
    file = tmp_path / "solution.py"
    file.write_text(f"import sys\n\n\ndef cheat():\n    return sys.{name}\n")
    with pytest.raises(StudentFault, match=f"line 5 has {name}"), Submission(file, LIMITS):
        pass


@pytest.mark.parametrize("line", ["import numpy as np", "from torch import nn", "import nowhere.at_all"])
def test_what_may_be_imported_is_told(line: str, tmp_path: Path) -> None:
    file = tmp_path / "solution.py"
    file.write_text(f"import math\n{line}\n")
    name = line.split()[1].partition(".")[0]
    told = f"^solution.py: line 2 imports {name}, and a lab's file may import what comes with Python alone.$"
    with pytest.raises(StudentFault, match=told), Submission(file, LIMITS):
        pass


def test_a_file_beside_the_students_may_be_imported(tmp_path: Path) -> None:
    (tmp_path / "more.py").write_text("def two():\n    return 2\n")
    file = tmp_path / "solution.py"
    file.write_text("from more import two\n")
    with Submission(file, LIMITS) as work:
        assert work.call("two") == 2


def test_a_file_that_is_no_python_is_told(tmp_path: Path) -> None:
    file = tmp_path / "solution.py"
    file.write_text("def add(:\n")
    with pytest.raises(StudentFault, match=r"SyntaxError.*solution\.py, line 1"), Submission(file, LIMITS):
        pass


@pytest.mark.parametrize(
    ("value", "form", "told"),
    [
        ([[0, 4]], list[tuple[int, int]], None),
        ([[0, 4.5]], list[tuple[int, int]], "a list of lists of a whole number and a whole number"),
        (True, int, "a whole number"),
        (3, float, None),
        (None, int | None, None),
        ({"a": [1]}, dict[str, list[int]], None),
        ({"a": 1}, dict[str, list[int]], "a dictionary of lists of whole numbers"),
        ("x", bool, "True or False"),
    ],
)
def test_forms_are_told_in_words(value: Any, form: Any, told: str | None) -> None:
    if told is None:
        assert check_form(value, form, "f") == value
    else:
        with pytest.raises(StudentFault) as fault:
            check_form(value, form, "f")
        assert str(fault.value).endswith(f"return {told}.")

"""A student's file in its own process: values, errors, steps, and everything that it may not do."""

from __future__ import annotations

import ast
import gc
import importlib
import platform
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minifuse.labs import names
from minifuse.labs.confine import confine, landlock
from minifuse.labs.submission import Limits, StudentFault, Submission, check_form

FILE = Path(__file__).with_name("hostile.py")
LIMITS = Limits(steps=100_000, seconds=2, withheld=("minifuse.memory.shuffle",))


def refused(function: str, *arguments: Any, form: Any = Any) -> str:
    """What is told of a call that must not succeed."""
    with pytest.raises(StudentFault) as fault, Submission(FILE, LIMITS, names=False) as work:
        work.call(function, *arguments, form=form)
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
        ("no_end_in_c", ": does it end?"),
        ("has_two_paths", "may not read what Path names"),
        ("has_a_text_of_its_own", "may not read what Path names"),
        ("reads_below_a_folder", "may not read os.py"),
        ("loads_c_by_another_name", "may not import _ctypes"),
        ("unpickles", "(pickle.find_class)"),
        ("shares_memory", "may not import _posixshmem"),
        ("stops_counting", "may not change the count of steps"),
        ("patches_the_count", "has no attribute 'Steps'"),
        ("catches_the_end", "more than 100,000 steps"),
        ("nests_in_the_channel", "lists within lists"),
        ("floods_the_channel", "returned more than 4 MB"),
        ("raises_half_a_character", "ValueError (??[31m)"),
        ("a_set", "no plain data (Object of type set"),
        ("nothing", "there is no nothing, which the lab asks for"),
    ],
)
def test_what_a_submission_may_not_do(function: str, told: str) -> None:
    assert told in refused(function)


def test_a_submission_may_not_wait_without_end() -> None:
    limits = replace(LIMITS, seconds=1)
    with pytest.raises(StudentFault, match="had not returned after 3 s"), Submission(FILE, limits, names=False) as work:
        work.call("sleeps")


@pytest.mark.parametrize("function", ["reads_hidden_tests", "patches_the_paths"])
def test_hidden_tests_cannot_be_read(function: str) -> None:
    hidden = Path(__file__).resolve().parents[2] / "tutorials" / "labs" / "04-the-memory-shuffle" / "lab.toml"
    assert hidden.is_file()
    assert f"may not read {hidden}" in refused(function, str(hidden))


@pytest.mark.skipif(platform.machine() != "x86_64" or not landlock(), reason="the kernel has no such measures")
@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("starts_a_thread", "can't start new thread"),
        ("kills_by_a_descriptor", "Operation not permitted"),
        ("makes_a_pipe", "Operation not permitted"),
        ("looks_at_the_judge", "Permission denied"),
    ],
)
def test_what_python_does_not_see_the_operating_system_refuses(function: str, told: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "pipe")] if function == "makes_a_pipe" else []
    assert told in refused(function, *arguments)


@pytest.mark.skipif(platform.machine() != "x86_64" or not landlock(), reason="the kernel has no such measures")
@pytest.mark.parametrize(
    ("attempt", "told"),
    [
        ("open('/etc/passwd')", "Permission denied"),
        ("open(sys.argv[1] + '/new', 'w')", "Permission denied"),
        ("os.listdir('/')", "Permission denied"),
        ("os.fork()", "Operation not permitted"),
        ("os.posix_spawn('/bin/true', ['true'], {})", "Operation not permitted"),
        ("socket.socket()", "Operation not permitted"),
        ("os.kill(os.getppid(), 0)", "Operation not permitted"),
        ("resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))", "Operation not permitted"),
        ("open(sys.argv[1] + '/given').read(); open('/dev/null', 'w').write('x')", ""),
        ("resource.prlimit(0, resource.RLIMIT_CORE)", ""),
    ],
)
def test_the_operating_system_refuses_by_itself(attempt: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("x")
    code = (
        "import os, resource, runpy, socket, sys, encodings.idna\n"
        f"runpy.run_path({confine.__code__.co_filename!r})['confine']([sys.argv[1]], ['/dev/null'])\n{attempt}"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == (not told), ran.stderr
    assert told in ran.stderr


@pytest.mark.parametrize(
    ("function", "value"),
    [("patches_json", 100), ("has_no_room_to_count", 100), ("computes_when_told", {"count": 100})],
)
def test_lines_are_counted_whatever_a_file_does(function: str, value: object) -> None:
    with Submission(FILE, LIMITS, names=False) as work:
        assert work.call(function) == value
        assert work.steps >= 200


def test_what_is_printed_may_be_long() -> None:
    with Submission(FILE, LIMITS, names=False) as work:
        assert work.call("floods_what_is_printed") == 0
    assert len(work.printed) <= 20_000


@pytest.mark.parametrize(
    ("function", "form", "told"),
    [
        ("returns_nan", float, "returned NaN: return a number."),
        ("returns_a_large_number", int, "return a whole number."),
        ("nests", list[int], "return a list of whole numbers."),
    ],
)
def test_values_that_would_fool_a_comparison_are_refused(function: str, form: Any, told: str) -> None:
    assert refused(function, form=form).endswith(told)


NAMED = """collections._sys    line 4 has _sys
dataclasses.builtins    line 4 has builtins
work.__globals__    line 4 has __globals__
().__class__.__subclasses__()    line 4 has __subclasses__
getattr(dataclasses, "s" + "ys")    line 4 has getattr
eval("1")    line 4 has eval
__builtins__    line 4 has __builtins__
(x for x in []).gi_frame    line 4 has gi_frame
operator.attrgetter("a")    line 4 has attrgetter
import sys    line 4 imports sys, and a lab's file may import __future__, abc, array
import os.path    line 4 imports os.path
import collections.abc, __main__    line 4 imports __main__
from . import solution    line 4 imports .,
from json import decoder, sys    line 4 has sys
import numpy.testing    line 4 has testing
import beside    line 1 imports os"""


@pytest.mark.parametrize("line", NAMED.splitlines())
def test_names_that_lead_to_the_interpreter_are_refused(line: str, tmp_path: Path) -> None:
    code, _, told = line.partition("    ")
    file = tmp_path / "solution.py"
    file.write_text(f"import collections, dataclasses, operator\nimport numpy as np\ndef work():\n    {code}\n")
    (tmp_path / "beside.py").write_text("from os import path\n")
    with pytest.raises(StudentFault) as fault, Submission(file, replace(LIMITS, imports=("numpy",))):
        pass
    assert f"solution.py: {told}" in str(fault.value)


def test_a_pattern_names_attributes_too(tmp_path: Path) -> None:
    file = tmp_path / "solution.py"
    file.write_text("import collections\nmatch collections:\n    case object(_sys=found):\n        pass\n")
    with pytest.raises(StudentFault, match="line 3 has _sys"), Submission(file, LIMITS):
        pass


def test_what_is_looked_at_is_what_is_run(tmp_path: Path) -> None:
    file = tmp_path / "solution.py"
    file.write_text("# coding: utf-7\n# +AAo-import os\ndef add(one, two):\n    return one + two\n")
    with Submission(file, LIMITS) as work:
        assert work.call("add", 1, 2) == 3
        with pytest.raises(StudentFault, match="there is no os"):
            work.call("os")


def test_what_a_file_may_import_does_not_lead_to_the_interpreter() -> None:
    reached = [importlib.import_module(name) for name in names.MODULES]
    checked = names.Names([])
    for module in reached:  # which grows
        for name, value in vars(module).items():
            node = ast.Attribute(ast.Name("module"), name)
            if isinstance(value, types.ModuleType) and value not in reached and not checked._named(node):
                reached.append(value)
    dangers = {
        "sys",
        "builtins",
        "os",
        "posix",
        "inspect",
        "contextlib",
        "importlib",
        "_thread",
        "gc",
        "_imp",
        "ctypes",
    }
    assert not dangers.intersection(module.__name__ for module in reached)
    assert len(reached) > len(names.MODULES)


def test_a_link_leads_nowhere(tmp_path: Path) -> None:
    file = tmp_path / "solution.py"
    file.write_text(FILE.read_text())
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(StudentFault, match="may not read /etc/passwd"), Submission(file, LIMITS, names=False) as work:
        work.call("follows_a_link", str(tmp_path / "link"))


def test_what_is_printed_is_shown_and_is_no_result() -> None:
    with Submission(FILE, LIMITS, names=False) as work:
        assert work.call("prints_results") == 0
        assert work.call("add", 1, 2) == 3
    assert work.printed.splitlines() == ["hello from the submission", '{"score": 100, "tests": []}']


def test_objects_live_in_the_students_process() -> None:
    with Submission(FILE, LIMITS, names=False) as work:
        box = work.make("Box", 3)
        other = box.copy()
        assert [box("grow", 4), other("grow", 1), box("grow", 0)] == [7, 4, 7]
        del other
        gc.collect()
        assert box("grow", 1, form=int) == 8


def test_steps_are_lines_and_the_same_each_time() -> None:
    counts = []
    for _ in range(2):
        with Submission(FILE, LIMITS, names=False) as work:
            work.call("add", 1, 2)
            counts.append(work.steps)
    assert counts == [1, 1]


@pytest.mark.parametrize("line", ["import numpy as np", "from torch import nn", "import nowhere.at_all"])
def test_what_may_be_imported_is_told(line: str, tmp_path: Path) -> None:
    file = tmp_path / "solution.py"
    file.write_text(f"import math\n{line}\n")
    name = line.split()[1].partition(".")[0]
    told = f"^solution.py: line 2 imports {name}.*, and a lab's file may import .*, math, .*, typing[.]$"
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

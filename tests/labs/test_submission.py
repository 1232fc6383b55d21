"""A student's file in its own process: values, errors, steps, and everything that it may not do."""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import refusal

from minifuse.core.errors import MachineError
from minifuse.labs import names, student
from minifuse.labs.confine import confine, landlock, seccomp
from minifuse.labs.lab import labs
from minifuse.labs.submission import Budget, Limits, StudentFault, Submission, check_form

Written = Callable[[str], Path]
FILE = Path(__file__).with_name("hostile.py")
LIMITS = Limits(steps=100_000, seconds=2, withheld=["minifuse.memory.slots.shuffle"])


def refused(function: str, *arguments: Any, form: Any = Any) -> str:
    """What is told of a call that must not succeed."""
    with pytest.raises(StudentFault) as fault, Submission(FILE, LIMITS, names=False) as work:
        work.call(function, *arguments, form=form)
    return str(fault.value)


CONFINED = pytest.mark.skipif(not (landlock() and seccomp()), reason="the system has no such measures")


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("exits", "raised SystemExit (0)"),
        ("exits_at_once", "ended its process (exit code 0)"),
        ("writes_to_every_channel", "the judge's own channel"),
        ("imports_the_engine", "may not import minifuse.core"),
        ("patches_the_engine", "has no attribute 'Engine'"),
        ("imports_the_reference", "minifuse.memory.slots.shuffle is withheld in this lab"),
        ("calls_c", "(ctypes.dlopen)"),
        ("looks_for_the_guard", "(gc.get_objects)"),
        ("looks_at_frames", "(object.__getattr__)"),
        ("ten_gigabytes", "more than 512 MB of memory"),
        ("a_list_of_ten_gigabytes", "more than 512 MB of memory"),
        ("never_returns_from_itself", "RecursionError"),
        ("no_end", "more than 100,000 steps"),
        ("no_end_in_c", "no_end_in_c was stopped: all tests have 2 s together. Does it end?"),
        ("unpickles", "(pickle.find_class)"),
        ("stops_counting", "may not change the count of steps"),
        ("patches_the_count", "has no attribute 'Steps'"),
        ("catches_the_end", "more than 100,000 steps"),
        ("nests_in_the_channel", "the judge's own channel"),
        ("nests", "lists at most a hundred deep"),
        ("floods_the_channel", "returned more than 4 MB"),
        ("raises_half_a_character", "ValueError (??[31m)"),
        ("a_set", "no plain data (Object of type set"),
        ("nothing", "there is no nothing, which the lab asks for"),
    ],
)
def test_what_a_submission_may_not_do(function: str, told: str) -> None:
    assert told in refused(function)


def test_a_submission_may_not_wait_without_end() -> None:
    limits = LIMITS.model_copy(update={"seconds": 1})
    with pytest.raises(StudentFault, match="sleeps was stopped"), Submission(FILE, limits, names=False) as work:
        work.call("sleeps")


def test_a_process_that_cannot_be_started_is_the_machines_fault() -> None:
    limits = LIMITS.model_copy(update={"imports": ["no_such_module"]})
    with pytest.raises(MachineError, match=r"could not be started: .*No module named 'no_such_module'"):
        Submission(FILE, limits, names=False).__enter__()


@CONFINED
def test_hidden_tests_cannot_be_read() -> None:
    hidden = Path(__file__).resolve().parents[2] / "tutorials" / "labs" / "04-the-memory-shuffle" / "lab.toml"
    assert hidden.is_file()
    assert "Permission denied" in refused("reads_hidden_tests", str(hidden))


@CONFINED
@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("fork", "Operation not permitted"),
        ("runs_a_program", "Operation not permitted"),
        ("kills_the_judge", "Operation not permitted"),
        ("reads_a_file", "Permission denied"),
        ("reads_below", "Permission denied"),
        ("lists_a_folder", "Permission denied"),
        ("writes_results", "Permission denied"),
        ("writes_below", "Permission denied"),
        ("connects", "Operation not permitted"),
        ("asks_a_server", "Operation not permitted"),
        ("shares_memory", "Permission denied"),
        ("starts_a_thread", "can't start new thread"),
        ("kills_by_a_descriptor", "Operation not permitted"),
        ("makes_a_pipe", "Operation not permitted"),
        ("looks_at_the_judge", "Permission denied"),
    ],
)
def test_the_operating_system_refuses(function: str, told: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "pipe")] if function == "makes_a_pipe" else []
    assert told in refused(function, *arguments)


@CONFINED
def test_no_shell_is_run() -> None:
    with Submission(FILE, LIMITS, names=False) as work:
        assert work.call("runs_a_shell") != 0


@CONFINED
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
    ],
)
def test_the_measures_by_themselves(attempt: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("x")
    code = (
        "import os, resource, runpy, socket, sys, encodings.idna\n"
        f"runpy.run_path({confine.__code__.co_filename!r})['confine']([sys.argv[1]], ['/dev/null'], [])\n{attempt}"
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
    ("function", "form", "told"), [("returns_nan", float, 'returned NaN: it is "NaN": Input should be a valid number.')]
)
def test_values_that_would_fool_a_comparison_are_refused(function: str, form: Any, told: str) -> None:
    assert refused(function, form=form).endswith(told)


NAMED = """work.__globals__    line 4 has __globals__
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
from numpy import sys    line 4 has sys
np.core.pickle    line 4 has pickle
import numpy.testing    line 4 has testing
import time    line 4 imports time
import beside    line 4 imports beside
import package    line 4 imports package"""


@pytest.mark.parametrize("line", NAMED.splitlines())
def test_names_that_lead_to_the_interpreter_are_refused(line: str, solution: Written, tmp_path: Path) -> None:
    code, _, told = line.partition("    ")
    file = solution(f"import collections, dataclasses, operator\nimport numpy as np\ndef work():\n    {code}\n")
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    with pytest.raises(StudentFault) as fault, Submission(file, LIMITS.model_copy(update={"imports": ["numpy"]})):
        pass
    assert f"solution.py: {told}" in str(fault.value)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1", "cp1252"])
def test_a_file_may_have_any_encoding_that_python_runs(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "solution.py"
    cookie = "" if encoding == "utf-8-sig" else f"# -*- coding: {encoding} -*-\n"
    file.write_text(f"{cookie}def name():\n    return 'Zoë'\n", encoding=encoding)
    with Submission(file, LIMITS) as work:
        assert work.call("name") == "Zoë"


@pytest.mark.parametrize("name", sorted(names.MODULES))
def test_a_module_has_public_names_alone(name: str, solution: Written) -> None:
    """Else `dataclasses._create_fn` runs any text, and `random._os` leads to the interpreter."""
    line = f"from {name} import *" if name == "__future__" else f"import {name}"
    module = importlib.import_module(name)
    private = [one for one in vars(module) if one.startswith("_") and not one.startswith("__")]
    private += [one for one, value in vars(module).items() if isinstance(value, types.ModuleType) and one != "abc"]
    tried = "".join(f"    try:\n        {name}.{one}\n        found.append({one!r})\n    except AttributeError:\n"
                    "        pass\n" for one in private)  # fmt: skip
    file = solution(f"import {name}\n\n\ndef work():\n    found = []\n{tried}    return found\n")
    with Submission(file, LIMITS) as work:
        assert work.call("work") == [], line


COUNTED = """
import collections, dataclasses, typing
Point = dataclasses.make_dataclass("Point", ["x", "y"])
Pair = collections.namedtuple("Pair", "x y")
def many(): return [Point(i, i) for i in range(100)] and 0
def pairs(): return [Pair(i, i) for i in range(100)] and 0
"""


@pytest.mark.parametrize("function", ["many", "pairs"])
def test_functions_that_python_makes_of_texts_are_counted(function: str, solution: Written) -> None:
    with Submission(solution(COUNTED), LIMITS) as work:
        assert work.call(function) == 0
        assert work.steps > 100


TEXT_IN_A_NAME = """
import dataclasses
@dataclasses.dataclass
class Given:
    a: int = 0
field = dataclasses.fields(Given)[0]
field.name, field.compare = "a, FOUND.append(().__class__.__subclasses__())", True
shape = {"__dataclass_fields__": {"b": field}, "__dataclass_params__": type("P", (), {"frozen": False}), "a": 1}
FOUND = []
Made = dataclasses.dataclass(init=False, repr=False)(type("C", (type("B", (), shape),), {"__module__": __name__}))
Made() == Made()
"""


IMPORTED = "imports {}.*, and a lab's file may import .*, math, .*, typing[.]$"
DEEP = r"^solution\.py: an expression is nested too deeply"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("match work:\n    case object(__globals__=found):\n        pass\n", "line 2 has __globals__"),
        ("# coding: utf-7\n# +AAo-import os\n", "line 3 imports os"),  # what is looked at is what is run
        ("import math\nimport numpy as np\n", f"^solution.py: line 2 {IMPORTED.format('numpy')}"),
        ("from torch import nn\n", IMPORTED.format("torch")),
        ("import nowhere.at_all\n", IMPORTED.format("nowhere")),
        ("def add(:\n", r"SyntaxError.*solution\.py, line 1"),
        (f"x = {'-' * 1000}1\n", DEEP),
        (f"x = {'-' * 3000}1\n", DEEP),
        (f"x = {'-' * 100_000}1\n", DEEP),
        (TEXT_IN_A_NAME, "makes a function of has __subclasses__"),
    ],
)
def test_what_is_refused_when_a_file_is_read(text: str, told: str, solution: Written) -> None:
    with pytest.raises(StudentFault, match=told):
        Submission(solution(text), LIMITS).__enter__()


ORDINARY = """
import dataclasses, enum, functools, typing
@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Point:
    x: int
    ys: list = dataclasses.field(default_factory=list)
    def __post_init__(self): object.__repr__(self)
@dataclasses.dataclass(kw_only=True)
class Row(typing.Generic[typing.TypeVar("T")]):
    x: int = 3
class Pair(typing.NamedTuple):
    x: int
    y: int = 2
class Color(enum.Enum):
    RED = 1
def work():
    p = dataclasses.replace(Point(1), x=4)
    try:
        p.x = 5
    except dataclasses.FrozenInstanceError:
        return [p.x, Pair(1).y, Row().x, Color.RED.value, p < Point(9)]
"""


def test_ordinary_classes_are_made(solution: Written) -> None:
    with Submission(solution(ORDINARY), LIMITS) as work:
        assert work.call("work") == [4, 2, 3, 1, True]


@CONFINED
@pytest.mark.parametrize("path", [labs()[0].folder / "solution.py", Path(student.__file__)], ids=["lab", "package"])
def test_a_library_opens_no_way_to_solutions(path: Path, solution: Written) -> None:
    """Where the project is installed among the libraries that a lab may use, too."""
    assert path.is_file()
    file = solution(f"import numpy\n\n\ndef work():\n    return open({str(path)!r}).read()\n")
    limits = LIMITS.model_copy(update={"imports": ["numpy"]})
    with Submission(file, limits) as work, pytest.raises(StudentFault, match="Permission denied"):
        work.call("work")


ODD_ERRORS = """
class OutOfSteps(Exception): pass
class Silent(Exception):
    def __str__(self): raise self
def steps(): raise OutOfSteps("of mine")
def silent(): raise Silent
"""


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("steps", r"steps raised solution.OutOfSteps \(of mine\)"),
        ("silent", r"silent raised solution.Silent \(whose text"),
    ],
)
def test_errors_of_the_files_own_are_told(function: str, told: str, solution: Written) -> None:
    with Submission(solution(ODD_ERRORS), LIMITS) as work, pytest.raises(StudentFault, match=told):
        work.call(function)


def test_all_that_a_file_computes_has_one_limit(solution: Written) -> None:
    """The first test takes what all have together, and the others are not run: so a class is graded in finite time."""
    file, budget = solution("while True: pass\n"), Budget(1.0)
    for told in ("solution.py was stopped: all tests have 2 s together", "This was not run"):
        with pytest.raises(StudentFault, match=told):
            Submission(file, LIMITS, budget=budget).__enter__()
    assert budget.seconds <= 0


def test_what_takes_too_many_steps_is_not_asked_again() -> None:
    """Else a search for the smallest case takes as many steps hundreds of times."""
    with Submission(FILE, LIMITS, names=False) as work:
        for function in ("no_end", "add"):
            with pytest.raises(StudentFault, match="no_end took more than 100,000 steps"):
                work.call(function)


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


@pytest.mark.parametrize(
    ("value", "form", "told"),
    [
        ([[0, 4]], list[tuple[int, int]], None),
        ([[0, 4.5]], list[tuple[int, int]], "[0][1] is 4.5: Input should be a valid integer"),
        (True, int, "it is true: Input should be a valid integer"),
        (True, float, "it is true: Input should be a valid number"),
        (3, float, None),
        (None, int | None, None),
        ({"a": [1]}, dict[str, list[int]], None),
        ({"a": 1}, dict[str, list[int]], "a is 1: Input should be a valid array"),
        ("x", bool, 'it is "x": Input should be a valid boolean'),
        ("x", int | None, 'it is "x": Input should be a valid integer'),
    ],
)
def test_values_of_another_type_are_refused(value: Any, form: Any, told: str | None) -> None:
    if told is None:
        assert check_form(value, form, "f") == value
    else:
        with refusal(StudentFault, told):
            check_form(value, form, "f")

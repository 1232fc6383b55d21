"""What students are given, and what graders get."""

from __future__ import annotations

import base64
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from full_disk import full_disk

from minifuse.core.errors import MachineError, UsageError
from minifuse.labs import handout
from minifuse.labs.autograder import autograder_files, grade, make_autograder
from minifuse.labs.handout import handed_out, write_files
from minifuse.labs.lab import Lab, labs, read_lab
from minifuse.labs.skeleton import solution_lines
from minifuse.labs.submission import identity

LABS = labs()
SHUFFLE = next(lab for lab in LABS if lab.number == 4)
RIGHT = (SHUFFLE.folder / "solution.py").read_text()


@cache
def handed_out_once(number: int) -> dict[str, str]:
    """What is handed out of a lab: for lab 9, a process imports torch to see that its skeleton can be imported."""
    return handed_out(LABS[number - 1])


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.folder.name)
def test_a_handout_has_the_public_part_alone(lab: Lab, tmp_path: Path) -> None:
    write_files(handed_out_once(lab.number), tmp_path / "lab")
    given = {path.relative_to(tmp_path / "lab").as_posix() for path in (tmp_path / "lab").rglob("*") if path.is_file()}
    assert {"README.md", "lab.toml", "solution.py"} <= given
    assert any(name.startswith("tests/public/") for name in given)
    assert not [name for name in given if "hidden" in name or "wrong" in name]
    copy = read_lab(tmp_path / "lab")
    assert [test.name for test in copy.tests()] == [test.name for test in lab.tests(hidden=False)]
    assert copy.points == lab.points
    assert copy.wrong == {}


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.folder.name)
def test_withheld_modules_exist(lab: Lab) -> None:
    assert [name for name in lab.limits.withheld if find_spec(name) is None] == []


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.folder.name)
def test_no_line_of_any_solution_is_handed_out(lab: Lab) -> None:
    files = handed_out_once(lab.number)
    text = "\n".join(files.values())
    given = {line.strip() for line in text.splitlines()}
    for other in LABS:
        secret = solution_lines((other.folder / "solution.py").read_text())
        assert secret, other.folder
        assert not given & secret
    assert "SOLUTION" not in re.sub("# BEGIN SOLUTION or # END SOLUTION", "", files["solution.py"])


def test_a_line_that_leaks_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(SHUFFLE.folder, tmp_path / "04-leaks")
    line = sorted(solution_lines((folder / "solution.py").read_text()))[0]
    with (folder / "README.md").open("a") as file:
        file.write(f"\n    {line}\n")
    with pytest.raises(UsageError, match=r"README\.md of lab 4 has a line of the solution of lab 4"):
        handed_out(read_lab(folder))


def test_a_skeleton_that_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(SHUFFLE.folder, tmp_path / "04-broken")
    with (folder / "solution.py").open("a") as file:
        file.write("\n\n# BEGIN SOLUTION\nONE_OF_THE_REFERENCE = 1\n# END SOLUTION\nTWO = 2 * ONE_OF_THE_REFERENCE\n")
    with pytest.raises(UsageError, match=r"cannot be imported: solution\.py raised NameError .*Move a marker\."):
        handed_out(read_lab(folder))


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "solution.py").write_text("mine")
    with pytest.raises(UsageError, match="is left as it is"):
        write_files({"solution.py": "theirs"}, tmp_path)
    assert (tmp_path / "solution.py").read_text() == "mine"


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.folder.name)
def test_an_autograder_has_hidden_tests_and_no_solution(lab: Lab) -> None:
    files = autograder_files(lab, "a secret")
    assert any(name.startswith("lab/tests/hidden/") for name in files)
    assert "NotImplementedError" in files["lab/solution.py"]
    assert ("torch" in files["requirements.txt"]) == (lab.number in (1, 9) and "torch" in lab.limits.imports)
    assert files["run_autograder"].startswith("#!/usr/bin/env bash\n")


# What is measured is the high-water mark of a process's own memory: the maximum that the system tells of a child,
# ru_maxrss, has that of the process which started it, too.
MEASURE = """
import atexit
from minifuse.labs.submission import Submission

sys.modules["torch"] = None
peaks = {"grader": 0, "submission": 0}

def note(name, process):
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:  # it has ended
        return
    found = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
    peaks[name] = max([peaks[name], *found])

def ends(self, *how, ended=Submission.__exit__):
    note("submission", self._process.pid)
    ended(self, *how)

def told():
    note("grader", "self")
    print(*peaks.values())

Submission.__exit__ = ends
atexit.register(told)
"""


@pytest.fixture(scope="module")
def grader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grader that measures memory, and tries fewer scenarios than that of the course."""
    folder = tmp_path_factory.mktemp("grader") / "ag"
    make_autograder(SHUFFLE, folder, "a secret of the course")
    text, begin = (folder / "grade.py").read_text(), "from minifuse.labs.autograder import main\n"
    assert begin in text
    (folder / "grade.py").write_text(text.replace(begin, MEASURE + begin))
    tests = folder / "lab" / "tests" / "hidden" / "properties.py"
    text, laws = tests.read_text(), "keeps_the_laws(work, ROW, Shuffled)"
    assert laws in text
    text = text.replace(laws, f"{laws[:-1]}, 3)")
    properties = "work.smallest(memories(), demand)"
    assert text.count(properties) == 3
    tests.write_text(text.replace(properties, f"{properties[:-1]}, 30)"))
    return folder


@pytest.fixture(scope="module")
def impatient(grader: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grader that gives each file a second for all tests."""
    folder = shutil.copytree(grader, tmp_path_factory.mktemp("impatient") / "ag")
    toml = folder / "lab" / "lab.toml"
    toml.write_text(toml.read_text().replace("[limits]\n", "[limits]\nseconds = 1\n"))
    return folder


def graded(grader: Path, place: Path, text: str = RIGHT, code: int = 0) -> dict:  # type: ignore[type-arg]
    """The results of a submission of this text."""
    (place / "in").mkdir()
    (place / "in" / "solution.py").write_text(text)
    command = [sys.executable, "-I", str(grader / "grade.py"), "--submission", str(place / "in")]
    command += ["--results", str(place / "results.json"), "--classroom", str(place / "classroom.txt")]
    ran = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stderr
    peaks = [int(one) for one in ran.stdout.splitlines()[-1].split()]
    return {**json.loads((place / "results.json").read_text()), "peaks": peaks, "told": ran.stderr}


def test_it_grades_without_torch_in_768_mb(grader: Path, tmp_path: Path) -> None:
    results = graded(grader, tmp_path)
    assert results["score"] == sum(SHUFFLE.points.values())
    assert {one["name"].replace(" ", "_") for one in results["tests"]} == SHUFFLE.points.keys()
    hidden = {test.name for test in SHUFFLE.tests() if test.hidden}
    shown = {one["name"].replace(" ", "_") for one in results["tests"] if one["visibility"] == "visible"}
    assert shown == SHUFFLE.points.keys() - hidden
    told = json.loads(base64.b64decode((tmp_path / "classroom.txt").read_text()))
    assert told["status"] == "pass"
    assert told["max_score"] == results["score"]
    assert 0 < sum(results["peaks"]) < 768 << 10
    assert "submissions are kept from the hidden tests by " in results["told"]


def test_what_a_submission_takes_is_measured(impatient: Path, tmp_path: Path) -> None:
    assert graded(impatient, tmp_path, f"{RIGHT}\nheld = bytearray(300 << 20)\n")["peaks"][1] > 300 << 10


def test_a_grader_that_fails_gives_no_points(grader: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(grader, tmp_path / "ag")
    tests = folder / "lab" / "tests" / "hidden" / "properties.py"
    tests.write_text(tests.read_text().replace("SIZES = (", "SIZES = (1 // len([]), "))
    results = graded(folder, tmp_path, code=2)
    assert (results["score"], results["tests"]) == (0, [])
    assert "The grader failed" in results["output"]
    assert "ZeroDivisionError" in results["told"]


def test_a_full_disk_is_a_sentence_of_the_grader(impatient: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "solution.py").write_text("")
    command = [sys.executable, "-I", "-B", str(impatient / "grade.py")]  # without compiled modules, which would be cut
    command += ["--submission", str(tmp_path / "in"), "--results"]
    with full_disk(1000):
        ran = subprocess.run([*command, str(tmp_path / "r.json")], capture_output=True, text=True, check=False)
    assert ran.returncode == MachineError.exit_code
    assert re.fullmatch(r"note: .*\nerror: .*r\.json.*\n", ran.stderr), ran.stderr
    assert not (tmp_path / "r.json").exists()


def test_bad_input_of_a_grader_is_a_sentence(grader: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(grader, tmp_path / "ag")

    def refused(results: Path) -> str:
        command = [sys.executable, "-I", str(folder / "grade.py"), "--submission", str(tmp_path), "--results"]
        ran = subprocess.run([*command, str(results)], capture_output=True, text=True, check=False)
        assert ran.returncode == 2
        assert ran.stderr.startswith("error: ")
        return ran.stderr

    assert refused(tmp_path / "no" / "r.json") == f"error: {tmp_path / 'no'} is no folder: give one that is there.\n"
    (folder / "secret.txt").write_text("\n")
    assert "secret.txt is empty: make the folder again" in refused(tmp_path / "r.json")
    (folder / "secret.txt").unlink()
    assert "secret.txt cannot be used" in refused(tmp_path / "r.json")


def test_another_user_has_no_group_of_the_grader() -> None:
    if os.getuid() != 0:
        pytest.skip("only root gives a process to another user")
    code = "import os; print(os.getuid(), os.getgid(), os.getgroups())"
    ran = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", code], **identity("nobody"), capture_output=True, text=True, cwd="/"
    )
    user = pwd.getpwnam("nobody")
    assert ran.stdout.split() == [str(user.pw_uid), str(user.pw_gid), "[]"]


HOSTILE = {
    "prints": "import sys\nprint('{\"score\": 100}')\nsys.exit(0)\n",
    "exits": "import os\nos._exit(0)\n",
    "patches": "import minifuse.labs.judge as judge\njudge.judge = lambda *a, **k: []\n",
    "reads": "print(open('{grader}/lab/tests/hidden/properties.py').read())\n",
    "loops at the end": "import itertools\nmoves = window_offset = lambda *all: sum(itertools.repeat(1))\n",
    "nothing": "",
    "secret": "raise ValueError(open('{grader}/secret.txt').read())\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_submission_gets_nothing(name: str, impatient: Path, tmp_path: Path) -> None:
    right = "" if name == "nothing" else RIGHT
    results = graded(impatient, tmp_path, right + HOSTILE[name].replace("{grader}", str(impatient)))
    assert results["score"] == 0
    assert [one["score"] for one in results["tests"]] == [0] * len(SHUFFLE.points)
    assert "def test_" not in json.dumps(results)
    assert "a secret of the course" not in json.dumps(results)


def test_a_submission_needs_one_file(tmp_path: Path) -> None:
    assert "There are 0 files solution.py" in grade(SHUFFLE, tmp_path, "s")["output"]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "solution.py").write_text("")
    assert "There are 2 files solution.py" in grade(SHUFFLE, tmp_path, "s")["output"]


def test_handouts_are_of_the_labs_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handout, "labs", lambda: [SHUFFLE.model_copy()])
    assert handed_out(SHUFFLE)["solution.py"]

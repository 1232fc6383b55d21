"""Every lab: the reference gets all points, the skeleton none, each wrong solution fails what it is wrong in."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from minifuse.core.plan import Move
from minifuse.labs import judge as judging
from minifuse.labs.judge import Outcome, Work, judge
from minifuse.labs.lab import Lab, labs, read_lab
from minifuse.labs.skeleton import skeleton
from minifuse.labs.submission import StudentFault, Submission
from minifuse.show.page import write_page
from minifuse.show.traced_runs import TracedRun
from minifuse.testing.search import Search

LABS = labs()
SHUFFLE = next(lab for lab in LABS if lab.number == 4)
WRONG = [(lab, name) for lab in LABS for name in lab.wrong]
FEW = 5  # scenarios of the laws, where others judge the solution
LONGEST = (6, 7, 9)  # take as long as all others together, and run with the wrong solutions
every_lab = pytest.mark.parametrize(
    "lab",
    [
        pytest.param(lab, id=lab.folder.name, marks=pytest.mark.tutorials if lab.number in LONGEST else ())
        for lab in LABS
    ],
)


def outcomes(lab: Lab, file: Path, seed: str = "ci") -> list[Outcome]:
    found = judge(lab, file, seed=seed)
    assert [one.what for one in found if one.broke] == []
    return found


@pytest.fixture
def reference_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose solution.py may import the reference that lies beside it, as wrong solutions do."""
    monkeypatch.setattr(judging, "Work", partial(Work, names=False))
    return tmp_path


def fails(lab: Lab, name: str) -> set[str]:
    """The tests that a wrong solution fails."""
    tests = lab.wrong[name]
    return {tests} if isinstance(tests, str) else {*tests}


def failures(lab: Lab, name: str, folder: Path, seed: str) -> dict[str, str]:
    """The tests that a wrong solution fails, and what is told of each."""
    shutil.copy(lab.folder / "solution.py", folder / "reference.py")
    file = shutil.copy(lab.folder / "wrong" / f"{name}.py", folder / "solution.py")
    return {one.test.name: one.what for one in outcomes(lab, file, seed) if not one.held}


@pytest.mark.tutorials  # a minute for all labs, and the wrong solutions run there, too
@every_lab
def test_the_reference_gets_all_points(lab: Lab, tmp_path: Path) -> None:
    file = shutil.copy(lab.folder / "solution.py", tmp_path / "solution.py")
    assert {one.test.name: one.what for one in outcomes(lab, file) if not one.held} == {}


@every_lab
def test_the_skeleton_gets_none(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "solution.py"
    file.write_text(skeleton((lab.folder / "solution.py").read_text()))
    found = outcomes(lab, file)
    assert [one.test.name for one in found if one.held or not one.unwritten] == []


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.folder.name)
def test_there_are_five_wrong_solutions_and_more(lab: Lab) -> None:
    assert {path.stem for path in (lab.folder / "wrong").glob("*.py")} == lab.wrong.keys()
    assert len(lab.wrong) >= 5


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.folder.name)
def test_what_to_read_again_is_told_of_every_test(lab: Lab) -> None:
    told = tomllib.loads((lab.folder / "lab.toml").read_text())
    assert told["read"].keys() == told["points"].keys()


def test_a_lab_with_torch_has_a_limit_of_memory_too(tmp_path: Path) -> None:
    (lab,) = [lab for lab in LABS if lab.number == 9]
    assert "torch" in lab.limits.imports
    file = tmp_path / "solution.py"
    file.write_text("def held(size):\n    return len(bytearray(size))\n")
    with Submission(file, lab.limits) as work:
        assert work.call("held", 10**8) == 10**8
        with pytest.raises(StudentFault, match="took more than 512 MB of memory"):
            work.call("held", 10**10)


@pytest.mark.tutorials
def test_labs_2_to_8_need_no_torch() -> None:
    code = (
        "import sys\nsys.modules['torch'] = sys.modules['triton'] = None\n"
        "from minifuse.labs.judge import judge\n"
        "from minifuse.labs.lab import labs\n"
        "from minifuse.labs.score import scores\n"
        "from minifuse.testing.search import Search\n"
        "run = Search.run\n"
        f"Search.run = lambda self, examples, seed: run(self, {FEW}, seed)\n"
        "for lab in labs()[1:8]:\n"
        "    file = lab.folder / 'solution.py'\n"
        "    assert all(one.held for one in judge(lab, file)), lab\n"
        "    assert scores(lab, {'mine': file}).rows, lab\n"
        "    print(lab.number)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.split() == ["2", "3", "4", "5", "6", "7", "8"], ran.stderr


def test_a_run_of_graphs_that_is_not_right_has_a_page(reference_beside: Path) -> None:
    """Lab 5 runs an engine of its own, whose events could once be read one time only: the page had none."""
    (lab,) = [one for one in LABS if one.number == 5]
    shutil.copy(lab.folder / "solution.py", reference_beside / "reference.py")
    file = reference_beside / "solution.py"
    file.write_text(
        "import reference\n\n\nclass Scheduler(reference.Scheduler):\n"
        "    def __init__(self, types, max_tasks):\n"
        "        super().__init__({name: {**one, 'priority': 0} for name, one in types.items()}, max_tasks)\n"
    )
    (found,) = judge(lab, file, only="runs_in_the_engine")
    assert not found.held
    assert found.events is not None
    page = reference_beside / "page.html"
    write_page([TracedRun("solution", found.events)], page)
    assert "encoder" in page.read_text()


@pytest.mark.tutorials
@pytest.mark.parametrize(
    "lab", [lab for lab in LABS if "keeps_the_laws" in lab.points], ids=lambda lab: lab.folder.name
)
def test_what_is_not_written_is_missed_whatever_is_drawn(lab: Lab, tmp_path: Path) -> None:
    """Few of the scenarios of lab 4 shuffle, so that with some seeds its laws held without a function that does it."""
    file = tmp_path / "solution.py"
    file.write_text("\n")
    for seed in ("s0", "s12"):
        (found,) = judge(lab, file, seed=seed, only="keeps_the_laws")
        assert not found.held


CHEATS = {  # of lab 9: attention without a kernel
    "launcher": "def plain(queries, *rest):\n    return queries\n\n\nattention = plain\n",
    "again": "def attention(queries, keys, values, tables, contexts, page):\n    return queries\n",
    "kernel": "class Plain:\n    pass\n\n\nattend = Plain()\n",
    "function": "def attend(*all):\n    return None\n",
    "decorator": "def mine(kernel):\n    return None\n\n\n@mine\n@triton.jit\ndef attend(out_ptr):\n    pass\n",
    "module": "import math as triton\n",
    "attribute": "def change():\n    triton.cdiv = None\n",
    "global": "def change():\n    global attend\n    attend = None\n",
    "torch": "def helper(x):\n    return torch.softmax(x, 0)\n",
    "another torch": "import torch as t\n",
    "from torch": "from torch import softmax\n",
    "statement": "if True:\n    attend = None\n",
}


@pytest.mark.parametrize("name", CHEATS)
def test_lab_9_wants_a_kernel(name: str, tmp_path: Path) -> None:
    (lab,) = [lab for lab in LABS if lab.number == 9]
    check = vars(lab.module(lab.folder / "stage.py"))["check_kernel"]
    file = tmp_path / "solution.py"
    text = (lab.folder / "solution.py").read_text()
    file.write_text(text)
    check(Work(file, lab=lab))
    file.write_text(f"{text}\n\n{CHEATS[name]}")
    with pytest.raises(StudentFault):
        check(Work(file, lab=lab))


@pytest.mark.tutorials  # these take longer than all others of labs together
@pytest.mark.parametrize(("lab", "name"), WRONG, ids=lambda one: one if isinstance(one, str) else one.folder.name)
def test_a_wrong_solution_fails_what_it_is_wrong_in(
    lab: Lab, name: str, reference_beside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The laws are most of the time: a solution that keeps them is tried on few scenarios."""
    if "keeps_the_laws" not in fails(lab, name):
        run = Search.run
        monkeypatch.setattr(Search, "run", lambda self, examples, seed: run(self, FEW, seed))
    failed = failures(lab, name, reference_beside, "ci")
    assert failed.keys() == fails(lab, name), failed


@pytest.mark.long  # an hour: once a release
@pytest.mark.parametrize("secret", range(50))
@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.folder.name)
def test_the_reference_gets_all_points_whatever_the_secret(lab: Lab, secret: int, tmp_path: Path) -> None:
    file = shutil.copy(lab.folder / "solution.py", tmp_path / "solution.py")
    found = outcomes(lab, file, f"secret {secret}")
    assert {one.test.name: one.what for one in found if not one.held} == {}


@pytest.mark.long  # an hour: once a release
@pytest.mark.parametrize("secret", range(10))
@pytest.mark.parametrize(("lab", "name"), WRONG, ids=lambda one: one if isinstance(one, str) else one.folder.name)
def test_a_wrong_solution_fails_whatever_the_secret(lab: Lab, name: str, secret: int, reference_beside: Path) -> None:
    """It fails a test that it is wrong in; the laws, whose scenarios are drawn, may tell of it as well."""
    failed = failures(lab, name, reference_beside, f"secret {secret}").keys()
    assert failed & fails(lab, name)
    assert failed <= fails(lab, name) | {"keeps_the_laws"}


def test_a_file_that_never_ends_is_graded_in_finite_time(tmp_path: Path) -> None:
    """Lines are not counted in a loop of one line: the first test takes the limit of all, and no other is run."""
    folder = shutil.copytree(SHUFFLE.folder, tmp_path / "lab")
    toml = (folder / "lab.toml").read_text()
    (folder / "lab.toml").write_text(toml.replace("steps = 200000", "steps = 200000\nseconds = 1"))
    (folder / "solution.py").write_text("while True: pass\n")
    first, *others = judge(read_lab(folder), folder / "solution.py")
    assert "was stopped: all tests have 1 s together" in first.what
    assert others
    assert all("This was not run" in one.what and not one.points for one in others)


def test_a_target_on_the_device_is_no_block_of_the_host() -> None:
    """Lab 6 once looked for a chunk's copy by the target of any move: one to the device may have the same number."""
    (lab,) = [lab for lab in LABS if lab.number == 6]
    tiers = object.__new__(lab.module(lab.folder / "stage.py").ValuedTiers)
    dropped, newcomer = Mock(arriving=True), Mock(host=None)
    tiers.size, tiers.by_host_block, tiers.free = 4, {3: dropped}, lambda chunk: None
    tiers.on_host, tiers.host = SimpleNamespace(chunks={}), SimpleNamespace(take=lambda: 3)
    upload = Move("swap_in", 40, 12, 4, source_tier="host")
    moves = [upload, Move("swap_out", 0, 12, 4, target_tier="host")]
    tiers._give_host_block(newcomer, dropped, moves)
    assert (moves, newcomer.host, dropped.arriving) == ([upload], 3, False)


def test_a_test_that_breaks_is_told_and_the_others_are_judged(tmp_path: Path) -> None:
    files = {
        "README.md": "",
        "lab.toml": "number = 99\ntitle = 'one'\nchapter = 1\n[points]\nbreaks = 60\nholds = 40\n",
        "solution.py": "def names():\n    return {}\n",
        "tests/public/both.py": "def test_breaks(work):\n    'It has a name.'\n    work.call('names')['ann']\n\n\n"
        "def test_holds(work):\n    'It has none.'\n    assert work.call('names') == {}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    breaks, holds = judge(read_lab(tmp_path), tmp_path / "solution.py")
    assert (breaks.held, breaks.broke, holds.held, holds.broke) == (False, True, True, False)
    assert "could not be finished: it failed at tests/public/both.py, line 3, with KeyError ('ann')" in breaks.what

"""`minifuse lab`: a student's way from the start to points, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from registers import forget_labs

from minifuse.labs.judge import Work
from minifuse.labs.lab import labs
from minifuse.labs.skeleton import skeleton
from minifuse.memory.slots import shuffle
from minifuse.testing.search import Search

Cli = Callable[..., Any]
SHUFFLE = next(lab for lab in labs() if lab.number == 4)
PUBLIC = {"windows_by_hand", "moves_by_hand", "moves_in_order", "runs_in_the_engine"}
POINTS = sum(SHUFFLE.points[name] for name in PUBLIC)


@pytest.fixture(autouse=True)
def folder(own_register: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget_labs()


def solved(folder: Path) -> None:
    shutil.copy(SHUFFLE.folder / "solution.py", folder / "solution.py")


def test_labs_are_listed(minifuse: Cli) -> None:
    assert "04  The memory shuffle (after chapter 6" in minifuse("lab", "list").out
    assert 4 in [one["number"] for one in minifuse("lab", "list", "--json").json()["labs"]]


def test_without_a_command_there_is_help(minifuse: Cli) -> None:
    outcome = minifuse("lab")
    assert outcome.code == 0
    assert "autograder" in outcome.out


def test_a_lab_is_started_checked_and_solved(minifuse: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search.run  # few cases: that the reference holds in all of them is a test of the labs
    monkeypatch.setattr(Search, "run", lambda self, scenarios, seed: search(self, 1, seed))
    monkeypatch.setattr(Work, "smallest", partialmethod(Work.smallest, examples=2))
    assert minifuse("lab", "start", "4", "mine").code == 0
    before = minifuse("lab", "check", "mine")
    assert before.code == 1
    assert before.out.count("not written ") - before.out.count("is not written ") == len(PUBLIC)
    assert f"0 of {POINTS:g} points" in before.out
    solved(folder / "mine")
    after = minifuse("lab", "check", "mine")
    assert (after.code, after.out.count("holds ")) == (0, len(PUBLIC))
    assert f"{POINTS:g} of {POINTS:g} points in 4 tests. The hidden tests have {100 - POINTS:g} more." in after.out
    every = minifuse("lab", "check", "mine", "--hidden", "--json").json()["tests"]
    assert {one["name"] for one in every} == SHUFFLE.points.keys()
    assert all(one["held"] for one in every)


def test_what_fails_is_told_with_a_case_and_what_to_read(minifuse: Cli, folder: Path) -> None:
    minifuse("lab", "start", "04", "mine")
    text = (SHUFFLE.folder / "solution.py").read_text().replace("return offset", "print('here')\n    return 0")
    (folder / "mine" / "solution.py").write_text(text)
    outcome = minifuse("lab", "check", "mine", "--only", "windows_by_hand")
    told = " ".join(outcome.out.split())
    assert outcome.code == 1
    assert "is 0, and should be 7." in told
    assert "Read again: the README, 'Background'" in told
    assert "Your file printed: here" in told


def test_what_no_test_gets_past_is_told_once(minifuse: Cli, folder: Path) -> None:
    minifuse("lab", "start", "04", "mine")
    (folder / "mine" / "solution.py").write_text("def moves(:\n")
    outcome = minifuse("lab", "check", "mine")
    assert outcome.code == 1
    assert outcome.out.count("SyntaxError") == 1
    assert outcome.out.count("As above.") == len(PUBLIC) - 1


def test_a_file_beside_is_refused(minifuse: Cli, folder: Path) -> None:
    minifuse("lab", "start", "04", "mine")
    solved(folder / "mine")
    (folder / "mine" / "solution.py").rename(folder / "mine" / "more.py")
    (folder / "mine" / "solution.py").write_text("from more import *\n")
    outcome = minifuse("lab", "check", "mine", "--only", "moves_in_order")
    assert (outcome.code, "line 1 imports more" in " ".join(outcome.out.split())) == (1, True)


def test_a_run_that_is_wrong_is_a_replay_page(minifuse: Cli, folder: Path) -> None:
    minifuse("lab", "start", "04", "mine")
    text = (SHUFFLE.folder / "solution.py").read_text()
    (folder / "mine" / "solution.py").write_text(text + "\n\ndef moves(live, stays):\n    return []\n")
    outcome = minifuse("lab", "check", "mine", "--only", "runs_in_the_engine")
    assert "runs_in_the_engine.html, in a browser" in " ".join(outcome.out.split())
    assert (folder / "mine" / "runs_in_the_engine.html").stat().st_size > 10_000


def test_a_class_is_scored(minifuse: Cli, folder: Path) -> None:
    for name in ("ann", "bob"):
        minifuse("lab", "start", "04", name)
        solved(folder / name)
    (folder / "bob" / "solution.py").write_text("raise SystemExit\n")
    outcome = minifuse("lab", "score", "ann", "bob")
    assert outcome.code == 1
    assert "ann" in outcome.out
    assert "error: bob has no score: solution.py raised SystemExit" in outcome.err
    told = minifuse("lab", "score", "ann", "--json").json()
    assert told["rows"].keys() == {"ann"}
    assert len(told["baselines"]) >= 2


def handed_in(folder: Path, name: str, text: str) -> str:
    """What an instructor has of a student: the one file."""
    (folder / "hand-ins" / name).mkdir(parents=True)
    (folder / "hand-ins" / name / "solution.py").write_text(text)
    return f"hand-ins/{name}"


def test_what_students_hand_in_is_scored(minifuse: Cli, folder: Path) -> None:
    text = (SHUFFLE.folder / "solution.py").read_text()
    places = [handed_in(folder, name, text) for name in ("ann", "bob")]
    assert minifuse("lab", "score", *places, "--json").json()["rows"].keys() == {*places}
    file = folder / "eve.py"
    file.write_text(text.replace('"""Lab 4', '"""My lab'))
    minifuse("lab", "score", "eve.py").refused("These do not say which lab they are of: give --lab NN.")
    assert minifuse("lab", "score", "eve.py", "--lab", "4", "--json").json()["rows"].keys() == {"eve.py"}


RENAMED = [("live", "buffers"), ("offset", "begin"), ("count", "number"), ("best", "least")]
ANOTHER = '''"""Lab 4: the memory shuffle."""


def window_offset(live, stays):
    number = live.count(True)
    places = range(max(0, 0 if stays is None else stays - number + 1), len(live) - number + 1)
    return max([place for place in places if stays is None or place <= stays], key=lambda k: sum(live[k : k + number]))


def moves(live, stays):
    k, number = window_offset(live, stays), live.count(True)
    holes = [place for place in range(k, k + number) if not live[place]]
    for place in range(len(live)):
        if live[place] and not k <= place < k + number:
            yield place, holes.pop(0)
'''


def test_what_is_alike_in_a_class_is_told(minifuse: Cli, folder: Path) -> None:
    text = (SHUFFLE.folder / "solution.py").read_text()
    renamed = text
    for old, new in RENAMED:
        renamed = renamed.replace(old, new)
    assert renamed != text
    given = skeleton(text)
    chapter = (SHUFFLE.folder.parents[1] / "06_the_memory_shuffle.py").read_text()
    shown = chapter[chapter.index("# BEGIN SOLUTION") : chapter.index("# END SOLUTION")]
    own = Path(shuffle.__file__).read_text()
    texts = {"ann": ANOTHER, "bob": renamed + "# mine\n", "eve": given, "zoe": "def moves(\n"}
    texts |= {"kim": f"if True:\n{shown}", "lea": own}
    places = [handed_in(folder, name, one) for name, one in texts.items()]
    pairs = minifuse("lab", "similar", *places, "--lab", "4", "--json").json()["pairs"]
    alike = {frozenset((one["one"], one["other"])) for one in pairs if one["ratio"] > 0.5}
    assert alike == {
        frozenset(("(reference)", "hand-ins/bob")),
        frozenset(("tutorials/06_the_memory_shuffle.py", "hand-ins/kim")),
        frozenset(("minifuse/memory/slots/shuffle.py", "hand-ins/lea")),
    }
    assert all(one["shared"] == 0 for one in pairs if "hand-ins/eve" in (one["one"], one["other"]))
    assert minifuse("lab", "similar", *places).out.startswith("100% ")


def test_handouts_and_autograders_are_folders(minifuse: Cli, folder: Path) -> None:
    assert minifuse("lab", "handout", "4", "-o", "given").code == 0
    assert not (folder / "given" / "tests" / "hidden").exists()
    assert minifuse("lab", "autograder", "4", "-o", "ag", "--secret", "s3cret").code == 0
    assert (folder / "ag" / "secret.txt").read_text() == "s3cret\n"
    assert (folder / "ag" / "run_autograder").stat().st_mode & 0o111


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["start", "44"], "There is no lab '44'"),
        (["start"], "No lab is named"),
        (["check", "nowhere"], "nowhere has no README.md"),
        (["handout", "4"], "-o is missing"),
        (["autograder", "x", "-o", "y"], "There is no lab 'x'"),
        (["score", "nowhere"], "nowhere is not there"),
        (["score", "."], ". has no hand-in: it has no file solution.py. Give folders with one"),
        (["score", "mine", "--lab", "44"], "There is no lab '44'"),
        (["similar"], "No hand-ins are named"),
        (["similar", "nowhere"], "nowhere is not there"),
        (["handout", "4", "-o", ""], "-o is missing"),
        (["autograder", "4", "-o", "y", "--secret", " "], "--secret is empty"),
        (["check", "mine", "--seed", ""], "--seed is empty"),
        (["score", "mine", "--seed", ""], "--seed is empty"),
        (["score", "mine", "eighth"], "These are of the labs [4, 8]: give --lab NN."),
    ],
)
def test_bad_input_is_one_sentence(typed: list[str], told: str, minifuse: Cli) -> None:
    if "mine" in typed:
        minifuse("lab", "start", "4", "mine")
        minifuse("lab", "start", "8", "eighth")
    minifuse("lab", *typed).refused(told)


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        ("lab.toml", "number = 4", 'number = "four"', 'lab.toml: number is "four": Input should be a valid integer.'),
        ("lab.toml", "number = 4", "x = [", "is no TOML"),
        ("lab.toml", "chapter = 6", "", "lab.toml: chapter is missing: give it."),
        ("lab.toml", "chapter = 6", "chapter = 6\npages = 3", 'lab.toml: unknown field "pages": give number, title,'),
        ("lab.toml", "windows_by_hand = 10", 'windows_by_hand = "ten"', 'points.windows_by_hand is "ten": Input'),
        ("lab.toml", "steps = 200000", "steps = 2.5", "lab.toml: limits.steps is 2.5: Input should be a valid integer"),
        ("lab.toml", "steps = 200000", "minutes = 2", 'lab.toml: unknown field "minutes": give steps, memory_mb,'),
        ("stage.py", "import", "import nothing_of_this_name, ", "stage.py cannot be imported (ImportError"),
        ("tests/public/by_hand.py", "FIG_6 =", "FIG_6 = 1 / 0 #", "by_hand.py cannot be imported (ZeroDivisionError"),
        ("tests/public/by_hand.py", "def test_", "def check_", "has no tests"),
    ],
)
def test_a_lab_that_is_broken_is_one_sentence(
    name: str, old: str, new: str, told: str, minifuse: Cli, folder: Path
) -> None:
    minifuse("lab", "start", "4", "mine")
    file = folder / "mine" / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    minifuse("lab", "check", "mine").refused(told)


def test_a_solution_that_cannot_be_read_is_told(minifuse: Cli, folder: Path) -> None:
    minifuse("lab", "start", "4", "mine")
    (folder / "mine" / "solution.py").write_bytes(b"x = '\xe9'\n")
    outcome = minifuse("lab", "check", "mine", "--only", "windows_by_hand")
    assert outcome.code == 1
    assert "SyntaxError" in outcome.out
    (folder / "mine" / "solution.py").unlink()
    minifuse("lab", "check", "mine").refused("mine has no solution.py")


def test_a_test_that_is_not_there_is_named(minifuse: Cli) -> None:
    minifuse("lab", "start", "4", "mine")
    minifuse("lab", "check", "mine", "--only", "windows").refused("which is no test of this lab", "windows_by_hand")


def test_work_is_never_overwritten(minifuse: Cli, folder: Path) -> None:
    minifuse("lab", "start", "4", "mine")
    minifuse("lab", "start", "4", "mine").refused("is left as it is")


def test_a_student_without_a_file_does_not_stop_the_class(minifuse: Cli, folder: Path) -> None:
    for name in ("ann", "bob", "cy"):
        (folder / "class" / name).mkdir(parents=True)
    solved(folder / "class" / "ann")
    (folder / "class" / "bob" / "solution.py").write_text("")
    typed = ("--lab", "4", "class/ann", "class/bob", "class/cy")
    scored = minifuse("lab", "score", *typed)
    assert scored.code == 1
    assert "class/cy has no score: it has no file solution.py.\n" in scored.err
    assert "class/ann" in scored.out
    alike = minifuse("lab", "similar", *typed)
    assert alike.code == 0
    assert "class/cy is left out: it has no file solution.py.\n" in alike.err

"""Makes a folder that grades one lab, on Gradescope and in GitHub Classroom.

The folder holds the lab with its hidden tests and without its solution, the part of minifuse that judges (it needs no
torch), and the course's secret, from which hidden workloads are drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from base64 import b64encode
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from minifuse.core.errors import MachineError, MinifuseError, UsageError
from minifuse.ctrl_c import SIGNALS
from minifuse.io.output import write_whole
from minifuse.io.shipped import HOME
from minifuse.labs import confine, guard, names, student
from minifuse.labs.handins import SUBMITTED, files_in
from minifuse.labs.handout import handed_out, write_files
from minifuse.labs.judge import Outcome, judge
from minifuse.labs.lab import Lab, read_lab
from minifuse.labs.score import scores
from minifuse.labs.submission import Budget, identity

NOBODY = "nobody"
FAILED = "The grader failed, and there are no points: your instructor can see why in its output."
LEFT_OUT = ("tutorials", "cli", "papers", "notebook", "page", "perfetto", "tiny")  # of minifuse: not needed to judge
REQUIREMENTS = ("numpy>=2.0", "hypothesis>=6.120", "rich>=13.7", "pydantic>=2.10")
WITH_TORCH = ("torch>=2.11", "triton>=3.6")

GRADER = Path(__file__).with_name("grader")  # files that are copied as they are
GRADE = '''"""Grades a submission: python grade.py --submission FOLDER --results FILE.json [--classroom FILE]"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from minifuse.labs.autograder import main

sys.exit(main(HERE, sys.argv[1:]))
'''


def autograder_files(lab: Lab, secret: str) -> dict[str, str]:
    """Make the folder's files, except minifuse's own: path -> text."""
    hidden = sorted((lab.folder / "tests" / "hidden").glob("*.py"))
    if not hidden:
        raise UsageError(f"{lab.folder} has no hidden tests: give the number of a lab, as minifuse lab list shows.")
    files = {f"lab/{name}": text for name, text in handed_out(lab).items()}
    kept = [*hidden, *(lab.folder / "tests").glob("open.py")]
    files |= {f"lab/{path.relative_to(lab.folder).as_posix()}": path.read_text(encoding="utf-8") for path in kept}
    needed = REQUIREMENTS + (WITH_TORCH if "torch" in lab.limits.imports else ())
    files["requirements.txt"] = "".join(f"{one}\n" for one in needed)
    files |= {path.name: path.read_text(encoding="utf-8") for path in GRADER.iterdir()}
    files["classroom.yml"] = files["classroom.yml"].replace("Lab NN", f"Lab {lab.number}")
    return files | {"grade.py": GRADE, "secret.txt": f"{secret}\n"}


def make_autograder(lab: Lab, folder: Path, secret: str) -> None:
    """Write the folder that grades a lab.

    Raises:
        UsageError: the folder is not empty, or cannot be written.
        MachineError: the disk is full.
    """
    sources = (path for path in HOME.rglob("*.py") if {*path.relative_to(HOME).parts}.isdisjoint(LEFT_OUT))
    own = {f"minifuse/{path.relative_to(HOME).as_posix()}": path.read_text(encoding="utf-8") for path in sources}
    write_files(autograder_files(lab, secret) | own, folder)


def grade(lab: Lab, submission: Path, secret: str) -> dict[str, Any]:
    """Grade a submission; return the results as Gradescope reads them."""
    found = files_in(submission)
    if len(found) != 1:
        return {"score": 0, "output": f"There are {len(found)} files {SUBMITTED} in it: hand in one.", "tests": []}
    user = _another_user()
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        file = Path(shutil.copyfile(found[0], Path(place, SUBMITTED)))
        file.chmod(0o644)
        budget = Budget(lab.limits.seconds)
        outcomes = judge(lab, file, seed=secret, user=user, budget=budget)
        results: dict[str, Any] = {"tests": [_result(one) for one in outcomes]}
        if lab.open_task is not None:
            scored = scores(lab, {"submission": file}, seed=secret, user=user, budget=budget)
            row = scored.rows.get("submission", {})
            results["leaderboard"] = [
                {"name": name, "value": row[name], "order": "asc" if scored.costs[name] == "lower" else "desc"}
                for name in scored.costs
                if name in row
            ]
    results["score"] = sum(one.points for one in outcomes)
    return results


def _result(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome in Gradescope's format; hidden tests are shown together with grades."""
    said = "holds" if outcome.held else f"does not hold: {outcome.what}"
    lines = [f"{outcome.test.says} This {said}", *outcome.picture]
    lines += [] if outcome.held else [outcome.test.read_again]
    return {
        "name": outcome.test.name.replace("_", " "),
        "score": outcome.points,
        "max_score": outcome.test.points,
        "output": "\n".join(lines),
        "visibility": "after_published" if outcome.test.hidden else "visible",
    }


def _another_user() -> str | None:
    """Return the user *nobody* if processes can be started as that user, or None."""
    if os.getuid() != 0:
        return None
    needed = [str(one.__file__) for one in (student, names, guard, confine)]
    command = [sys.executable, "-I", "-c", "import sys\nfor name in sys.argv[1:]: open(name)", *needed]
    try:
        ran = subprocess.run(command, **identity(NOBODY), cwd="/", stderr=subprocess.DEVNULL, check=False)
    except (KeyError, OSError, subprocess.SubprocessError):
        return None
    return NOBODY if ran.returncode == 0 else None


def walls(user: str | None) -> str:
    """Return a text for instructors: what keeps submissions from hidden tests and the network.

    Raises:
        MachineError: nothing keeps submissions from the hidden tests.
    """
    kept = [f"the user {user}"] if user else []
    kept += ["Landlock"] if confine.landlock() else []
    if not kept:
        raise MachineError(
            "Nothing keeps a submission from the hidden tests here: grade as root, or on Linux with Landlock."
        )
    filtered = "a filter of system calls" if confine.seccomp() else "nothing: install libseccomp2"
    return f"submissions are kept from the hidden tests by {' and '.join(kept)}, from the network by {filtered}"


def _given(here: Path) -> tuple[Lab, str]:
    """Read the folder's lab and secret, and deny other users access to both."""
    try:
        if os.getuid() == 0:
            for name in ("lab", "secret.txt"):
                (here / name).chmod(0o700)
        secret = (here / "secret.txt").read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be used ({error.strerror}): make the folder again.") from None
    if not secret:
        raise UsageError(f"{here / 'secret.txt'} is empty: make the folder again, by minifuse lab autograder.")
    return read_lab(here / "lab"), secret


def main(here: Path, arguments: list[str]) -> int:
    """Run the folder's grade.py; return 0 if the submission was graded, whatever its points.

    A signal ends the grading before anything is written: the exit code is then 128 plus the number of the signal.
    """
    came: list[int] = []

    def end(number: int, frame: FrameType | None) -> NoReturn:
        """Raise `KeyboardInterrupt`, which no test takes for a student's error."""
        came.append(number)
        raise KeyboardInterrupt

    for number in SIGNALS:
        signal.signal(number, end)
    try:
        _main(here, arguments)
    except KeyboardInterrupt:
        print("error: Interrupted: nothing was graded.", file=sys.stderr)
        return 128 + came[0]
    except MinifuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _main(here: Path, arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python grade.py", description="Grades a submission.")
    parser.add_argument("--submission", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--results", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--classroom", type=Path, metavar="FILE", help="the results as GitHub Classroom reads them")
    typed = parser.parse_args(arguments)
    kept = walls(_another_user())
    lab, secret = _given(here)
    for folder in {typed.submission, typed.results.parent, (typed.classroom or typed.results).parent}:
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder: give one that is there.")
    print(f"note: {kept}.", file=sys.stderr)
    try:
        results = grade(lab, typed.submission, secret)
    except Exception:  # of the lab, for the instructor to see; a submission may have caused it
        write_whole(typed.results, json.dumps({"score": 0, "output": FAILED, "tests": []}, indent=1))
        raise
    write_whole(typed.results, json.dumps(results, indent=1))
    most = sum(lab.points.values())
    print(f"{results['score']:g} of {most:g} points")
    if typed.classroom is not None:
        write_whole(typed.classroom, b64encode(json.dumps(_for_classroom(results, most)).encode()).decode())


def _for_classroom(results: dict[str, Any], most: float) -> dict[str, Any]:
    """Return the results in the format of GitHub Classroom's reporter."""
    tests = [
        {
            "name": one["name"],
            "status": "pass" if one["score"] == one["max_score"] else "fail",
            "score": one["score"],
            "max_score": one["max_score"],
        }
        for one in results["tests"]
    ]
    status = "pass" if results["score"] == most else "fail"
    return {"version": 1, "status": status, "max_score": most, "tests": tests}

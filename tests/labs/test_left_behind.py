"""No process of a student outlives what judges it, however that ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minifuse.batching.iteration import Iteration
from minifuse.core.request import Request
from minifuse.labs import student
from minifuse.labs.autograder import make_autograder
from minifuse.labs.engine import served
from minifuse.labs.lab import labs
from minifuse.techniques import technique

SHUFFLE = next(lab for lab in labs() if lab.number == 4)
LOOPS = "while True: pass\n"
PATIENCE_S = 60
AT_ONCE_S = 15  # by itself a process that loops goes on for 30 s

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process ends at its limit")


def until(found: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


def about(process: int, name: str) -> str:
    """Read /proc/PROCESS/NAME: nothing once the process has ended, which it may at any moment."""
    try:
        return Path(f"/proc/{process}/{name}").read_text()
    except OSError:
        return ""


def students(judge: int) -> list[int]:
    """The processes of student.py that this process has started."""
    children = [int(child) for child in about(judge, f"task/{judge}/children").split()]
    return [child for child in children if "student.py" in about(child, "cmdline")]


def runs(process: int) -> bool:
    state = about(process, "stat").rpartition(")")[2].split()
    return bool(state) and state[0] != "Z"


def command(what: str, folder: Path, solution: str | None = LOOPS) -> list[str]:
    """The command that judges this solution, or the reference."""
    shutil.copytree(SHUFFLE.folder, folder / "lab")
    if solution is not None:
        (folder / "lab" / "solution.py").write_text(solution)
    if what != "grade":
        return [sys.executable, "-m", "minifuse", "lab", what, str(folder / "lab")]
    make_autograder(SHUFFLE, folder / "ag", "secret")
    results = ["--results", str(folder / "results.json")]
    return [sys.executable, str(folder / "ag" / "grade.py"), "--submission", str(folder / "lab"), *results]


@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("check", signal.SIGTERM),
        ("check", signal.SIGHUP),
        ("check", signal.SIGKILL),
        ("score", signal.SIGTERM),
        ("score", signal.SIGKILL),
        ("grade", signal.SIGTERM),
        ("grade", signal.SIGHUP),
        ("grade", signal.SIGKILL),
    ],
)
def test_a_students_process_ends_with_the_judge(what: str, number: signal.Signals, tmp_path: Path) -> None:
    command_line, temporary = command(what, tmp_path), tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command_line, env=environment, **silent) as judge:
        until(lambda: students(judge.pid))
        (process,) = students(judge.pid)
        judge.send_signal(number)
        judge.wait(PATIENCE_S)
        until(lambda: not runs(process), AT_ONCE_S)
    assert judge.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert number == signal.SIGKILL or not [*temporary.iterdir()]
    assert not (tmp_path / "results.json").exists()  # no grade from half of the tests


def test_a_grader_that_is_ended_writes_no_grade(tmp_path: Path) -> None:
    """Although a search for failing cases runs, which takes many exceptions for one."""
    with subprocess.Popen(command("grade", tmp_path, solution=None), stderr=subprocess.PIPE, text=True) as judge:
        until(lambda: students(judge.pid))
        judge.terminate()
        _, told = judge.communicate(timeout=PATIENCE_S)
    assert judge.returncode == 128 + signal.SIGTERM
    assert told.endswith("error: Interrupted: nothing was graded.\n")
    assert not (tmp_path / "results.json").exists()


def test_a_run_that_is_interrupted_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Iteration, "admission", interrupted)
    with pytest.raises(KeyboardInterrupt):
        served(technique("orca"), [Request("a", (1, 2), max_new_tokens=4)])


@pytest.mark.parametrize(("seconds", "code"), [(0, 0), (100, -signal.SIGALRM)])
def test_a_students_process_ends_with_its_pipe_and_at_its_limit(seconds: int, code: int, tmp_path: Path) -> None:
    """By itself: sleeping counts, too."""
    (tmp_path / "solution.py").write_text(f"import time\n\n\ndef sleep():\n    time.sleep({seconds})\n")
    (read_calls, calls), (replies, write_replies) = os.pipe(), os.pipe()
    settings = {"judge": os.getpid(), "file": str(tmp_path / "solution.py"), "withheld": []}
    settings |= {"imports": [], "names": False, "steps": 10, "memory_mb": 100, "seconds": 1, "patience": 1.0}
    settings |= {"calls": read_calls, "replies": write_replies}
    started = [sys.executable, "-I", "-B", "-u", student.__file__, json.dumps(settings)]
    with subprocess.Popen(started, pass_fds=(read_calls, write_replies)) as process:
        os.close(read_calls)
        os.close(write_replies)
        for call in ({"do": "load"}, {"do": "call", "name": "sleep"}):
            os.write(calls, (json.dumps({**call, "number": 1, "forget": []}) + "\n").encode())
        os.close(calls)
        assert process.wait(PATIENCE_S) == code
    os.close(replies)

"""Standard streams that are closed or full, and standard output for a result alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.trace.log import read_trace

Cli = Callable[..., Any]

posix = pytest.mark.skipif(sys.platform == "win32", reason="streams as POSIX has them")
has_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")

RUN = ("run", "--model", "random:small", "--clock", "virtual", "--requests", "2", "--output-length", "2")


def redirected(how: str, *arguments: object) -> tuple[int, str, str]:
    """The exit code, stdout and stderr of a command whose streams a shell redirects."""
    command = f'exec "$@" {how}'
    done = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, "-m", "minifuse", *map(str, arguments)],
        capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


@posix
def test_without_stdout_nothing_is_begun(tmp_path: Path) -> None:
    """The trace, opened first, would get the number of standard output, and the answers would be written into it."""
    trace = tmp_path / "trace.jsonl"
    code, _, err = redirected(">&-", *RUN, "--trace", trace)
    assert (code, err) == (3, "error: Standard output is closed: redirect it to a file, or to /dev/null.\n")
    assert not trace.exists()


@posix
@pytest.mark.parametrize(("how", "code"), [("2>&-", 0), (">&- 2>&-", 3)])
def test_without_stderr_its_messages_are_lost_and_nothing_else(how: str, code: int, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    ran, out, err = redirected(how, *RUN, "--trace", trace)
    assert (ran, err) == (code, "")
    assert [line.split()[0] for line in out.splitlines()] == (["r0", "r1"] if code == 0 else [])
    assert code or read_trace(trace)[-1]["event"] == "end"


@posix
def test_without_stdin() -> None:
    code, out, err = redirected("<&-", "run", "--prompts", "-")
    assert (code, out) == (2, "")
    assert err == "error: --prompts is -, and standard input is closed: give a file, or redirect standard input.\n"


@posix
@has_full
@pytest.mark.parametrize(
    ("how", "typed", "code"),
    [
        (">/dev/full", ("list", "--json"), 3),  # buffered until the last flush
        (">/dev/full", RUN, 3),
        (">/dev/full 2>/dev/full", ("explain", "orca"), 3),
        ("2>/dev/full", ("explain", "nothing"), 2),
    ],
)
def test_streams_that_are_full(how: str, typed: tuple[str, ...], code: int) -> None:
    ran, out, err = redirected(how, *typed)
    assert (ran, out) == (code, "")
    messages = [line for line in err.splitlines() if not line.startswith("note:")]
    assert len(messages) == (1 if "2>" not in how else 0)
    assert all("Standard output cannot be written to (No space left on device)" in message for message in messages)


NOISY = """
import os, subprocess, sys
from minifuse import register
from minifuse.batching import Iteration

print("at import")

@register
class Noisy(Iteration):
    "Prints in every way there is."
    name = "noisy"

    def propose(self, *given):
        print("printed")
        sys.stdout.write("written\\n")
        sys.__stdout__.write("written to the stream there was\\n")
        os.write(1, b"written by number\\n")
        subprocess.run(["echo", "from another program"])
        return super().propose(*given)
"""


@posix
def test_what_a_plugin_prints_goes_to_stderr_when_stdout_is_for_json(process: Cli, tmp_path: Path) -> None:
    path = tmp_path / "noisy.py"
    path.write_text(NOISY)
    done = process("--plugin", path, *RUN, "--batching", "noisy", "--json")
    assert [output["id"] for output in json.loads(done.out)["outputs"]] == ["r0", "r1"]
    for words in ("at import", "printed", "written", "written to the stream there was", "written by number"):
        assert f"{words}\n" in done.err
    assert "from another program\n" in done.err


RAISING = """
from minifuse import register
from minifuse.batching import Iteration

@register
class Raising(Iteration):
    "Raises what others take as a sign."
    name = "raising"

    def propose(self, *given):
        {}
        return super().propose(*given)
"""


@pytest.mark.parametrize("raised", ["BrokenPipeError", "GeneratorExit", "SystemExit"])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_whatever_a_stage_raises_is_its_own(afresh: Cli, tmp_path: Path, raised: str, form: tuple[str, ...]) -> None:
    path = tmp_path / "raising.py"
    path.write_text(RAISING.format(f"raise {raised}"))
    done = afresh("--plugin", path, *RUN, "--batching", "raising", *form)
    assert done.code == 1
    assert f"error: Raising.propose (raising.py, line 10) raised {raised} at raising.py, line 11" in done.err
    if form:
        assert [output["finish_reason"] for output in done.json()["outputs"]] == ["interrupted"] * 2


def test_a_plugin_cannot_close_the_streams(process: Cli, tmp_path: Path) -> None:
    path = tmp_path / "closing.py"
    path.write_text("import sys" + RAISING.format("sys.stdout.close(); sys.stderr.close()"))
    done = process("--plugin", path, *RUN, "--batching", "raising", "--trace", tmp_path / "t.jsonl")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == ["r0", "r1"]
    assert "KV moves" in done.err


def test_a_trace_on_stdout_has_it_alone(minifuse: Cli) -> None:
    done = minifuse(*RUN, "--trace", "-")
    assert done.code == 0
    events = [json.loads(line) for line in done.out.splitlines()]
    assert (events[0]["event"], events[-1]["event"]) == ("run", "end")
    assert [line.split()[0] for line in done.err.splitlines() if "] " in line] == ["r0", "r1"]
    assert sys.stdout is not sys.stderr


def test_stdout_is_not_for_a_trace_and_json(minifuse: Cli) -> None:
    minifuse(*RUN, "--json", "--trace", "-").refused("--json", "--trace -", "give --trace a file")


@posix
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_trace_is_not_written_into_standard_output(tmp_path: Path, form: tuple[str, ...]) -> None:
    code, out, err = redirected(f"> {tmp_path / 'out'}", *RUN, *form, "--trace", tmp_path / "out")
    assert (code, out, (tmp_path / "out").read_text()) == (2, "", "")
    assert "which is standard output: give - for that, or a file of its own." in err


@posix
def test_a_trace_waits_for_no_reader(minifuse: Cli, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    minifuse(*RUN, "--trace", tmp_path / "pipe").refused("--trace", "a pipe, which waits until it is read")


@posix
def test_a_trace_whose_reader_goes_away_is_no_failure(start: Cli, tmp_path: Path) -> None:
    running = start(*RUN, "--trace", "-", "--output-length", "50")
    running.stdout.readline()
    running.stdout.close()
    err = running.stderr.read()
    assert running.wait() == 0
    assert "error" not in err
    assert err.count(" [length] ") == 2


@posix
@has_full
def test_a_trace_on_stdout_that_is_full_costs_no_answer() -> None:
    code, _, err = redirected(">/dev/full", *RUN, "--trace=-")
    assert code == 1
    assert err.count("error:") == 1
    assert "error: The trace on standard output could not be written to its end: No space left on device.\n" in err
    assert err.count(" [length] ") == 2


@pytest.mark.parametrize("typed", [("list", "--json", "--help"), ("--version",)])
def test_help_is_the_result(minifuse: Cli, typed: tuple[str, ...]) -> None:
    done = minifuse(*typed)
    assert done.out
    assert not done.err

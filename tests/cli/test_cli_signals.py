"""SIGTERM and SIGHUP end a command as Ctrl-C does: the terminal is as it was, and nothing temporary is left."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

DEADLINE_S = 60
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
LONG = ("run", "--model", "random:small", "--requests", 2000, "--prompt-length", 3)
VIRTUAL = ("--clock", "virtual")  # without torch, which takes a second to import


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *typed: object, **settings: Any) -> None:
        self.ours, self.theirs = pty.openpty()
        self.seen = ""
        command = [sys.executable, "-m", "minifuse", *map(str, typed)]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), self.theirs)
        environment = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1", **settings}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLED, *command], **streams, start_new_session=True, env=environment
        )

    def until(self, text: str) -> None:
        end = time.monotonic() + DEADLINE_S
        while text not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.ours], [], [], 1)[0]:
                self.seen += os.read(self.ours, 4096).decode()

    def rest(self) -> str:
        """All that was shown, when the process has ended."""
        while select.select([self.ours], [], [], 0)[0]:
            self.seen += os.read(self.ours, 4096).decode()
        return self.seen

    def code(self) -> int:
        """The exit code; what is shown until then is read, so that the process does not wait for room."""
        end = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, self.seen
            self.rest()
            time.sleep(0.02)
        return self.process.returncode


# Python that makes standard input the controlling terminal, and goes on as the command.
CONTROLLED = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def terminal() -> Iterator[Cli]:
    opened: list[Terminal] = []

    def call(*typed: object, **settings: Any) -> Terminal:
        opened.append(Terminal(*typed, **settings))
        return opened[-1]

    yield call
    for one in opened:
        one.process.kill()
        one.process.wait()
        for number in (one.ours, one.theirs):
            if number >= 0:
                os.close(number)


def echoes(terminal: Terminal) -> bool:
    return bool(termios.tcgetattr(terminal.theirs)[3] & termios.ECHO)


def test_a_chat_ends_at_its_prompt_and_what_is_typed_is_shown_again(terminal: Cli, tiny: str) -> None:
    chat = terminal("chat")
    chat.until("> ")
    while echoes(chat):  # until the line is read, letter by letter
        time.sleep(0.01)
    for _ in range(2):  # Python overlooks one that comes just before it begins to wait for a letter
        time.sleep(0.3)
        chat.process.send_signal(signal.SIGHUP)
    assert chat.code() == 129
    assert echoes(chat)


def test_a_chat_ends_in_the_middle_of_an_answer(terminal: Cli, tiny: str) -> None:
    chat = terminal("chat")
    chat.until("> ")
    os.write(chat.ours, b"count from 0 to 249\n")
    chat.until("1 2 3")
    chat.process.send_signal(signal.SIGTERM)
    assert chat.code() == 143
    assert echoes(chat)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_picture_shows_the_cursor_again(number: signal.Signals, terminal: Cli) -> None:
    run = terminal(*LONG, "--live", *VIRTUAL)
    run.until(HIDE)
    run.process.send_signal(number)
    assert run.code() == 128 + number
    assert run.rest().rindex(SHOW) > run.seen.rindex(HIDE)


def test_temporary_traces_are_removed_and_the_page_is_written(start: Cli, tmp_path: Path) -> None:
    place, page = tmp_path / "temporary", tmp_path / "page.html"
    place.mkdir()
    run = start(*LONG, *VIRTUAL, "--replay", page, TMPDIR=str(place))
    assert run.stdout.readline()
    assert [path.name for path in place.rglob("*.jsonl")] == ["orca.jsonl"]
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 143
    assert "interrupted" in out
    assert f"{page} replays orca" in err
    assert [*place.iterdir()] == []


def test_a_terminal_that_is_closed_leaves_no_temporary_traces(terminal: Cli, tmp_path: Path) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    run = terminal(*LONG, *VIRTUAL, "--replay", tmp_path / "page.html", TMPDIR=str(place))
    run.until("length")
    os.close(run.theirs)
    os.close(run.ours)
    run.ours = run.theirs = -1
    assert run.process.wait(DEADLINE_S) == 129
    assert [*place.iterdir()] == []


def test_what_it_was_told_to_ignore_it_ignores(tmp_path: Path) -> None:
    """As `nohup` tells it, whose process outlives its terminal."""
    command = [sys.executable, "-m", "minifuse", "list"]
    ignored = subprocess.Popen(
        [sys.executable, "-c", IGNORES, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    out, err = ignored.communicate(timeout=DEADLINE_S)
    assert (ignored.returncode, err) == (0, "")
    assert "orca" in out


# Python that ignores SIGHUP and goes on as the command, which is sent one while it imports.
IGNORES = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    import time
    for _ in range(20):
        time.sleep(0.01)
        os.kill(os.getppid(), signal.SIGHUP)
    os._exit(0)
os.execv(sys.argv[1], sys.argv[1:])
"""

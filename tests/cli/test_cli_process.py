"""What only a process of its own can show: Ctrl-C, closed pipes, terminals, and what is imported."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.trace.log import read_trace

Cli = Callable[..., Any]

DEADLINE_S = 60
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LOADING = re.compile(r"loading [^\r\n]* \.\.\.\r\x1b\[2K")

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals as POSIX has them")


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in err
    return process.returncode, out, err


def long_run(requests: Cli) -> tuple[object, ...]:
    """One answer at once, one that takes longer than the test waits, and one that arrives when all is over."""
    path = requests(
        {"id": "short", "prompt_token_ids": [1], "max_new_tokens": 2},
        {"id": "long", "prompt_token_ids": [2], "max_new_tokens": 2000},
        {"id": "late", "prompt_token_ids": [3], "arrival_s": 1000},
    )
    return ("run", "--model", "random:small", "--prompts", path)


@posix
def test_ctrl_c_keeps_what_has_been_answered(start: Cli, requests: Cli) -> None:
    process = start(*long_run(requests))
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert code == 130
    assert first.startswith("short [length] 1 -> ")
    assert sorted(line.split(" 2 ")[0].split(" 3 ")[0] for line in out.splitlines()) == [
        "late [interrupted]",
        "long [interrupted]",
    ]
    assert "1 length, 2 interrupted" in err


@posix
def test_ctrl_c_with_json_still_prints_one_object(start: Cli, requests: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    process = start(*long_run(requests), "--json", "--trace", trace)
    deadline = time.monotonic() + DEADLINE_S
    while not (trace.exists() and '"short": "length"' in trace.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    code, out, _ = ended(process)
    assert code == 130
    outputs = {output["id"]: output for output in json.loads(out)["outputs"]}
    assert {name: output["finish_reason"] for name, output in outputs.items()} == {
        "short": "length",
        "long": "interrupted",
        "late": "interrupted",
    }
    assert outputs["long"]["token_ids"]
    assert outputs["long"]["finish_s"] is None
    assert json.loads(trace.read_text().splitlines()[-1])["unfinished"] == ["long", "late"]


@posix
def test_the_trace_of_a_killed_run_has_every_answer_that_was_shown(start: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    lengths = ("--requests", 200, "--prompt-length", 3, "--output-length", 6)
    process = start("run", "--model", "random:small", *lengths, "--trace", trace)
    shown = [process.stdout.readline() for _ in range(20)]
    process.kill()
    shown += process.stdout.read().splitlines()[:-1]  # the last may be cut off
    finished = {name for event in read_trace(trace) if event["event"] == "step" for name in event["finished"]}
    assert {line.split()[0] for line in shown} <= finished
    assert len(finished) >= 20


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_trace_that_cannot_be_written_costs_no_answer(minifuse: Cli, requests: Cli, form: tuple[str, ...]) -> None:
    path = requests(*({"id": f"r{i}", "prompt_token_ids": [i], "max_new_tokens": 2} for i in range(9)))
    run = ("run", "--model", "random:small", "--prompts", path, *form)
    ran = minifuse(*run, "--trace", "/dev/full")
    assert ran.code == 1
    assert ran.err.count("error: The trace /dev/full could not be written to its end: No space left on device.\n") == 1
    if form:
        assert [output["finish_reason"] for output in ran.json()["outputs"]] == ["length"] * 9
    else:
        assert len(ran.out.splitlines()) == 9


@posix
def test_a_closed_pipe_ends_the_command(start: Cli) -> None:
    listing = start("list")
    listing.stdout.close()
    assert listing.wait(DEADLINE_S) == 0
    assert listing.stderr.read() == ""
    run = start("run", "--model", "random:small", "--clock", "virtual")
    run.stdout.close()
    assert run.wait(DEADLINE_S) == 1  # not every request was answered
    assert run.stderr.read().startswith("note: ")


WITHOUT_TORCH = (
    "--help",
    "run --help",
    "list",
    "list --json",
    "explain orca",
    "--version",
    "reproduce --list",
    "run --model random:llama-7b --clock virtual --json",  # whose tokens are placeholders
)


def test_torch_is_not_imported() -> None:
    """One process runs them all, so that the first that imports it is the first that is told of."""
    code = (
        "import sys; from minifuse.cli import main\n"
        "for line in sys.argv[1:]: print(line, main(line.split()), 'torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *WITHOUT_TORCH], capture_output=True, text=True)
    told = [line for line in done.stderr.splitlines() if line.startswith(WITHOUT_TORCH)]
    assert told == [f"{line} 0 False" for line in WITHOUT_TORCH]


ALL_OF = "import sys; from minifuse.cli import main; sys.exit(any([main(line.split()) for line in sys.argv[1:]]))"


def on_terminal(columns: int, *arguments: str, **environment: str) -> str:
    """What a terminal of this width is sent by a command, stdout and stderr together."""
    return sent_by([sys.executable, "-m", "minifuse", *arguments], columns, **environment)


def sent_by(command: list[str], columns: int, **environment: str) -> str:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1", **environment}
    inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**inherited, **environment})
    os.close(theirs)
    sent = b""
    try:
        while data := os.read(ours, 65536):
            sent += data
    except OSError:  # on Linux: the other end is closed
        pass
    os.close(ours)
    assert process.wait(DEADLINE_S) == 0
    return sent.decode()


CROWD = ("run", "--model", "random:small", "--clock", "virtual", "--output-length", "4")


@posix
def test_a_terminal_gets_colours_and_a_live_picture() -> None:
    """And what is loaded is shown at once, and taken away."""
    sent = on_terminal(80, *CROWD)
    assert sent.startswith("loading minifuse ...\r\x1b[2K")
    assert LOADING.findall(sent)[1:] == ["loading random:small ...\r\x1b[2K"]
    assert "loading" not in LOADING.sub("", sent)
    assert COLOUR.search(sent)
    plain = COLOUR.sub("", sent)
    assert "orca on random:small" in plain
    assert "KV in use" in plain
    assert plain.count(" -> -1 x4\r\n") == 16


@posix
def test_no_color_and_no_terminal() -> None:
    sent = on_terminal(80, *CROWD, NO_COLOR="1")
    assert not COLOUR.search(sent)
    assert "KV in use" in sent
    sent = on_terminal(80, *CROWD, TERM="dumb")
    assert "orca on random:small" not in sent
    assert "loading" not in sent
    assert "\x1b" not in sent


@posix
@pytest.mark.parametrize("columns", [80, 40])
def test_tables_fit_a_narrow_terminal(columns: int) -> None:
    commands = "list", "explain orca", " ".join(("compare", "orca", "static", *CROWD[1:]))
    sent = sent_by([sys.executable, "-c", ALL_OF, *commands], columns)
    lines = LOADING.sub("", COLOUR.sub("", sent)).replace("\x1b[2K", "").split("\r\n")
    whole = ("note:", "differ", "TTFT, TPOT")  # wrapped by the terminal
    tables = [line for line in lines if "\x1b" not in line and not line.startswith(whole)]
    assert len(tables) > 60
    assert max(map(len, tables)) <= columns


@posix
def test_numbers_are_not_cut_on_a_narrow_terminal(minifuse: Cli) -> None:
    typed = ("compare", "orca", "cellular", *CROWD[1:])
    wide = minifuse(*typed, "--json").json()
    figure = f"{wide['techniques'][0]['metrics']['throughput']['tokens_per_s']:.0f}"
    assert len(figure) >= 4
    narrow = COLOUR.sub("", on_terminal(24, *typed)).split("\r\n")
    assert sum(line.split()[:2] == ["orca", figure] for line in narrow) == 1
    assert sum(line.startswith("technique ") for line in narrow) > 2

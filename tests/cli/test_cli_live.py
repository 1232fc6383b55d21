"""`minifuse run --live`: lanes on a terminal while it runs, once at the end elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from minifuse.cli import display as displays
from minifuse.cli.display import lanes
from minifuse.trace.log import read_trace

Cli = Callable[..., Any]

CROWD = ("run", "--model", "random:small", "--clock", "virtual", "--requests", 8, "--live")
EVICTING = ("--technique", "vllm", "--kv-memory", "768KiB", "--prompt-length", 16, "--output-length", 40)
LANE = r"(?m)^(r\d+) +(\S.*)$"


# --- piped


def test_piped_the_lanes_are_those_of_the_trace(minifuse: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    outcome = minifuse(*CROWD, "--technique", "static", "--output-length", "uniform:5:30", "--trace", trace)
    assert outcome.code == 0
    assert outcome.out.count(" -> ") == 8
    lines = minifuse("trace", trace).out.partition("Timeline:")[2].partition("\n\n")[0].splitlines()
    assert [line for line in lines[1:] if line not in outcome.err] == []
    assert "8/8 requests" in outcome.err


@pytest.mark.parametrize("typed", [("--output-length", 4), ("--model", "lstm:hidden=8,vocab=9")])
def test_piped_json_is_alone_on_stdout(minifuse: Cli, typed: tuple[object, ...]) -> None:
    outcome = minifuse(*CROWD, *typed, "--json")
    assert len(outcome.json()["outputs"]) == 8
    assert len(re.findall(LANE, outcome.err)) == 8


@pytest.mark.parametrize("other", [("--why",), ("--trace", "-")])
def test_what_fills_the_same_stream_is_refused(minifuse: Cli, other: tuple[str, ...]) -> None:
    minifuse(*CROWD, *other).refused("--live and", other[0])


# --- on a terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """stderr looks like a terminal of 80 columns and 24 rows, and a picture is drawn after every iteration."""

    def console(stderr: bool = False) -> Console:
        import sys

        stream = sys.stderr if stderr else sys.stdout
        return Console(file=stream, force_terminal=stderr, width=80, height=24, color_system=None, highlight=False)

    monkeypatch.setattr(displays, "console", console)
    monkeypatch.setattr(displays, "MIN_GAP_S", 0.0)
    monkeypatch.setattr(displays, "COST_SHARE", 1e9)
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda stream: True, raising=False)


def frames(err: str) -> list[str]:
    """The pictures, of which the last is left standing."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err).split("on random:small")[1:]


@pytest.mark.usefixtures("terminal")
def test_lanes_grow_and_the_last_picture_is_left_standing(minifuse: Cli) -> None:
    outcome = minifuse(*CROWD, "--technique", "orca", "--max-batch", 2, "--output-length", 6)
    assert outcome.code == 0
    drawn = frames(outcome.err)
    assert len(drawn) > 10
    assert any(re.search(r"(?m)^r0 +p##\s*$", frame) for frame in drawn)
    assert re.search(r"(?m)^r0 +p####\|", drawn[-1]), drawn[-1]
    assert re.search(r"(?m)^r7 +\.{18}p####\|", drawn[-1]), drawn[-1]
    assert "KV in use" in drawn[-1]


@pytest.mark.usefixtures("terminal")
def test_there_are_no_more_lanes_than_rows(minifuse: Cli) -> None:
    outcome = minifuse(*CROWD[:-1], "--requests", 100, "--output-length", 3, "--live")
    drawn = frames(outcome.err)
    assert any("more requests left out" in frame for frame in drawn)
    assert max(len(re.findall(LANE, frame)) for frame in drawn) == 12


@pytest.mark.usefixtures("terminal")
def test_the_evicted_do_not_count_as_running(minifuse: Cli) -> None:
    outcome = minifuse(*CROWD, *EVICTING)
    suspended = 0
    for frame in frames(outcome.err)[1:-1]:
        running, _ = re.findall(r"(?m)^ +(\d+) +(\d+) ", frame)[0]
        last = [signs.rstrip()[-1] for _, signs in re.findall(LANE, frame)]
        if "a column is an iteration" in frame:
            suspended += last.count("~")
            assert int(running) == sum(mark not in "~.|" for mark in last)
    assert suspended, "none was evicted"


@pytest.mark.usefixtures("terminal")
def test_without_it_the_picture_has_no_lanes(minifuse: Cli) -> None:
    outcome = minifuse(*CROWD[:-1], "--output-length", 4)
    assert "KV in use" in outcome.err
    assert re.findall(LANE, outcome.err) == []


def test_running_requests_are_shown_before_waiting_and_ended_ones(minifuse: Cli, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    minifuse(*CROWD[:-1], "--technique", "orca", "--max-batch", 2, "--output-length", 6, "--trace", path)
    events = read_trace(path)
    half = events[: next(i for i, event in enumerate(events) if "r3" in event.get("finished", ())) + 1]
    for rows, shown in ((1, {"r4"}), (4, {"r4", "r5", "r6", "r7"}), (6, {"r2", "r3", "r4", "r5", "r6", "r7"})):
        assert {line.split()[0] for line in lanes(half, 80, rows) if re.match(LANE, line)} == shown

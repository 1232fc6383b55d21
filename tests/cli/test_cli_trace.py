"""`minifuse trace`: the summary as text and as JSON, the document for Perfetto, and what is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs_told import HEADER, cells, preempted
from trace_format import broken_rules

from minifuse.trace.log import Event

Cli = Callable[..., Any]

SUMMARY = """\
vllm on tiny, virtual time: 3 requests (1 stop, 2 length), 6 iterations in 6 s

Timeline: a column is an iteration
a       p#~~p|
b       ..p|
c        ....|
mem/10  352000
. waits; p computes a prompt, or a text anew; # computes a token; ~ suspended:
evicted, waits to come back; | ends; mem/10 of the memory, tenths in use

Waited for
batch-full: 2 requests, 3 s, longest 2 s b
    b not admitted: the batch has 1 request
behind: 1 request, 1 s, longest 1 s c
    c not considered: worker 0 admits none behind a
evicted: 1 request, 1 s, longest 1 s a
    a evicted: no room
evicting: 1 request, 1 s, longest 1 s c
    c not admitted: worker 0 evicts a
memory-full: 1 request, 1 s, longest 1 s a
    a not admitted: needs 1 block
not-asked: 1 request, 500 ms, longest 500 ms c
    c came while an iteration ran or was chosen: nothing is decided before that
    has ended

The longest gaps between two tokens of a request
     3 s  a, tokens 1 and 2, from 2.000 s: suspended for 2 s (evicted: no room;
          not admitted: needs 1 block), while 2 iterations ran without it; 1
          iteration with it (5 tokens of it computed), 1 s; 2 prompt tokens of b
          computed meanwhile
     1 s  a, tokens 0 and 1, from 1.000 s: 1 iteration with it, 1 s
     1 s  b, tokens 0 and 1, from 3.000 s: 1 iteration with it, 1 s
     1 s  a, tokens 2 and 3, from 5.000 s: 1 iteration with it, 1 s
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[list[Event]], Path]:
    """A trace of these events as a file."""

    def write(events: list[Event]) -> Path:
        path = tmp_path / "run.jsonl"
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        return path

    return write


def test_a_summary(minifuse: Cli, written: Cli) -> None:
    outcome = minifuse("trace", written(preempted()))
    assert (outcome.code, outcome.out, outcome.err) == (0, SUMMARY, "")


def test_cells_have_letters_and_gaps_between_iterations(minifuse: Cli, written: Cli) -> None:
    out = minifuse("trace", written(cells())).out
    assert "\nb       e--|\n" in out
    assert "e computes nodes of encoder" in out
    assert "decoder" not in out  # of a legend, only what occurs
    assert "No request waited.\n" in out
    assert "b, iterations 0 and 1, from 1.000 s: 2 iterations without it, 2 s; 1" in out


def test_a_narrow_one_is_binned_and_no_line_is_longer(minifuse: Cli, written: Cli) -> None:
    events = preempted()
    long = "request-with-a-name-that-is-long"
    text = json.dumps(events).replace('"a"', f'"{long}"')
    out = minifuse("trace", written(json.loads(text)), "--width", 40, "--rows", 2).out
    assert max(map(len, out.splitlines())) <= 40
    assert "request-w...-is-long p#~~p|\n" in out
    assert "batch-full: 2 requests, 3 s, longest 2 s\n  b\n" in out
    assert "1 more request left out." in out
    assert "\nc " not in out
    many = minifuse("trace", written(_long_run(300)), "--width", 60).out
    assert "a column is 6 iterations" in many
    assert max(len(line) for line in many.splitlines() if line.startswith("a ")) <= 60


def _long_run(iterations: int) -> list[Event]:
    events = preempted()
    step = events[5]
    steps = [{**step, "step": i, "reasons": [], "wall": {"start_s": i, "end_s": i + 1}} for i in range(1, iterations)]
    return [*events[:4], *steps, {"event": "end", "unfinished": ["a", "b"], "wall": {"end_s": float(iterations)}}]


def test_the_same_as_json(minifuse: Cli, written: Cli) -> None:
    found = minifuse("trace", written(preempted()), "--json").json()
    assert found["schema"] == "minifuse.trace-summary/2"
    assert found["requests"] == {"total": 3, "stop": 1, "length": 2}
    assert found["timeline"]["rows"] == {"a": "p#~~p|", "b": "..p|  ", "c": " ....|"}
    assert found["waits"][0] == {
        "code": "batch-full",
        "requests": 2,
        "total_s": 3.0,
        "longest_s": 2.0,
        "longest_request": "b",
        "sentence": "b not admitted: the batch has 1 request",
    }
    assert (found["gaps"][0]["requests"], found["gaps"][0]["seconds"], found["gaps"][0]["suspended_s"]) == (["a"], 3, 2)
    assert found["notice"] is None


def test_standard_input(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(event) + "\n" for event in preempted())))
    assert minifuse("trace", "-").out == SUMMARY


def test_a_trace_that_was_cut_off_is_shown_up_to_there(minifuse: Cli, written: Cli) -> None:
    path = written(preempted())
    path.write_text(path.read_text()[:-40])
    outcome = minifuse("trace", path)
    assert outcome.code == 0
    assert outcome.err == f"note: {path} was cut off in line 11: what stands before it is shown.\n"
    assert "a       p#~~p|" in outcome.out
    assert "cut off in line 11" in minifuse("trace", path, "--json").json()["notice"]


def test_what_a_trace_says_cannot_steer_the_terminal(minifuse: Cli, written: Cli) -> None:
    text = json.dumps(preempted()).replace('"b"', '"b\\u001b[2J"').replace("no room", "no\\u001b[2Jroom")
    outcome = minifuse("trace", written(json.loads(text)))
    assert "\x1b" not in outcome.out
    assert "\nb\\x1b[2J " in outcome.out


def test_no_text_of_a_trace_can(minifuse: Cli, written: Cli) -> None:
    """The escape is in every text of the trace but those that the format itself has."""
    fixed = {"event", "schema", "kind"}

    def steered(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: steered(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [steered(one) for one in value]
        return f"{value}\x1b[2J" if isinstance(value, str) and key not in fixed else value

    events = [steered(event) for event in preempted()]
    for move in (move for event in events for move in event.get("moves", ())):
        move[4:6] = [tier.removesuffix("\x1b[2J") for tier in move[4:6]]
    for event in events:  # the names of requests are keys as well
        for part in ("tokens", "finished"):
            if part in event:
                event[part] = {f"{name}\x1b[2J": one for name, one in event[part].items()}
    outcome = minifuse("trace", written(events))
    assert outcome.code == 0, outcome.err
    assert "\\x1b" in outcome.out
    assert "\x1b" not in outcome.out + outcome.err


def test_of_a_run_that_has_just_been(minifuse: Cli, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    typed = ("run", "--model", "random:small", "--clock", "virtual", "--technique", "static", "--trace", path)
    assert minifuse(*typed, "--requests", 6, "--max-batch", 2, "--output-length", "uniform:2:9").code == 0
    outcome = minifuse("trace", path)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("static on random:small, virtual time: 6 requests (6 length), ")
    assert "batch-running" in outcome.out
    assert "x ended, and" in outcome.out


def test_an_iteration_that_is_missing_is_noticed(minifuse: Cli, written: Cli) -> None:
    events = preempted()
    del events[6]
    path = written(events)
    outcome = minifuse("trace", path)
    assert (outcome.code, outcome.err) == (
        0,
        f"note: {path} lacks iteration 2: a line was taken out of it, and what it has is shown.\n",
    )
    assert "lacks iteration 2" in minifuse("trace", path, "--json").json()["notice"]


def test_a_document_for_perfetto(minifuse: Cli, written: Cli, tmp_path: Path) -> None:
    path, document = written(preempted()), tmp_path / "out.json"
    outcome = minifuse("trace", path, "--perfetto", document)
    assert (outcome.code, outcome.err) == (0, "")
    assert str(document) in outcome.out
    assert broken_rules(json.loads(document.read_text())) == []
    assert minifuse("trace", path, "--perfetto", "-").out == document.read_text()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["is empty"]),
        (json.dumps(HEADER | {"schema": "minifuse.trace/2"}) + "\n", ["of version minifuse.trace/2"]),
        (json.dumps(HEADER) + '\n{"event": "step"}\n', ["Line 2 of ", "run.jsonl cannot be understood: "]),
    ],
)
def test_what_is_no_trace_is_refused(minifuse: Cli, tmp_path: Path, content: str, words: list[str]) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(content)
    minifuse("trace", path).refused(*words)
    minifuse("trace", path, "--json").refused(*words)
    minifuse("trace", path, "--perfetto", tmp_path / "out.json").refused(*words)
    assert not (tmp_path / "out.json").exists()


def test_what_cannot_be_read_or_written_is_refused(minifuse: Cli, written: Cli, tmp_path: Path) -> None:
    path = written(preempted())
    minifuse("trace").refused("No trace is given")
    with pytest.MonkeyPatch.context() as closed:
        closed.setattr("sys.stdin", None)
        minifuse("trace", "-").refused("standard input is closed")
    minifuse("trace", tmp_path / "none.jsonl").refused("none.jsonl", "cannot be read (No such file")
    minifuse("trace", tmp_path).refused("cannot be read (Is a directory)")
    minifuse("trace", path, "--perfetto", tmp_path / "none" / "out.json").refused("--perfetto", "cannot be written")
    minifuse("trace", path, "--perfetto", path).refused("--perfetto", "this command reads")
    minifuse("trace", path, "--json", "--perfetto", tmp_path / "out.json").refused("--json and --perfetto")
    minifuse("trace", path, "--width", 39).refused("--width", "39", "40")
    minifuse("trace", path, "--rows", 0).refused("--rows")
    assert path.read_text().count("\n") == len(preempted())


def test_options_without_a_meaning_for_a_document_are_refused(minifuse: Cli, written: Cli, tmp_path: Path) -> None:
    for option in ("--width", "--rows"):
        typed = ("trace", written(preempted()), "--perfetto", tmp_path / "out.json", option, 50)
        minifuse(*typed).refused(option, "--perfetto")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_told(minifuse: Cli, written: Cli) -> None:
    minifuse("trace", written(preempted()), "--perfetto", "/dev/full").refused("could not be written", code=3)

"""The record: what the page is told of a trace."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.errors import UsageError
from minifuse.replay.record import TracedRun, read_run, record
from minifuse.trace import SCHEMA, read_trace, whole_tables

Traces = Callable[..., list[Path]]
RUN = {"event": "run", "schema": SCHEMA, "technique": "vllm", "clock": "virtual", "kv_capacity_tokens": 64}
ASKED = {"prompt_tokens": 3, "max_new_tokens": 2, "priority": 0, "conversation": None, "group": None}
STEP: dict[str, Any] = {
    "event": "step",
    "step": 0,
    "worker": 0,
    "phase": "running",
    "shape": None,
    "waves": [[0, 1]],
    "lanes": [],
    "work": [["a", 0, 3]],
    "places": [[0, [7], 4]],
    "admitted": ["a"],
    "evicted": [],
    "moves": [],
    "reasons": [["memory-full", "b", "waits"]],
    "computed": 3,
    "idle": 0,
    "tokens": {"a": [5]},
    "finished": {},
    "kv": [3, 4, 64, 0],
    "wall": {"start_s": 0.0, "end_s": 0.5},
}
EVENTS: list[dict[str, Any]] = [
    RUN,
    {"event": "request", "id": "a", "arrival_s": 0.0, **ASKED, "text": "one"},
    {"event": "request", "id": "b", "arrival_s": 0.25, **ASKED},
    {"event": "refused", "id": "c", "why": "too long"},
    STEP,
    {"event": "wait", "reasons": [["memory-full", "b", "waits"]], "wall": {"start_s": 0.5, "end_s": 0.75}},
    STEP
    | {"step": 1, "work": [["a", 3, 4]], "places": [[1, [9], 4]], "admitted": [], "evicted": ["b"], "reasons": []}
    | {"moves": [["swap_out", 0, 8, 4, "device", "host", "first", 0]], "finished": {"a": "length"}, "computed": 4}
    | {"idle": 3, "kept": [2, 1], "discarded": 1, "reused": [["b", 1, 2]], "tokens": {"a": [6]}}
    | {"wall": {"start_s": 0.75, "end_s": 1.0, "transfers": {"exposed_s": 0.125}}},
    {"event": "answer", "id": "a", "text": "xy", "ends": [1, 2]},
    {"event": "end", "unfinished": ["b"], "wall": {"end_s": 1.0}},
]


def write(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return path


def test_the_record_of_a_small_run(tmp_path: Path) -> None:
    told = record([read_run(write(tmp_path / "t.jsonl", EVENTS))])
    (run,) = told["runs"]
    asked = {"prompt": 3, "maxNew": 2, "priority": 0, "conversation": None, "group": None}
    assert told["version"] == 1
    assert run["requests"] == [
        {"id": "a", "arrival": 0.0, "ended": 1.0, "outcome": "length", **asked, "text": "one", "answer": "xy"}
        | {"ends": [1, 2]},
        {"id": "b", "arrival": 0.25, "ended": 1.0, "outcome": "interrupted", **asked},
        {"id": "c", "arrival": None, "ended": None, "outcome": "refused", "refused": "too long"},
    ]
    assert run["steps"] == [
        {"n": 0, "k": 0, "t": [0.0, 0.5], "w": [[0, 0, 3]], "p": [[0, [7], 4]], "a": [0], "y": [[1, 0]], "c": 3}
        | {"o": [[0, 1]], "kv": [3, 4, 64, 0]},
        {"wait": True, "t": [0.5, 0.75], "y": [[1, 0]]},
        {"n": 1, "k": 0, "t": [0.75, 1.0], "w": [[0, 3, 4]], "p": [[1, [9], 4]], "e": [1], "c": 4, "i": 3}
        | {"m": [["swap_out", 0, 8, 4, "device", "host", "first", 0]], "ru": [[1, 1, 2]], "o": [[0, 1]], "d": 1}
        | {"f": [[0, "length"]], "kv": [3, 4, 64, 0], "kp": [2, 1], "x": 0.125},
    ]
    assert run["reasons"] == [["memory-full", "waits"]]
    assert (run["title"], run["notice"], run["hostCapacity"], run["capacity"]) == ("vllm", None, 12, 64)
    assert (run["unit"], run["cells"], run["workers"]) == ("token", ["transformer"], 1)


def test_block_tables_are_told_as_in_the_trace(traces: Traces) -> None:
    (path,) = traces("vllm")
    (run,) = record([read_run(path)])["runs"]
    steps = [event for event in whole_tables(read_trace(path)) if event["event"] == "step"]
    tables: dict[int, list[int]] = {}
    told = [step for step in run["steps"] if "n" in step]
    assert len(told) == len(steps)
    for step, event in zip(told, steps, strict=True):
        for (request, *_), (kept, new, size), whole in zip(step["w"], step["p"], event["places"], strict=True):
            tables[request] = tables.get(request, [])[:kept] + new
            assert [tables[request], size] == whole


def test_requests_stand_in_one_order_in_all_runs(traces: Traces) -> None:
    told = record([read_run(path) for path in traces("static", "vllm")])
    first, second = ([request["id"] for request in run["requests"]] for run in told["runs"])
    assert first == second == [f"r{i}" for i in range(6)]


def test_letters_beyond_16_bits_count_as_javascript_counts_them(tmp_path: Path) -> None:
    answer = {"event": "answer", "id": "a", "text": "é\U0001f600z", "ends": [1, 2, 3]}
    (run,) = record([read_run(write(tmp_path / "t.jsonl", [*EVENTS[:7], answer, EVENTS[-1]]))])["runs"]
    assert run["requests"][0]["ends"] == [1, 3, 4]


def test_a_refused_duplicate_is_a_request_of_its_own() -> None:
    again = {"event": "refused", "id": "a", "why": "there is one already"}
    (run,) = record([TracedRun("t", [*EVENTS[:3], again, *EVENTS[4:]])])["runs"]
    assert [(one["id"], one.get("refused")) for one in run["requests"]] == [
        *(("a", None), ("b", None), ("a", "there is one already")),
    ]
    assert run["requests"][0]["outcome"] == "length"


def test_a_trace_cut_off_in_a_line_is_shown_up_to_there_with_a_notice(tmp_path: Path) -> None:
    whole = write(tmp_path / "t.jsonl", EVENTS).read_text()
    cut = tmp_path / "cut.jsonl"
    cut.write_text(whole[: whole.index('"step": 1') + 30])
    (run,) = record([read_run(cut)])["runs"]
    assert len(run["steps"]) == 2
    assert "cut off in line 7" in run["notice"]
    assert run["requests"][0]["outcome"] is None


def test_a_trace_without_its_end_has_a_notice(tmp_path: Path) -> None:
    (run,) = record([read_run(write(tmp_path / "t.jsonl", EVENTS[:-1]))])["runs"]
    assert "ends before its run does" in run["notice"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"id": "z"}, "only one has a; only other has z"),
        ({"prompt_tokens": 4}, "a has prompts of other lengths (3 and 4)"),
        ({"max_new_tokens": 9}, "a has other limits of their answers (2 and 9)"),
        ({"arrival_s": 0.125}, "a has other arrival times (0.0 and 0.125)"),
        ({"priority": 3}, "a has other priorities (0 and 3)"),
        ({"text": "two"}, "a has other prompts"),
    ],
)
def test_runs_of_different_workloads_are_refused_with_what_differs(change: dict[str, Any], named: str) -> None:
    one = TracedRun("one", EVENTS)
    other = TracedRun("other", [EVENTS[0], EVENTS[1] | change, *EVENTS[2:]])
    with pytest.raises(UsageError) as refused:
        record([one, other])
    assert named in str(refused.value)
    assert "one and other are runs of different workloads" in str(refused.value)


def test_measured_arrivals_and_refused_requests_make_no_other_workload() -> None:
    measured = {k: v for k, v in EVENTS[2].items() if k != "arrival_s"} | {"wall": {"arrival_s": 0.3}, "after": "a"}
    served = {**EVENTS[2], "id": "c", "arrival_s": 0.0}
    told = record([TracedRun("one", EVENTS), TracedRun("other", [*EVENTS[:2], measured, served, *EVENTS[4:]])])
    assert [request["arrival"] for request in told["runs"][1]["requests"]] == [0.0, 0.3, 0.0]


def test_what_cannot_be_shown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tells of no iteration"):
        record([read_run(write(tmp_path / "t.jsonl", EVENTS[:3]))])
    with pytest.raises(UsageError, match="is empty"):
        read_run(write(tmp_path / "empty.jsonl", []))
    with pytest.raises(UsageError, match=r"version minifuse\.trace/1"):
        read_run(write(tmp_path / "old.jsonl", [{**RUN, "schema": "minifuse.trace/1"}]))
    broken = {key: value for key, value in STEP.items() if key != "kv"}
    with pytest.raises(UsageError, match="cannot be understood"):
        record([TracedRun("t", [*EVENTS[:3], broken])])


def test_later_turns_are_compared_too() -> None:
    turn = {**EVENTS[2], "after": "a", "history_tokens": 1}
    other = {**turn, "max_new_tokens": turn["max_new_tokens"] + 1}
    with pytest.raises(UsageError, match="b has other limits"):
        record([TracedRun(name, [*EVENTS[:2], line, *EVENTS[3:]]) for name, line in (("one", turn), ("two", other))])


@pytest.mark.parametrize(
    "damage",
    [
        {"kv": [1]},
        {"places": []},
        {"wall": {"start_s": 2.0, "end_s": 1.0}},
        {"wall": {"start_s": 0.0, "end_s": math.nan}},
    ],
    ids=str,
)
def test_a_damaged_step_is_refused_as_minifuse_trace_refuses_it(damage: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be understood"):
        record([TracedRun("t", [*EVENTS[:3], {**STEP, **damage}])])


def test_cells_are_told_by_type(traces: Traces) -> None:
    (run,) = record([read_run(path) for path in traces("cellular", model="lstm")])["runs"]
    assert (run["unit"], run["cells"]) == ("state", ["lstm"])
    assert run["steps"][0]["w"][0][3] == 0


def test_texts_are_those_of_the_requests(traces: Traces) -> None:
    (run,) = record([read_run(path) for path in traces("orca")])["runs"]
    request = run["requests"][1]
    assert request["text"] == "add 17 and 25"
    assert request["answer"].strip() == "42"
    assert request["ends"] == sorted(request["ends"])
    assert request["ends"][-1] == len(request["answer"])

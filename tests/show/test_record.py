"""The record: what the page is told of a trace."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crowds import told_and_plain
from events import request
from runs_told import padded, preempted, told

from minifuse.core.errors import UsageError
from minifuse.show.record import record
from minifuse.show.traced_runs import TracedRun, read_run
from minifuse.techniques import TECHNIQUES
from minifuse.trace.log import SCHEMA

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
    | {"step": 1, "work": [["a", 3, 4]], "places": [[1, [9], 4]], "admitted": [], "evicted": ["b"]}
    | {"moves": [["swap_out", 0, 8, 4, "device", "host", "first", 0]], "finished": {"a": "length"}, "computed": 4}
    | {"idle": 3, "kept": [2, 1], "discarded": 1, "reused": [["b", 1, 2]], "tokens": {"a": [6]}}
    | {"reasons": [["evicted", "b", "goes"]]}
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
        | {"ends": [1, 2], "states": [[0, 3], [4, 6]]},
        {"id": "b", "arrival": 0.25, "ended": 1.0, "outcome": "interrupted", **asked}
        | {"waits": [[0, 1, 2], [1, 2, 3], [2, 0, 1]], "states": [[0, 2], [1, 5]]},
        {"id": "c", "arrival": None, "ended": None, "outcome": "refused", "refused": "too long", "states": [[0], [7]]},
    ]
    assert run["steps"] == [
        {"n": 0, "k": 0, "t": [0.0, 0.5], "w": [[0, 0, 3]], "a": [0], "y": [[1, 0]], "c": 3}
        | {"o": [[0, 1]], "kv": [3, 4, 64, 0]}
        | {"s": [28, 3, 1, 2, 0, 1, 31, 1, 1, 1, 0, 4], "fr": [[28, 3]]},
        {"wait": True, "t": [0.5, 0.75], "y": [[1, 0]]},
        {"n": 1, "k": 0, "t": [0.75, 1.0], "w": [[0, 3, 4]], "e": [1], "c": 4, "i": 3}
        | {"m": [["swap_out", 0, 8, 4, "device", "host", "first", 0]], "ru": [[1, 1, 2]], "o": [[0, 1]], "d": 1}
        | {"y": [[1, 1]]}
        | {"f": [[0, "length"]], "kv": [3, 4, 64, 0], "kp": [2, 1], "x": 0.125}
        | {"s": [31, 1, 1, 2, 0, 4, 36, 4, 1, 1, 0, 5], "h": [8, 4, 0, 2, 0, 0], "mo": [0], "fr": [[31, 1]]},
    ]
    assert run["slots"] == {"sets": [[], [0]], "device": 40, "host": 12, "block": 4, "shared": 0}
    unasked = ["not-asked", "came while an iteration ran or was chosen: nothing is decided before that has ended"]
    assert run["reasons"] == [["memory-full", "waits"], ["evicted", "goes"], unasked]
    assert run["passed"] == [[[], []], [[], []]]
    assert (run["title"], run["notice"], run["capacity"]) == ("vllm", None, 64)
    assert (run["unit"], run["cells"], run["workers"]) == ("token", ["transformer"], 1)


def test_what_requests_waited_for_is_told_in_columns() -> None:
    """Of c, which was passed over, in lists that all share: behind whom it was, as that changed."""
    a, b = "not considered: worker 0 admits none behind a", "not considered: worker 0 admits none behind b"
    events = preempted()
    events[1:3] = [*events[1:3], request("d", 0.0, 1)]
    (run,) = record([TracedRun("t", events)])["runs"]

    def waits(name: str) -> list[tuple[int, int, str]]:
        told = next(one for one in run["requests"] if one["id"] == name)["waits"]
        every = [["behind others", ""], *run["reasons"]]  # -1 is the last, -2 would be the one before it
        return [(start, stop, every[reason + 1][0]) for start, stop, reason in zip(*told, strict=True)]

    assert waits("a") == [(2, 3, "evicted"), (3, 4, "memory-full")]
    assert waits("b") == [(0, 2, "batch-full")]
    assert waits("c") == [(1, 2, "not-asked"), (2, 4, "behind others"), (4, 5, "batch-full")]
    assert waits("d") == [(0, 6, "behind others")]
    (columns, reasons), uncertain = run["passed"]
    texts = [run["reasons"][reason][1] for reason in reasons]
    assert [*zip(columns, texts, strict=True)] == [
        (0, b),
        (2, "not admitted: worker 0 evicts a"),
        (3, a),
        (4, a.replace("behind a", "behind c")),
        *([(5, texts[4])] if len(texts) > 4 else []),
    ]
    assert uncertain == [[], []]
    assert [step.get("y", []) for step in run["steps"]] == [
        [[1, 0]],
        [[1, 0]],
        [[0, 1]],
        [[0, 2]],
        [[3, 0]],
        [],
    ]


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_page_tells_the_same_of_a_run_that_told_of_each_request(name: str) -> None:
    """As with --why: there is nothing more to know."""
    each, plain = (record([TracedRun("t", events)]) for events in told_and_plain(name))
    assert each == plain


def test_what_no_column_shows_is_left_out_and_each_list_is_known_by_its_number() -> None:
    """b comes at 0.2 s and joins worker 1 at 0.6 s: both within the first column. c is in no batch until the third."""
    events = [
        *preempted()[:1],
        *(request(name, arrival_s, 1) for name, arrival_s in (("a", 0.0), ("b", 0.2), ("c", 0.0))),
        told(1, [["b", 0, 1]], {"b": [7]}, admitted=["b"], worker=1, at=(0.6, 0.9)),
        told(0, [["a", 0, 1]], {"a": [7]}, admitted=["a"], at=(0.0, 1.0)),
        told(2, [["c", 0, 1]], {"c": [7]}, admitted=["c"], at=(1.0, 2.0)),
    ]
    (run,) = record([TracedRun("t", events)])["runs"]
    assert [request.get("waits") for request in run["requests"]] == [None, None, [[0], [2], [-2]]]
    texts = [f"not admitted: worker {k} runs 1 token without it" for k in (0, 1)]
    assert [[run["reasons"][reason][1] for reason in reasons] for _, reasons in run["passed"]] == [[], texts[1:]]
    assert [columns for columns, _ in run["passed"]] == [[], [0]]


def test_idle_rows_are_told_in_columns() -> None:
    """The pause is the first column."""
    (run,) = record([TracedRun("t", padded())])["runs"]
    assert [request.get("idle") for request in run["requests"]] == [None, [2, 3]]


def test_pauses_have_the_reasons_of_their_own() -> None:
    events = padded()
    window = ["window-open", "a", "not admitted: it is still open"]
    first = events[2] | {"wall": {"start_s": 0.0, "end_s": 0.5}}
    events[2:3] = [first, events[2] | {"reasons": [window], "wall": {"start_s": 0.5, "end_s": 1.0}}]
    (run,) = record([TracedRun("t", events)])["runs"]
    told = [[run["reasons"][reason][1] for _, reason in step.get("y", [])] for step in run["steps"]]
    assert told == [[first["reasons"][0][2]], [window[2]], [], [], []]


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
        ({"user": "ann"}, "a has other users (None and ann)"),
        ({"text": "two"}, "a has other prompts"),
    ],
)
def test_runs_of_different_workloads_are_refused_with_what_differs(change: dict[str, Any], named: str) -> None:
    one = TracedRun("one", EVENTS)
    renamed = json.loads(json.dumps(EVENTS[2:]).replace('"a"', '"z"')) if "id" in change else EVENTS[2:]
    other = TracedRun("other", [EVENTS[0], EVENTS[1] | change, *renamed])
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


@pytest.mark.parametrize(("told", "workers"), [("3", 3), (2, 2), ("0", 1), ("-2", 1), ("many", 1), ("9" * 30, 1)])
def test_workers_are_those_of_the_run_also_without_a_task(told: object, workers: int) -> None:
    header = {**EVENTS[0], "options": {"batching.workers": told}}
    (run,) = record([TracedRun("t", [header, *EVENTS[1:]])])["runs"]
    assert {event["worker"] for event in EVENTS if event["event"] == "step"} == {0}
    assert run["workers"] == workers


def test_texts_are_those_of_the_requests(traces: Traces) -> None:
    (run,) = record([read_run(path) for path in traces("orca")])["runs"]
    request = run["requests"][1]
    assert request["text"] == "add 17 and 25"
    assert request["answer"].strip() == "42"
    assert request["ends"] == sorted(request["ends"])
    assert request["ends"][-1] == len(request["answer"])

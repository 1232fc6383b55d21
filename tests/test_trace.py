"""The event log: the file equals the events, decisions are all but the times, other files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import asks, make_engine, sentence

from minifuse.errors import UsageError
from minifuse.layout import Layout, Rectangle
from minifuse.place import Extent
from minifuse.plan import Move, Plan, Reason
from minifuse.report import KVUsage, Messages, StepReport, Traffic, Transfers
from minifuse.request import FinishReason, Phase
from minifuse.serve.run import serve
from minifuse.trace import SCHEMA, Trace, decisions, read_trace
from minifuse.work import Span, Work

REPORT = StepReport(
    Plan(
        4,
        1,
        (Work("a", 0, 3), Work("b", 1, 2, "lstm")),
        (Extent(0, 5), Extent(5, 5)),
        admitted=("a",),
        moves=(Move("shuffle", 7, 2, 3),),
        layout=Layout((Span(0, 1), Span(1, 2)), Rectangle(0, 2, 5, 0, 3), ((0,), (1,))),
        reasons=(Reason("memory-full", "c", "not admitted: full"),),
    ),
    started_s=1.5,
    ended_s=2.25,
    tokens={"a": (17, 18)},
    finished={"a": FinishReason.STOP},
    usage=KVUsage(4, 10, 12),
    moving_s=0.125,
    messages=Messages(5, 640),
    transfers=Transfers(Traffic(96, 0.25), Traffic(64, 0.5), 0.125),
)


def test_a_step_as_an_event() -> None:
    trace = Trace()
    trace.step(REPORT)
    *_, event = trace.events()
    assert event == {
        "event": "step",
        "step": 4,
        "worker": 1,
        "work": [["a", 0, 3], ["b", 1, 2, "lstm"]],
        "places": [[0, 5], [5, 5]],
        "admitted": ["a"],
        "evicted": [],
        "phase": "running",
        "shape": {"kind": "Rectangle", "offset": 0, "rows": 2, "stride": 5, "start": 0, "stop": 3},
        "moves": [["shuffle", 7, 2, 3, "device", "device", "first", 0]],
        "waves": [[0, 1], [1, 2]],
        "lanes": [[0], [1]],
        "reasons": [["memory-full", "c", "not admitted: full"]],
        "computed": 6,
        "idle": 2,
        "tokens": {"a": [17, 18]},
        "finished": {"a": "stop"},
        "kv": [4, 10, 12, 0],
        "wall": {
            "start_s": 1.5,
            "end_s": 2.25,
            "moving_s": 0.125,
            "transfers": {"to_host": [96, 0.25], "to_device": [64, 0.5], "exposed_s": 0.125, "hidden_s": 0.625},
            "messages": 5,
            "message_bytes": 640,
        },
    }
    assert json.loads(json.dumps(event)) == event


def test_the_file_equals_the_events(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = Trace(path, technique="dynamic", model="naïve — \u2028 model")
    engine = make_engine("dynamic", settings={"batching.window": "1500ms"}, trace=trace)
    requests = [asks("a", 2, 2), asks("b\u2028 é", 3, 3, at=0.25), asks("bad", (), 1), asks("c", 2, 1, at=20)]
    served = serve(engine, requests)
    events = list(served.trace.events())
    assert {event["event"] for event in events} == {"run", "request", "refused", "wait", "step", "end"}
    assert read_trace(path) == events
    assert events[0] == {"event": "run", "schema": SCHEMA, "technique": "dynamic", "model": "naïve — \u2028 model"}


def test_the_file_of_an_interrupted_run_is_whole(tmp_path: Path) -> None:
    def stop(_: StepReport) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "trace.jsonl"
    served = serve(make_engine(trace=Trace(path)), [asks("a", 2, 5)], on_step=stop)
    assert read_trace(path) == list(served.trace.events())
    assert read_trace(path)[-1]["unfinished"] == ["a"]


def test_nothing_is_written_after_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = Trace(path)
    trace.end((), 1.0)
    trace.close()
    trace.refused("late", "why")
    assert [event["event"] for event in read_trace(path)] == ["run", "end"]
    assert [event["event"] for event in trace.events()] == ["run", "end", "refused"]


# --- decisions


def _events(**changes: Any) -> list[dict[str, Any]]:
    wait = {"event": "wait", "reasons": [["window-open", "a", "not yet"]], "wall": {"start_s": 0.0, "end_s": 1.0}}
    step = {"event": "step", "step": 0, "tokens": {"a": [1]}, "wall": {"start_s": 0.0, "end_s": 1.0}}
    return [{"event": "run", "schema": SCHEMA}, wait, step | changes]


def test_decisions_leave_out_the_time_and_nothing_else() -> None:
    assert decisions(_events()) == decisions(_events(wall={"start_s": 5.0, "end_s": 7.0}))
    assert decisions(_events()) != decisions(_events(step=1))
    assert decisions(_events()) != decisions(_events(tokens={"a": [2]}))
    assert decisions(_events()) != decisions(_events(walls=1))
    assert decisions(_events()) != decisions(_events()[:2])
    assert decisions(_events()) != decisions(reversed(_events()))
    lines = decisions(_events()).decode().split("\n")
    assert [json.loads(line) for line in lines] == [
        {name: value for name, value in event.items() if name != "wall"} for event in _events()
    ]


def test_decisions_do_not_depend_on_the_order_of_fields() -> None:
    backwards = [dict(reversed(event.items())) for event in _events()]
    assert decisions(backwards) == decisions(_events())


def test_every_field_of_a_report_but_its_times_is_a_decision() -> None:
    from dataclasses import replace

    def logged(report: StepReport) -> bytes:
        trace = Trace()
        trace.step(report)
        return decisions(trace.events())

    def with_plan(**changes: Any) -> StepReport:
        return replace(REPORT, plan=replace(REPORT.plan, **changes))

    assert logged(replace(REPORT, started_s=0.0, ended_s=99.0)) == logged(REPORT)
    layout = REPORT.plan.layout
    changed = [
        replace(REPORT, tokens={"a": (18,)}),
        replace(REPORT, finished={}),
        replace(REPORT, usage=KVUsage(5, 10, 12)),
        with_plan(step=5),
        with_plan(worker=0),
        with_plan(work=(Work("a", 0, 2), Work("b", 1, 2, "lstm"))),
        with_plan(places=(Extent(0, 5), Extent(6, 5))),
        with_plan(admitted=()),
        with_plan(phase=Phase.PREPROCESSING),
        with_plan(layout=replace(layout, shape=None)),
        with_plan(moves=()),
        with_plan(layout=replace(layout, waves=())),
        with_plan(layout=replace(layout, lanes=())),
        with_plan(reasons=()),
    ]
    assert len({logged(report) for report in [REPORT, *changed]}) == len(changed) + 1


# --- files that are not traces


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "such" / "folder.jsonl", tmp_path):
        with pytest.raises(UsageError) as error:
            Trace(path)
        sentence(error.value, str(path), "--trace")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(UsageError) as error:
            read_trace(path)
        sentence(error.value, str(path), "--trace")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"\xff\xfe",
        b"[1]\n",
        b'"minifuse.trace/4"\n',
        b'{"event": "run"}\n',
        b'{"event": "run", "schema": "minifuse.trace/0"}\n',
        b'{"event": "run", "schema": "minifuse.run/1"}\n',
        b'{"event": "run", "schema": "minifuse.trace/4"}\n{"event": "st',
        b'{"event": "run", "schema": "minifuse.trace/4"}\n5\n',
    ],
)
def test_a_file_that_is_not_a_trace(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        read_trace(path)
    sentence(error.value, str(path), "not a trace")

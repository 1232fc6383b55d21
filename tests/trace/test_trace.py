"""The event log: the file equals the events, decisions are all but the times, other files are refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import asks, make_engine, run_all, sentence

from minifuse.core.errors import UsageError
from minifuse.core.measured import Measured
from minifuse.core.places import Pages
from minifuse.core.plan import Extent, Layout, Move, Plan, Reason, Span, Work
from minifuse.core.report import KVUsage, StepReport
from minifuse.core.request import FinishReason, Phase
from minifuse.core.shapes import Rectangle
from minifuse.io.parsing import parse_goodput
from minifuse.serve.run import serve
from minifuse.trace.log import SCHEMA, Event, Trace, decisions, read_trace, whole_tables
from minifuse.trace.metrics import compute_metrics
from minifuse.trace.running import RunningMetrics

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
    measured=Measured(0.125, 5, 640, 0, 0, 0.0, 96, 0.25, 64, 0.5, 0.125),
)


def test_a_step_as_an_event() -> None:
    trace = Trace()
    trace.completed(REPORT)
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


class _Letters:
    """Token 1 as "b", token 2 as "c" and so on; none for the tokens of one request."""

    def text(self, tokens: Sequence[int]) -> str | None:
        return None if 0 in tokens else "".join(chr(97 + token) for token in tokens)

    def pieces(self, tokens: Sequence[int]) -> tuple[str, list[int]] | None:
        return None if (text := self.text(tokens)) is None else (text, [i + 1 for i in range(len(tokens))])


LETTERS = _Letters()


def test_texts_are_told_of_prompts_at_once_and_of_answers_at_the_end(tmp_path: Path) -> None:
    path, handed = tmp_path / "trace.jsonl", list[Event]()
    served = serve(
        make_engine(trace=Trace(path, handed.append, texts=LETTERS)), [asks("a", 2, 3), asks("z", (0, 1), 1)]
    )
    events = read_trace(path)
    (first, second) = (event for event in events if event["event"] == "request")
    assert first["text"] == LETTERS.text(served.answers[0].request.prompt)
    assert "text" not in second
    answers = {answer.request.id: answer.token_ids for answer in served.answers}
    told = [event for event in events if event["event"] == "answer"]
    known = [(name, LETTERS.pieces(tokens)) for name, tokens in answers.items()]
    assert {event["id"]: (event["text"], event["ends"]) for event in told} == {name: one for name, one in known if one}
    assert told
    assert [event["event"] for event in events[-len(told) - 1 :]] == ["answer"] * len(told) + ["end"]
    assert [event["event"] for event in handed] == [event["event"] for event in events]


def answered(path: Path) -> dict[str, str]:
    """The text of every answer in a trace; each is told once."""
    told = [(event["id"], event["text"]) for event in read_trace(path) if event["event"] == "answer"]
    assert len(dict(told)) == len(told)
    return dict(told)


def test_what_has_been_generated_of_an_answer_that_was_broken_off_is_told(tmp_path: Path) -> None:
    """a is aborted after two tokens, c before it has arrived; b is interrupted after four."""
    path = tmp_path / "trace.jsonl"
    engine = make_engine(trace=Trace(path, texts=LETTERS))

    def stop(report: StepReport) -> None:
        if report.plan.step == 1:
            engine.abort("a")
            engine.abort("c")
        if report.plan.step == 3:
            raise KeyboardInterrupt

    served = serve(engine, [asks("a", 2, 9), asks("b", 3, 9), asks("c", 3, 9, at=1e9)], on_step=stop)
    texts = {answer.request.id: LETTERS.text(answer.token_ids) for answer in served.answers}
    assert answered(path) == {"a": texts["a"], "b": texts["b"]}
    assert {name: len(text) for name, text in answered(path).items()} == {"a": 2, "b": 4}


def test_an_engine_that_runs_twice_tells_each_answer_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    engine = make_engine(trace=Trace(path, texts=LETTERS))
    for name in "ab":
        run_all(engine, [asks(name, 2, 3)])
    assert [event["event"] for event in read_trace(path)].count("end") == 2
    assert answered(path).keys() == {"a", "b"}


def test_texts_change_no_decision_and_metrics_read_past_them() -> None:
    plain, texts = Trace(), Trace(texts=LETTERS)
    for trace in (plain, texts):
        run_all(make_engine("static", trace=trace), [asks("a", 2, 3), asks("b", 3, 1)])
    told = [event for event in texts.events() if event["event"] != "answer"]
    assert len(told) < len(list(texts.events()))
    without = [{name: value for name, value in event.items() if name != "text"} for event in told]
    assert decisions(without) == decisions(plain.events())
    assert compute_metrics(texts.events()) == compute_metrics(plain.events())


def test_the_file_of_an_interrupted_run_is_whole(tmp_path: Path) -> None:
    def stop(_: StepReport) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "trace.jsonl"
    served = serve(make_engine(trace=Trace(path)), [asks("a", 2, 5)], on_step=stop)
    assert read_trace(path) == list(served.trace.events())
    assert read_trace(path)[-1]["unfinished"] == ["a"]


def test_what_follows_the_end_is_written_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = Trace(path)
    trace.ended((), 1.0)
    trace.close()
    trace.refused("late", "why")
    assert [event["event"] for event in read_trace(path)] == ["run", "end", "refused"]
    assert [event["event"] for event in trace.events()] == ["run", "end", "refused"]


# --- block tables


def test_a_table_is_told_as_what_is_new() -> None:
    """Of two sequences, one grows; the other gets a copy of its last block, ends, and comes again under its name."""
    tables = [{"a": (4, 7), "b": (4, 5)}, {"a": (4, 7, 2), "b": (4, 5)}, {"b": (4, 9)}, {"b": (1,), "a": (4, 7, 2)}]
    finished: list[dict[str, FinishReason]] = [{}, {}, {"b": FinishReason.STOP}, {}]
    trace = Trace()
    for held, ended in zip(tables, finished, strict=True):
        work = tuple(Work(name, 0, 2) for name in held)
        plan = Plan(0, 0, work, tuple(Pages(blocks, 16) for blocks in held.values()))
        trace.completed(StepReport(plan, 0.0, 1.0, {}, ended, KVUsage(0, 0, 64)))
    events = list(trace.events())
    assert [event["places"] for event in events[1:]] == [
        [[0, [4, 7], 16], [0, [4, 5], 16]],
        [[2, [2], 16], [2, [], 16]],
        [[1, [9], 16]],
        [[0, [1], 16], [3, [], 16]],
    ]
    whole = [[[list(blocks), 16] for blocks in held.values()] for held in tables]
    assert [event["places"] for event in whole_tables(events) if event["event"] == "step"] == whole


@pytest.mark.parametrize("share", ["on", "off"])
def test_tables_told_in_part_are_those_of_the_plans(share: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    settings = {"memory.block_size": 2, "memory.share": share, "memory.preemption": "swap", "batching.max_batch": 4}
    engine = make_engine("vllm", capacity=26, settings=settings, trace=Trace(path))
    requests = [asks(f"r{i}", (1, 2, 3, 4 + i % 2), 9, at=0.5 * i) for i in range(7)]
    reports: list[StepReport] = []
    served = serve(engine, requests, on_step=reports.append)
    events = read_trace(path)
    assert events == list(served.trace.events())
    steps = [event for event in whole_tables(events) if event["event"] == "step"]
    for step, report in zip(steps, reports, strict=True):
        pages = [place for place in report.plan.places if isinstance(place, Pages)]
        assert step["places"] == [[list(place.blocks), place.size] for place in pages]
    assert any(report.plan.evicted for report in reports)
    told = sum(len(place[1]) for event in events if event["event"] == "step" for place in event["places"])
    assert told * 3 < sum(len(place[0]) for step in steps for place in step["places"])


# --- events handed on


@pytest.mark.parametrize("name", ["vllm", "orca", "fusion", "instances", "cellular", "static"])
def test_metrics_while_it_runs_are_those_of_the_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    bounds = parse_goodput("ttft:3000,tpot:2000")
    counted = RunningMetrics(bounds)
    settings = {"memory.block_size": 2, "memory.preemption": "swap"} if name == "vllm" else {}
    trace = Trace(path, counted.read, technique=name, kv_bytes_per_token=10)
    engine = make_engine(name, capacity=160 if name in ("static", "fusion") else 48, settings=settings, trace=trace)
    requests = [asks(f"r{i}", 1 + i % 4, 1 + 3 * i % 11, at=0.7 * i) for i in range(12)]
    serve(engine, [*requests, asks("bad", (), 1)])
    metrics = counted.result()
    assert metrics == compute_metrics(read_trace(path), bounds)
    assert metrics["tokens"]["output"] == sum(request.max_new_tokens for request in requests)


def test_events_that_are_handed_on_are_not_kept() -> None:
    events: list[Event] = []
    trace = Trace(into=events.append, technique="orca")
    run_all(make_engine("orca", trace=trace), [asks("a", 2, 2)])
    assert [event["event"] for event in events] == ["run", "request", "step", "step", "end"]
    assert trace.header == events[0]
    assert not trace._events
    with pytest.raises(UsageError) as error:
        trace.events()
    sentence(error.value, "not kept", "`into`", "leave")


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
        trace.completed(report)
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
        with_plan(places=(Pages((1,), 4), Extent(5, 5))),
        with_plan(places=(Pages((2,), 4), Extent(5, 5))),
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
        b'"minifuse.trace/5"\n',
        b'{"event": "run"}\n',
        b'{"event": "run", "schema": "minifuse.trace/0"}\n',
        b'{"event": "run", "schema": "minifuse.run/1"}\n',
        b'{"event": "run", "schema": "minifuse.trace/5"}\n{"event": "st\n{"event": "end"}\n',
        b'{"event": "run", "schema": "minifuse.tra',
        b'{"event": "run", "schema": "minifuse.trace/5"}\n5\n',
    ],
)
def test_a_file_that_is_not_a_trace(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError) as error:
        read_trace(path)
    sentence(error.value, str(path), "not a trace")


def test_a_trace_that_was_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    engine = make_engine(trace=Trace(path))
    run_all(engine, [asks("a", 2, 3), asks("b", 1, 2, at=1.5)])
    whole, events = path.read_bytes(), read_trace(path)
    header = whole.index(b"\n") + 1
    for cut in range(header, len(whole)):
        path.write_bytes(whole[:cut])
        kept = read_trace(path)
        assert kept == events[: len(kept)]
        assert len(kept) in (whole[:cut].count(b"\n"), whole[: cut + 1].count(b"\n"))  # a line may lack its end alone
        compute_metrics(kept)


def test_a_trace_that_cannot_be_written_any_more_ends_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = Trace(tmp_path / "t.jsonl")
    engine = make_engine(trace=trace)
    engine.submit(asks("a", 2, 5))
    for step in engine.run():
        if step.plan.step == 2:
            assert trace.failure is None

            def full(event: Event) -> str:
                raise OSError(28, "No space left on device")

            monkeypatch.setattr("minifuse.trace.file.json.dumps", full)
    monkeypatch.undo()
    assert engine.finished["a"].num_new == 5
    sentence(UsageError(trace.failure), "t.jsonl", "to its end", "No space left on device")
    kept = read_trace(tmp_path / "t.jsonl")
    assert kept == list(trace.events())[: len(kept)]
    assert [event["event"] for event in kept] == ["run", "request", "step", "step", "step"]

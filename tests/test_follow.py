"""Requests that follow others: turns of conversations, in turn, behind all the text before them."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import answers_of, asks, make_engine, refusal, run_all, schedule, sentence

from minifuse.core.errors import RequestRefused
from minifuse.core.request import FinishReason, Request
from minifuse.testing.texts.models import CONTEXT, expected_answer
from minifuse.trace.log import decisions
from minifuse.trace.metrics import compute_metrics

TURNS = [
    asks("a", (5, 6), 3, conversation="c", ignore_eos=True),
    asks("b", (7,), 2, conversation="c", after="a", delay_s=2.5, ignore_eos=True),
    asks("d", (8, 9), 1, conversation="c", after="b", ignore_eos=True),
]


def test_a_turn_arrives_after_the_answer_and_the_delay_behind_all_the_text() -> None:
    """a ends at 3 and b arrives at 5.5, with 2 + 3 tokens in front of its own; b ends at 7.5, d arrives then."""
    engine = make_engine(model="llama")
    steps = run_all(engine, TURNS)
    assert schedule(steps) == [
        *("0: a[0:2)", "1: a[2:3)", "2: a[3:4)"),
        *("5.5: b[0:6)", "6.5: b[6:7)"),
        "7.5: d[0:10)",
    ]
    a, b, d = (engine.finished[name] for name in "abd")
    assert (b.request.prompt, b.num_history) == ((*a.tokens, 7), 5)
    assert (d.request.prompt, d.num_history) == ((*b.tokens, 8, 9), 8)
    assert [sequence.request.arrival_s for sequence in (a, b, d)] == [0.0, 5.5, 7.5]
    assert answers_of(engine) == {s.id: expected_answer("llama", s.request) for s in (a, b, d)}


def test_a_request_of_a_conversation_waits_its_turn() -> None:
    """It need not name the one before it, which another thread may have submitted."""
    engine = make_engine(model="llama")
    run_all(engine, [asks(name, (token,), 3, conversation="c") for name, token in (("a", 5), ("b", 6), ("d", 7))])
    text: tuple[int, ...] = ()
    for name, token in (("a", 5), ("b", 6), ("d", 7)):
        ended = engine.finished[name]
        assert ended.request.prompt == (*text, token)
        text = tuple(ended.tokens)
        assert tuple(ended.answer) == expected_answer("llama", ended.request)
    engine.submit(asks("e", (8,), 1, conversation="c"))
    list(engine.run())
    assert engine.finished["e"].request.prompt == (*text, 8)


def test_a_stop_token_is_part_of_the_history() -> None:
    first = asks("a", (5, 6), 4, conversation="c", stop_ids=(-1,))  # the placeholder
    engine = make_engine()
    run_all(engine, [first, asks("b", (7,), 1, conversation="c", after="a")])
    assert engine.finished["a"].finish_reason is FinishReason.STOP
    assert engine.finished["b"].request.prompt == (5, 6, -1, 7)


def test_a_turn_comes_no_earlier_than_its_own_arrival() -> None:
    steps = run_all(make_engine(), [asks("a", 1, 1), asks("b", 1, 1, at=9.0, after="a", delay_s=2.0)])
    assert schedule(steps) == ["0: a[0:1)", "9: b[0:3)"]


def test_a_turn_submitted_after_the_end_of_the_one_before() -> None:
    engine = make_engine()
    engine.submit(asks("a", 1, 1))
    engine.submit(asks("x", 1, 5))
    for step in engine.run():
        if step.plan.step == 1:
            engine.submit(asks("soon", 1, 1, after="a", delay_s=0.5))  # that was at 1.5, and now it is 2
            engine.submit(asks("late", 1, 1, after="a", delay_s=2.25))
    assert [engine.finished[name].request.arrival_s for name in ("soon", "late")] == [2.0, 3.25]


def test_several_may_follow_one() -> None:
    engine = make_engine()
    steps = run_all(engine, [asks("a", 1, 1), asks("b", 1, 1, after="a"), asks("c", 2, 1, after="a", delay_s=1)])
    assert schedule(steps) == ["0: a[0:1)", "1: b[0:3)", "2: c[0:4)"]


@pytest.mark.parametrize(
    ("turn", "parts"),
    [
        (asks("z", conversation="c", after="d"), ["'z'", "conversation 'c'", "last request is 'a'", "give after"]),
        (asks("z", conversation="e", after="a"), ["'z'", "follows 'a'", "conversation 'e'"]),
        (asks("z", after="y"), ["'z'", "follows 'y'", "not submitted before"]),
        (asks("z", after="z"), ["'z'", "follows 'z'", "not submitted before"]),
        (asks("z", delay_s=1.0), ["'z'", "delay_s of 1", "follows no request"]),
        (asks("z", after="a", conversation="c", delay_s=-1.0), ["'z'", "delay_s of -1", "from 0 to"]),
        (asks("z", after="a", conversation="c", delay_s=float("nan")), ["'z'", "delay_s of nan"]),
        (asks("z", group="g", conversation="f"), ["'z'", "several prompts", "conversation"]),
        (asks("z", group="g", after="a"), ["'z'", "several prompts", "after"]),
    ],
)
def test_turns_that_are_refused_at_once(turn: Request, parts: list[str]) -> None:
    engine = make_engine()
    engine.submit(asks("a", conversation="c"))
    with refusal(RequestRefused, *parts):
        engine.submit(turn)
    engine.submit(asks("b", conversation="c", after="a"))  # the refused one left nothing behind
    list(engine.run())
    assert set(engine.finished) == {"a", "b"}


def test_a_turn_whose_whole_text_is_too_long_is_refused_when_it_arrives_with_those_behind_it() -> None:
    engine = make_engine(capacity=CONTEXT)
    turns = [
        asks("a", 20, 20),
        asks("b", 5, 4, after="a"),
        asks("c", 1, 1, after="b"),
        asks("d", 1, 1, after="c"),
        asks("x", 1, 1),
    ]
    run_all(engine, turns)
    assert engine.finished["x"].finish_reason is FinishReason.LENGTH
    sentence(RequestRefused(engine.refused["b"]), "'b'", "45 prompt tokens", "context is 48")
    sentence(RequestRefused(engine.refused["c"]), "'c' follows 'b', which was refused")
    sentence(RequestRefused(engine.refused["d"]), "'d' follows 'c', which was refused")
    assert [one.id for one in engine.requests.ended] == ["x", "a", "b", "c", "d"]
    with pytest.raises(RequestRefused, match="follows 'b', which was refused"):
        engine.submit(asks("e", after="b"))
    assert compute_metrics(engine.trace.events())["requests"]["refused"] == 4


def test_a_turn_that_memory_cannot_hold_is_refused_when_it_arrives() -> None:
    engine = make_engine(capacity=12)
    run_all(engine, [asks("a", 4, 4), asks("b", 2, 4, after="a"), asks("x", 2, 2)])
    sentence(RequestRefused(engine.refused["b"]), "'b'", "13 tokens", "memory holds 12")
    assert set(engine.finished) == {"a", "b", "x"}


def test_the_trace_tells_when_a_turn_arrived_and_replays_exactly(tmp_path: Path) -> None:
    engine = make_engine(model="llama")
    run_all(engine, TURNS)
    events = list(engine.trace.events())
    arrived = [event for event in events if event["event"] == "request"]
    times = [event.get("wall", event)["arrival_s"] for event in arrived]  # when the last turn had ended is measured
    assert [(e["id"], at, e.get("after"), e.get("history_tokens")) for e, at in zip(arrived, times, strict=True)] == [
        *(("a", 0.0, None, None), ("b", 5.5, "a", 5), ("d", 7.5, "b", 8))
    ]
    again = make_engine(model="llama")
    run_all(again, TURNS)
    assert decisions(events) == decisions(again.trace.events())
    assert [event["id"] for event in arrived if "arrival_s" in event] == ["a"]


def test_a_conversation_goes_on_behind_a_turn_that_never_arrived() -> None:
    engine = make_engine(model="llama")
    for turn in TURNS:
        engine.submit(turn)
    steps = engine.run()
    next(steps)
    engine.abort("b")  # and d, which follows it
    with pytest.raises(RequestRefused, match="follows 'b', which was aborted before it arrived"):
        engine.submit(asks("e", (4,), 2, after="b"))
    with pytest.raises(RequestRefused, match="whose last request is 'a'"):
        engine.submit(asks("e", (4,), 2, conversation="c", after="b"))
    engine.submit(asks("e", (4,), 2, conversation="c", after="a"))
    list(steps)
    whole = engine.finished["e"].request
    assert whole.prompt == (*engine.finished["a"].tokens, 4)
    assert tuple(engine.finished["e"].answer) == expected_answer("llama", whole)


def test_a_conversation_goes_on_behind_a_turn_that_was_refused() -> None:
    engine = make_engine(capacity=CONTEXT)
    run_all(engine, [asks("a", 20, 20, conversation="c"), asks("b", 5, 4, conversation="c", after="a")])
    assert set(engine.refused) == {"b"}
    run_all(engine, [asks("d", 1, 4, conversation="c", after="a")])
    assert engine.finished["d"].num_history == 40


def test_what_follows_a_request_that_was_refused_at_once_is_told_so() -> None:
    engine = make_engine(capacity=CONTEXT)
    with pytest.raises(RequestRefused):
        engine.submit(asks("b", 40, 40, conversation="c"))
    with pytest.raises(RequestRefused, match="'d' follows 'b', which was refused"):
        engine.submit(asks("d", 1, 4, conversation="c", after="b"))
    engine.submit(asks("g0", 1, 1, group="g"), asks("g1", 1, 1, group="g"))
    with pytest.raises(RequestRefused, match="'e' follows 'g', which has several prompts: give after as one of"):
        engine.submit(asks("e", 1, 1, after="g"))


# --- files


def test_the_turns_of_a_file_follow_each_other(tmp_path: Path) -> None:
    from minifuse.workload.files import read_jsonl

    lines = [
        '{"prompt_token_ids": [1], "conversation": "c", "arrival_s": 1.0}',
        '{"prompt_token_ids": [2], "conversation": "e"}',
        '{"prompt_token_ids": [3], "conversation": "c", "think_s": 2.5, "id": "again"}',
        '{"prompt_token_ids": [4]}',
        '{"prompt_token_ids": [5], "conversation": "c", "arrival_s": 30}',
    ]
    turns = [(r.id, r.after, r.delay_s, r.arrival_s) for r in read_jsonl(lines, lambda text: ())]
    assert turns == [
        *(("r0", None, 0.0, 1.0), ("r1", None, 0.0, 0.0), ("again", "r0", 2.5, 0.0)),
        *(("r3", None, 0.0, 0.0), ("r4", "again", 0.0, 30.0)),
    ]

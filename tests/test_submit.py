"""What may be submitted: the prompts of one request together, and nothing that could never be served."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
from helpers import asks, make_engine, make_real_engine, refusal, run_all, sentence

from minifuse.core.errors import RequestRefused
from minifuse.core.request import Request
from minifuse.testing.texts.models import CONTEXT, VOCAB
from minifuse.trace.log import Trace, read_trace
from minifuse.trace.step import step_decisions

# --- requests of several prompts


def test_prompts_of_one_request_are_submitted_as_one() -> None:
    engine = make_engine()
    engine.submit(asks("g/0", 2, 1, group="g"), asks("g/1", 3, 1, group="g"))
    assert [step.plan.num_tokens for step in engine.run()] == [5]


@pytest.mark.parametrize(
    ("prompts", "parts"),
    [
        ([asks("a", group="g"), asks("b", group="h")], ["'a' and 'b'", "group, arrival, priority or user"]),
        ([asks("a", group="g"), asks("b", at=1.0, group="g")], ["'a' and 'b'", "group, arrival, priority or user"]),
        ([asks("a", group="g"), asks("b", priority=1, group="g")], ["'a' and 'b'", "group, arrival, priority or user"]),
        ([asks("a", group="g"), asks("b", group="g", user="ann")], ["'a' and 'b'", "priority or user"]),
        ([asks("a", group="g"), asks("a", group="g")], ["'a' was submitted twice"]),
        ([asks("a"), asks("b")], ["'a' to 'b'", "no group"]),
        ([asks("a", group="g"), asks("b", 300, 101, group="g")], ["'b'", "context"]),
        ([asks("a", 20, 21, group="g"), asks("b", 20, 21, group="g")], ["'g' with its 2 prompts", "80 tokens", "70"]),
    ],
)
def test_prompts_that_are_not_one_request(prompts: list[Request], parts: list[str]) -> None:
    engine = make_engine(capacity=70)
    with refusal(RequestRefused, *parts):
        engine.submit(*prompts)
    assert not engine.requests.unfinished
    engine.submit(asks("b"))  # the refused request left nothing behind


def test_a_group_and_a_request_have_different_ids() -> None:
    engine = make_engine()
    engine.submit(asks("x"))
    engine.submit(asks("g/0", group="g"))
    with refusal(RequestRefused, "group 'x' has the id of a request"):
        engine.submit(asks("x/0", group="x"), asks("x/1", group="x"))
    with refusal(RequestRefused, "'g' has the id of a group"):
        engine.submit(asks("g"))


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"at": math.nan}, ["arrival_s of nan", "from 0 to 1e+12"]),
        ({"at": math.inf}, ["arrival_s of inf"]),
        ({"at": -1.0}, ["arrival_s of -1.0"]),
        ({"at": "1"}, ["arrival_s of '1'"]),
        ({"after": "a", "delay_s": 10**400}, ["delay_s of 1000"]),
        ({"after": "a", "delay_s": "1"}, ["delay_s of '1'"]),
        ({"priority": 10**400}, ["priority of 1000", "whole number"]),
        ({"priority": "high"}, ["priority of 'high'"]),
    ],
)
def test_times_and_priorities_have_limits(given: dict[str, Any], parts: list[str]) -> None:
    engine = make_engine(settings={"batching.order": "priority", "batching.ageing": 2.0})
    engine.submit(asks("a"))
    with refusal(RequestRefused, "'b'", *parts):
        engine.submit(asks("b", **given))
    assert [step.plan.sequences for step in engine.run()] == [["a"]] * 3


def test_what_is_submitted_after_a_run_is_served_by_the_next(tmp_path: Path) -> None:
    engine = make_engine(trace=Trace(tmp_path / "t.jsonl"))
    assert len(run_all(engine, [asks("a", 2, 2)])) == 2
    steps = run_all(engine, [asks("b", 2, 2), asks("c", 2, 1, after="a", delay_s=5.0)])
    assert [(step.plan.sequences, step.started_s) for step in steps] == [(["b"], 2.0), (["b"], 3.0), (["c"], 7.0)]
    assert read_trace(tmp_path / "t.jsonl") == list(engine.trace.events())


def test_between_two_runs_a_real_clock_goes_on() -> None:
    engine = make_real_engine()
    run_all(engine, [asks("a", 1, 1)])
    paused_s = engine.clock.now()
    (step,) = run_all(engine, [asks("b", 1, 1)])
    assert engine.finished["b"].request.arrival_s >= paused_s
    assert step.started_s >= paused_s


def test_a_group_is_submitted_once() -> None:
    """Otherwise two requests would be queued as one, which might never fit."""
    engine = make_engine("fusion", settings={"memory.slots": 2})
    engine.submit(asks("a", group="g"), asks("b", group="g"))
    for again in ((asks("c", group="g"), asks("d", group="g")), (asks("e", group="g"),)):
        with refusal(RequestRefused, "group 'g'", "before"):
            engine.submit(*again)
    assert len(list(engine.run())) > 0
    assert set(engine.finished) == {"a", "b"}


# --- refusals


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (asks("bad", ()), ["empty prompt", "at least one token"]),
        (asks("bad", 2, 0), ["0 new tokens", "at least 1"]),
        (asks("bad", 2, -5), ["-5 new tokens"]),
        (asks("bad", (1, VOCAB)), [f"token id {VOCAB}", f"0 to {VOCAB - 1}", "tokenizer"]),
        (asks("bad", (1, -1)), ["token id -1"]),
        (Request("bad", "a text"), ["token id 'a'", "made by this model's tokenizer"]),  # type: ignore[arg-type]
        (asks("bad", 2, 1.5), ["1.5 new tokens", "whole number"]),  # type: ignore[arg-type]
        (asks("bad", CONTEXT - 3, 4), [f"{CONTEXT - 3} prompt tokens", "4 more", f"context is {CONTEXT}"]),
        (asks("bad", 20, 12), ["31 tokens", "holds 30", "--kv-memory"]),
        (asks("good"), ["submitted twice", "id of its own"]),
    ],
    ids=["empty", "zero", "negative", "vocabulary", "negative id", "text", "half", "context", "memory", "twice"],
)
def test_a_refusal_says_why_and_changes_nothing_else(request_: Request, parts: list[str]) -> None:
    engine = make_engine(capacity=30)
    engine.submit(asks("good", 3, 4))
    with pytest.raises(RequestRefused) as error:
        engine.submit(request_)
    sentence(error.value, repr(request_.id), *parts)
    refused = [event for event in engine.trace.events() if event["event"] == "refused"]
    assert refused == [{"event": "refused", "id": request_.id, "why": str(error.value)}]
    # The iterations are those of a run without it.
    alone = make_engine(capacity=30)
    assert [step_decisions(step) for step in engine.run()] == [
        step_decisions(step) for step in run_all(alone, [asks("good", 3, 4)])
    ]
    assert list(engine.finished) == ["good"]


def test_a_refused_id_may_be_used_again() -> None:
    engine = make_engine(capacity=30)
    with pytest.raises(RequestRefused):
        engine.submit(asks("a", ()))
    assert list(run_all(engine, [asks("a", 2, 1)])[0].finished) == ["a"]
    with pytest.raises(RequestRefused, match="twice"):
        engine.submit(asks("a", 2, 1))  # also after it has finished


def test_a_request_that_just_fits_is_served() -> None:
    engine = make_engine(capacity=CONTEXT - 1)
    steps = run_all(engine, [asks("a", CONTEXT - 4, 4), asks("b", (VOCAB - 1, 0), 1)])
    assert steps[-1].ended_s == 5
    assert len(engine.finished["a"]) == CONTEXT


def test_the_loop_is_woken_only_while_it_runs_and_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Woken before its first event, it would decide at a time that no replay has."""
    engine = make_real_engine()
    woken: list[str] = []
    monkeypatch.setattr(engine.executor, "wake", lambda: woken.append("woken"))
    engine.submit(asks("a", new=3))
    engine.abort("a")
    engine.submit(asks("b", new=3))
    for number, _ in enumerate(engine.run()):
        if not number:
            engine.submit(asks("c", new=3))
            assert not woken
            other = threading.Thread(target=engine.submit, args=(asks("d", new=3),))
            other.start()
            other.join()
    engine.executor.close()
    assert woken == ["woken"]
    assert set(engine.finished) == {"a", "b", "c", "d"}

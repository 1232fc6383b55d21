"""A conversation goes on behind the text that an earlier run has left of it."""

from __future__ import annotations

import pytest
from helpers import answers_of, asks, expected_answers, make_engine, refusal, run_all, schedule

from minifuse.core.errors import RequestRefused
from minifuse.core.request import Request
from minifuse.serve.engine import ServingEngine
from minifuse.testing.texts.models import CONTEXT
from minifuse.trace.log import Trace
from minifuse.trace.metrics import compute_metrics
from minifuse.trace.running import RunningMetrics

STORED = {"c": (5, 6, 7, 8), "long": tuple(range(1, 21)) * 2}


def stored(request: Request) -> tuple[int, ...]:
    assert request.conversation is not None
    if request.conversation == "other":
        raise RequestRefused(f"Request {request.id!r} belongs to a conversation with another model: take that one.")
    return STORED.get(request.conversation, ())


def going_on(engine: ServingEngine) -> ServingEngine:
    engine.arrivals.stored = stored
    return engine


@pytest.mark.parametrize("technique", ["orca", "pensieve"])
def test_the_first_request_of_a_conversation_goes_on_behind_the_stored_text(technique: str) -> None:
    """And the next behind all of it. A new conversation, and a request of none, have no history."""
    engine = going_on(make_engine(technique, model="llama"))
    first, other, none = asks("a", (9,), conversation="c"), asks("x", (1, 2), conversation="new"), asks("y", (1, 3))
    run_all(engine, [first, asks("b", (2,), conversation="c", after="a"), other, none])
    a, b, x, y = (engine.finished[name] for name in "abxy")
    assert (a.request.prompt, a.num_history) == ((5, 6, 7, 8, 9), 4)
    assert (b.request.prompt, b.num_history) == ((*a.tokens, 2), 8)
    assert [(s.request.prompt, s.num_history) for s in (x, y)] == [((1, 2), 0), ((1, 3), 0)]
    assert answers_of(engine) == expected_answers("llama", [s.request for s in (a, b, x, y)])


def test_it_is_history_in_the_trace_and_counts_as_computed_before() -> None:
    """Of a history of 4 tokens 3 have had KV in an earlier run, and are computed again."""
    engine = going_on(make_engine())
    run_all(engine, [asks("a", (9,), 2, at=1.0, conversation="c")])
    events = list(engine.trace.events())
    (request,) = (event for event in events if event["event"] == "request")
    assert (request["prompt_tokens"], request["history_tokens"], request["arrival_s"]) == (5, 4, 1.0)
    assert "after" not in request
    metrics = compute_metrics(events)
    assert metrics["tokens"]["recomputed"] == metrics["history"]["tokens"] == 3
    assert metrics["requests"]["total"] == 1


def test_what_can_never_be_served_behind_its_history_is_refused_at_once() -> None:
    engine = going_on(make_engine())
    with refusal(RequestRefused, "'a'", "43 prompt tokens", f"context is {CONTEXT}"):
        engine.submit(asks("a", 3, CONTEXT - 42, conversation="long"))
    with refusal(RequestRefused, "'b'", "another model"):
        engine.submit(asks("b", conversation="other"))
    small = going_on(make_engine(capacity=30))
    with pytest.raises(RequestRefused, match="KV for 42 tokens"):
        small.submit(asks("a", 1, 2, conversation="long"))
    engine.submit(asks("c", 3, 5, conversation="long"))  # the refused ones left nothing behind
    assert schedule(engine.run())[0] == "0: c[0:43)"


def test_a_conversation_whose_first_request_never_arrives_begins_again_behind_its_text() -> None:
    engine = going_on(make_engine())
    engine.submit(asks("a", (9,), at=5.0, conversation="c"))
    engine.abort("a")
    engine.submit(asks("b", (9,), 1, conversation="c"))
    list(engine.run())
    assert engine.finished["b"].num_history == 4


def test_metrics_that_run_along_count_what_was_found_in_memory() -> None:
    counted = RunningMetrics()
    engine = make_engine("pensieve", trace=Trace(into=counted.read), settings={"memory.chunk": 4})
    run_all(engine, [asks("a", 6, 3, conversation="c"), asks("b", 2, 2, conversation="c", after="a")])
    history = counted.result()["history"]
    assert (history["tokens"], history["on_device"]) == (8, 8)

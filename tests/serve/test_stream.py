"""Streams: the decisions of a list, in memory that does not grow."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from helpers import asks, make_engine

from minifuse.core.errors import UsageError
from minifuse.core.request import FinishReason, Request
from minifuse.serve.run import Answer, serve
from minifuse.serve.stream import serve_stream
from minifuse.techniques import serving
from minifuse.trace.log import Event, Trace
from minifuse.trace.metrics import compute_metrics
from minifuse.trace.running import RunningMetrics


def drawn(count: int, seed: int = 0) -> Iterator[Request]:
    """Yield requests, some of several prompts, some conversations, some of the same arrival, some refused."""
    rng, now = random.Random(seed), 0.0
    for i in range(count):
        now += rng.choice((0.0, 0.5, 4.0, 9.0))
        match rng.randrange(6):
            case 0:
                for k in range(3):
                    yield asks(f"g{i}/{k}", 1 + k, 4, at=now, group=f"g{i}")
            case 1:
                for k in range(3):
                    after = {"after": f"c{i}.{k - 1}", "delay_s": 2.0} if k else {}
                    yield asks(f"c{i}.{k}", 2, 3, at=0.0 if k else now, conversation=f"c{i}", **after)
            case 2:
                yield asks(f"x{i}", (), 1, at=now)
            case _:
                yield asks(f"r{i}", rng.randint(1, 9), rng.randint(1, 12), at=now)


def told(answers: list[Answer] | tuple[Answer, ...]) -> dict[str, object]:
    return {one.request.id: (one.finish_reason, one.first_token_s, one.finish_s, one.num_history) for one in answers}


@pytest.mark.parametrize("name", serving("transformer"))
def test_a_stream_is_served_like_a_list(name: str) -> None:
    capacity, streamed = 800, list[Answer]()
    steps: list[Event] = []
    serve_stream(make_engine(name, capacity=capacity, trace=Trace(into=steps.append)), drawn(30), streamed.append)
    listed = serve(make_engine(name, capacity=capacity), [*drawn(30)])
    assert told(streamed) == told(listed.answers)
    again: list[Event] = []
    serve(make_engine(name, capacity=capacity, trace=Trace(into=again.append)), [*drawn(30)])
    assert [event for event in steps if event["event"] == "step"] == [
        event for event in again if event["event"] == "step"
    ]


@pytest.mark.parametrize("name", ["vllm", "orca", "instances", "pensieve"])
def test_nothing_grows_with_requests_that_have_ended(name: str) -> None:
    counted, most, reasons = RunningMetrics(), 0, list[FinishReason]()
    engine = make_engine(name, trace=Trace(into=counted.read))

    def look(answer: Answer) -> None:
        nonlocal most
        reasons.append(answer.finish_reason)
        arrivals = engine.arrivals
        books = (engine.finished, engine.requests.first_token_s, arrivals._submitted, arrivals._groups, arrivals._turns)
        most = max([most, len(counted.lives), *map(len, books)])

    spread = (
        asks(f"r{i}", 2, 3, at=9.0 * i, conversation=f"c{i // 2}", after=f"r{i - 1}" if i % 2 else None)
        for i in range(400)
    )
    serve_stream(engine, spread, look)
    assert reasons == [FinishReason.LENGTH] * 400
    assert most < 12
    assert counted.result()["requests"]["length"] == 400


def test_metrics_of_a_stream_are_those_of_its_trace() -> None:
    for name in ("vllm", "static", "fusion", "instances"):
        counted = RunningMetrics({"ttft": 9.0}, by="conversation")
        serve_stream(make_engine(name, capacity=800, trace=Trace(into=counted.read)), drawn(40, 1))
        trace = Trace()
        serve(make_engine(name, capacity=800, trace=trace), [*drawn(40, 1)])
        assert counted.result() == compute_metrics(trace.kept(), {"ttft": 9.0})


def test_out_of_order() -> None:
    late, early = asks("late", 2, 2, at=5.0), asks("early", 2, 2, at=1.0)
    with pytest.raises(UsageError) as caught:
        serve_stream(make_engine(), iter([late, early]))
    assert str(caught.value) == (
        "Request 'early' arrives at 1 s, before the request in front of it (5 s): give requests in the order of "
        "arrival."
    )

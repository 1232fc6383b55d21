"""Serves requests as they arrive, in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.request import FinishReason, Request
from minifuse.core.submitted import by_request
from minifuse.serve.engine import ServingEngine
from minifuse.serve.run import Answer


def serve_stream(
    engine: ServingEngine,
    requests: Iterable[Request],
    on_answer: Callable[[Answer], None] = lambda answer: None,
) -> None:
    """Serve requests that are read one arrival ahead, and forgotten once they are answered.

    Decisions are those of `serve` with a list of the same requests. Build the engine with `into`, or its trace grows.

    Args:
        requests: in the order of arrival. A turn stands right behind the turn that it follows.
        on_answer: is called as each request ends, also if it is refused.

    Raises:
        UsageError: a request arrives before the one in front of it, or something given is no request.
    """
    feed = iter(by_request(requests))
    last_s = 0.0  # the latest arrival that was submitted

    def read_ahead() -> None:
        """Submit every request of the next arrival time, and one that arrives later."""
        nonlocal last_s
        while (next_s := engine.arrivals.next_s) is None or next_s >= last_s:
            if (prompts := next(feed, None)) is None:
                return
            arrives_s = prompts[0].arrival_s
            if prompts[0].after is None and arrives_s < last_s:
                raise UsageError(
                    f"Request {prompts[0].id!r} arrives at {arrives_s:g} s, before the request in front of it "
                    f"({last_s:g} s): give requests in the order of arrival."
                )
            try:
                engine.submit(*prompts)
            except RequestRefused as refusal:
                for prompt in prompts:
                    on_answer(Answer(prompt, (), FinishReason.REFUSED, why_refused=str(refusal)))
                continue
            last_s = max(last_s, arrives_s)

    def answer_ended() -> None:
        while engine.requests.ended:
            sequence = engine.requests.ended.popleft()
            on_answer(Answer.of(sequence, engine.requests))
            for name in (sequence.request.after, sequence.id):
                if name is not None and not engine.arrivals.is_followed(name):
                    engine.forget(name)

    try:
        read_ahead()
        for _ in engine.turns():
            answer_ended()
            read_ahead()
        answer_ended()
    finally:
        engine.close()

"""Holds a single user's conversation on one engine, which runs once per turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.report import StepReport
from minifuse.core.request import FinishReason, Request, Sequence
from minifuse.core.submitted import check_name
from minifuse.serve.engine import ServingEngine
from minifuse.serve.interrupt import uninterrupted
from minifuse.serve.run import Answer

if TYPE_CHECKING:
    from minifuse.serve.conversations import Conversations


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn: its answer, and how much KV of the earlier text was found.

    Of a history of 5 tokens, only 4 have had KV: the last token was sampled and never fed back. It is computed together
    with the new prompt, and counts as `new`.
    """

    answer: Answer
    on_device: int  # tokens of the history whose KV was on the device
    on_host: int  # tokens of the history whose KV was swapped in from the host
    recomputed: int  # tokens of the history that were computed again, counted at each recomputation
    stored: bool  # whether the turn is in the state file

    @property
    def new(self) -> int:
        """Count the tokens that were computed for the first time before the answer began."""
        return len(self.answer.new_prompt) + min(1, self.answer.num_history)


class Talk:
    """Holds one conversation on an engine that serves nothing else meanwhile.

    The talk continues the turns of this conversation that the engine has already served. Other talks may use the same
    engine, one at a time.

    Args:
        name: the name of the conversation.
        conversations: the conversations of a state file. The talk continues the conversation of this name, and stores
            every complete answer before `say` returns.

    Attributes:
        num_turns: the number of answered turns, including those in the state file and in other talks.
        num_tokens: the number of tokens of the conversation's text.

    Raises:
        UsageError: the conversation was begun with another model or cannot be read, or `name` is no valid name.
    """

    def __init__(self, engine: ServingEngine, name: str = "chat", conversations: Conversations | None = None) -> None:
        self.engine, self.name, self.conversations = engine, check_name(name, "The conversation"), conversations
        self.num_turns = self.num_tokens = 0
        self._count = 0  # requests made
        if conversations is not None:
            conversations.check(engine.trace.header.get("model"))
            engine.arrivals.stored = conversations.text
            try:
                self.num_tokens = len(conversations.text(Request("turn-1", (), conversation=name)))
            except RequestRefused as refusal:
                raise UsageError(str(refusal)) from None
            self.num_turns = len(conversations.history.turns(name))
        else:
            ended = [one.finish_reason for one in engine.finished.values() if one.request.conversation == name]
            self.num_turns = len(ended) - ended.count(FinishReason.REFUSED)
        if (last := engine.arrivals.last(name)) is not None:
            self.num_tokens = len(engine.finished[last])

    def say(
        self, prompt: tuple[int, ...], on_tokens: Callable[[tuple[int, ...]], None] = lambda tokens: None, **asked: Any
    ) -> Exchange:
        """Ask for the next answer, and wait for it.

        Ctrl-C aborts the answer; its tokens are kept, and the next turn continues them. An error of `on_tokens` aborts
        the answer as well, and is raised afterwards.

        Args:
            on_tokens: is called with new tokens of the answer as they come.
            asked: further fields of the `Request`, such as max_new_tokens, stop_ids and sampling.

        Raises:
            RequestRefused: the request can never be served. The next turn then continues the last answered turn.
        """
        engine = self.engine
        self._count += 1
        while f"turn-{self._count}" in engine.finished:  # a request of another talk
            self._count += 1
        request = Request(f"turn-{self._count}", prompt, conversation=self.name, **asked)
        engine.submit(request)
        reports: list[StepReport] = []
        failed: Exception | None = None
        with uninterrupted(forget=True) as hold:
            for report in engine.run():
                reports.append(report)
                if request.id in report.tokens and failed is None:
                    try:
                        on_tokens(report.tokens[request.id])
                    except Exception as error:
                        failed = error
                if hold.pending or failed:
                    engine.abort(request.id)
            if why := engine.refused.get(request.id):
                raise RequestRefused(why)
            exchange = self._ended(engine.finished[request.id], reports)
            if failed is not None:
                raise failed
            return exchange

    def _ended(self, sequence: Sequence, reports: list[StepReport]) -> Exchange:
        if self.conversations is not None:
            self.conversations.keep(sequence)
        answer = Answer.of(sequence, self.engine.requests)
        self.num_tokens, self.num_turns = len(sequence), self.num_turns + 1
        failed = self.conversations is None or self.name in self.conversations.failures
        return Exchange(answer, *_found(sequence, reports), answer.complete and not failed)


def _found(sequence: Sequence, reports: list[StepReport]) -> tuple[int, int, int]:
    """Count history tokens: found on the device, found on the host, and recomputed."""
    name, had_kv = sequence.id, max(0, sequence.num_history - 1)
    works = [work for report in reports for work in report.plan.work if work.sequence == name]
    on_device = on_host = 0
    for report in reports:
        for reused, *found in report.plan.reused:
            if reused == name:
                on_device, on_host = found
        if name in report.tokens:  # KV found later, after an eviction, is the answer's own, not history
            break
    return on_device, on_host, sum([max(0, min(work.stop, had_kv) - work.start) for work in works])

"""A conversation that goes on for as long as its user wants: one engine, which runs once for every turn."""

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

__all__ = ["Exchange", "Talk"]


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn: its answer, and what became of the KV of the text before it.

    Of a history of 5 tokens 4 have had KV: the last one was sampled, and no token followed it. It is computed with the
    new prompt, and counts as `new`.
    """

    answer: Answer
    on_device: int  # tokens of the history whose KV was on the device
    on_host: int  # tokens of the history whose KV was swapped in from the host
    recomputed: int  # tokens of the history that were computed again, each as often as that was done
    stored: bool  # it is in the state file

    @property
    def new(self) -> int:
        """Tokens that had to be computed for the first time before the answer could begin."""
        return len(self.answer.new_prompt) + min(1, self.answer.num_history)


class Talk:
    """One conversation, turn by turn, on an engine that serves nothing else meanwhile. It goes on behind what the
    engine has served of it; other talks may have been, and may go on, on the same engine.

    Args:
        name: of the conversation.
        conversations: of a state file: the talk goes on behind what it has, and every answer that ends is in it before
            `say` returns.

    Attributes:
        num_turns: that have been answered, those of the state file and of other talks included.
        num_tokens: of the text so far.

    Raises:
        UsageError: the conversation was begun with another model, or cannot be read, or this is no name.
    """

    def __init__(self, engine: ServingEngine, name: str = "chat", conversations: Conversations | None = None) -> None:
        self.engine, self.name, self.conversations = engine, check_name(name, "The conversation"), conversations
        self.num_turns = self.num_tokens = 0
        self._count = 0  # of requests
        if conversations is not None:
            conversations.check(engine.trace.header.get("model"))
            engine.arrivals.stored = conversations.text
            try:
                self.num_tokens = len(conversations.text(Request("turn-1", (), conversation=name)))
            except RequestRefused as refusal:
                raise UsageError(str(refusal)) from None
            self.num_turns = len(conversations.history.turns(name))
        else:
            others = [one for one in engine.finished.values() if one.request.conversation == name]
            self.num_turns = len([one for one in others if one.finish_reason is not FinishReason.REFUSED])
        if (last := engine.arrivals.last(name)) is not None:
            self.num_tokens = len(engine.finished[last])

    def say(
        self, prompt: tuple[int, ...], on_tokens: Callable[[tuple[int, ...]], None] = lambda tokens: None, **asked: Any
    ) -> Exchange:
        """Ask for the next answer, and wait for it. Ctrl-C ends the answer: it is aborted with the tokens that it has,
        and the next turn goes on behind them.

        Args:
            on_tokens: called with new tokens of the answer as they come.
            asked: fields of the `Request`: max_new_tokens, stop_ids, sampling.

        What `on_tokens` raises ends the answer as Ctrl-C does, and is raised.

        Raises:
            RequestRefused: it can never be served. The next turn goes on behind the one before.
        """
        engine = self.engine
        self._count += 1
        while f"turn-{self._count}" in engine.finished:  # of another talk
            self._count += 1
        request = Request(f"turn-{self._count}", prompt, conversation=self.name, **asked)
        found = _Found(request.id)
        engine.submit(request)
        with uninterrupted(forget=True) as hold:
            failed: Exception | None = None
            for report in engine.run():
                found.read(report, engine.sequences.get(request.id) or engine.finished[request.id])
                if request.id in report.tokens and failed is None:
                    try:
                        on_tokens(report.tokens[request.id])
                    except Exception as error:
                        failed = error
                if hold.pending or failed:
                    engine.abort(request.id)
            sequence = engine.finished[request.id]
            if why := engine.refused.get(request.id):
                raise RequestRefused(why)
            exchange = self._ended(sequence, found)
            if failed is not None:
                raise failed
            return exchange

    def _ended(self, sequence: Sequence, found: _Found) -> Exchange:
        assert sequence.finish_reason is not None
        if self.conversations is not None:
            self.conversations.keep(sequence)
        answer = Answer(
            *(sequence.request, tuple(sequence.answer), sequence.finish_reason, found.first_s, sequence.ended_s),
            num_history=sequence.num_history,
        )
        self.num_tokens, self.num_turns = len(sequence), self.num_turns + 1
        failed = self.conversations is None or self.name in self.conversations.failures
        return Exchange(answer, found.on_device, found.on_host, found.recomputed, answer.complete and not failed)


class _Found:
    """Counts what a request finds of its history, from the reports of the iterations."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first_s: float | None = None
        self.on_device = self.on_host = self.recomputed = 0

    def read(self, report: StepReport, sequence: Sequence) -> None:
        had_kv = max(0, sequence.num_history - 1)
        for name, on_device, on_host in report.plan.reused:
            if name == self.name and self.first_s is None:  # not what it finds of itself after an eviction
                self.on_device, self.on_host = on_device, on_host
        for work in report.plan.work:
            if work.sequence == self.name:
                self.recomputed += max(0, min(work.stop, had_kv) - work.start)
        if self.first_s is None and self.name in report.tokens:
            self.first_s = report.ended_s

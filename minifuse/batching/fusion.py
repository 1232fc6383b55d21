"""Temporal fusion: one main stream that requests join and leave at iteration boundaries (Flover, section V)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.batching.newcomers import admit_together, prompts_of_first
from minifuse.batching.queue import QueueOptions, Ranked
from minifuse.core.plan import Proposal, Reason, Room, Work
from minifuse.core.request import Phase, Sequence
from minifuse.core.stages import Memory, option
from minifuse.stages import Batching

MAIN = 0  # the worker that is the main stream
Refusal = Callable[[tuple[Sequence, ...], Memory, Room], Reason | None]  # why the prompts of a request do not join
Admitted = tuple[tuple[Sequence, ...], tuple[Reason, ...], Room | None]


class Fusion(Batching):
    """Every request is pre-processed beside the main stream, then fused into it, and gets one token an iteration.

    Pre-processing computes a prompt's context: all of it but the last token, which the main stream turns into the first
    token of the answer. It runs on workers of its own, a request on each, or inline: in the main stream, at most once
    between two iterations, for all requests that have arrived by then. The paper serves them first come, first served;
    there is no batch size but what memory holds.
    """

    name: ClassVar[str] = "fusion"
    overtaken_at_most = 0
    starts_together = True

    @dataclass(frozen=True)
    class Options(QueueOptions):
        preprocess: str = option(
            "worker",
            "where prompts are computed: beside the main stream, or in it, which is faster where both share a CPU",
            choices=("worker", "inline"),
        )
        preprocessors: int = option(1, "requests pre-processed at once by workers, at most", minimum=1, maximum=1024)

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.inline = self.options.preprocess == "inline"
        self.workers: int = 1 if self.inline else 1 + self.options.preprocessors
        self.waiting = Ranked()  # the request queue Q_r
        self.admitted: dict[str, Sequence] = {}  # with a place in memory: pre-processing, ready (Q_f), running
        self.prompts_last = False  # inline: prompts were computed last, so that an iteration is due

    def receive(self, sequence: Sequence) -> None:
        self.waiting.join(sequence, self.options.rank(sequence.request))

    def release(self, sequence: Sequence) -> None:
        self.waiting.discard(sequence.id)
        self.admitted.pop(sequence.id, None)
        self.prompts_last &= bool(self.admitted)  # all whose prompts ran last may have been aborted

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        if worker != MAIN:
            return self._preprocess(memory, most=1)
        if self.inline and not self.prompts_last:
            prepared = self._preprocess(memory)
            if prepared.work:
                self.prompts_last = True
                return prepared
        self.prompts_last = False
        return self._iterate(memory)

    def _preprocess(self, memory: Memory, most: float = math.inf) -> Proposal:
        """The contexts of the first requests in the queue, as far as they fit."""
        admit, reasons, room = self._admit(memory, _not_pre_processed, most)
        work = tuple([item for prompt in admit for item in _context(prompt, memory)])
        return Proposal(work, admit, reasons, phase=Phase.PREPROCESSING, room=room)

    def _iterate(self, memory: Memory) -> Proposal:
        """One token for every running request, and for those that have become ready since the last iteration."""
        admit, reasons, room = self._admit(memory, _not_fused)
        fused = [one for one in self.admitted.values() if one.phase is not Phase.PREPROCESSING]
        work = tuple([Work(one.id, *span) for one in fused for span in memory.missing(one)])
        text = "not fused: its prompt is still being pre-processed"
        apart = [one for one in self.admitted.values() if one.phase is Phase.PREPROCESSING]
        pending = [Reason("preprocessing", one.id, text) for one in apart]
        return Proposal(work, admit, (*pending, *reasons), room=room)

    def _admit(self, memory: Memory, refusal: Refusal, most: float = math.inf) -> Admitted:
        """Admit the first requests, up to the first that is refused; none once `most` prompts are admitted."""
        admit: list[Sequence] = []
        room = memory.room() if self.waiting else None
        while self.waiting and room and len(admit) < most:
            prompts = prompts_of_first(self.waiting)
            if reason := refusal(prompts, memory, room):
                return tuple(admit), (reason,), room
            for prompt in prompts:
                self.waiting.remove(prompt.id)
                self.admitted[prompt.id] = prompt
            admit += prompts
        return tuple(admit), (), room


def _not_pre_processed(prompts: tuple[Sequence, ...], memory: Memory, room: Room) -> Reason | None:
    if any(_context(prompt, memory) for prompt in prompts):
        return admit_together(prompts, room)
    text = "not pre-processed: it has no context, and joins the next iteration directly"
    return Reason("no-context", prompts[0].id, text)


def _not_fused(prompts: tuple[Sequence, ...], memory: Memory, room: Room) -> Reason | None:
    full = admit_together(prompts, room)
    if full is None and any(_context(prompt, memory) for prompt in prompts):
        return Reason("to-preprocess", prompts[0].id, "not fused: its prompt has yet to be pre-processed")
    return full


def _context(prompt: Sequence, memory: Memory) -> list[Work]:
    """What pre-processing computes of a prompt: what memory misses of it, but for the last token."""
    spans = ((start, min(stop, len(prompt) - 1)) for start, stop in memory.missing(prompt))
    return [Work(prompt.id, start, stop) for start, stop in spans if stop > start]

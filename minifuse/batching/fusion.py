"""Temporal fusion: one main stream that requests join and leave at iteration boundaries (Flover, section V)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.batching.newcomers import admit_together, prompts_of_first
from minifuse.batching.queue import QueueOptions, Ranked
from minifuse.core.plan import Proposal, Reason, Work
from minifuse.core.request import Phase, Sequence
from minifuse.core.stages import Memory, option
from minifuse.stages import Batching

__all__ = ["MAIN", "Fusion"]

MAIN = 0  # the worker that is the main stream


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
            return self._preprocess(memory, requests=1)
        if self.inline and not self.prompts_last:
            prepared = self._preprocess(memory, requests=len(self.waiting))
            if prepared.work:
                self.prompts_last = True
                return prepared
        self.prompts_last = False
        return self._iterate(memory)

    def _preprocess(self, memory: Memory, requests: int) -> Proposal:
        """The contexts of the first `requests` in the queue, as far as they fit."""
        admit: list[Sequence] = []
        work: list[Work] = []
        room = memory.room() if self.waiting else None
        while self.waiting and requests and room:
            prompts = prompts_of_first(self.waiting)
            contexts = [item for prompt in prompts for item in _context(prompt, memory)]
            if not contexts:
                text = "not pre-processed: it has no context, and joins the next iteration directly"
                reasons = (Reason("no-context", prompts[0].id, text),)
                return Proposal(tuple(work), tuple(admit), reasons, phase=Phase.PREPROCESSING, room=room)
            if reason := admit_together(prompts, room):
                return Proposal(tuple(work), tuple(admit), (reason,), phase=Phase.PREPROCESSING, room=room)
            self._admit(prompts)
            admit += prompts
            work += contexts
            requests -= 1
        return Proposal(tuple(work), tuple(admit), phase=Phase.PREPROCESSING, room=room)

    def _iterate(self, memory: Memory) -> Proposal:
        """One token for every running request, and for those that have become ready since the last iteration."""
        admit: list[Sequence] = []
        reasons = [
            Reason("preprocessing", sequence.id, "not fused: its prompt is still being pre-processed")
            for sequence in self.admitted.values()
            if sequence.phase is Phase.PREPROCESSING
        ]
        room = memory.room() if self.waiting else None
        while self.waiting and room:
            prompts = prompts_of_first(self.waiting)
            if any(_context(prompt, memory) for prompt in prompts):
                text = "not fused: its prompt has yet to be pre-processed"
                full = admit_together((*admit, *prompts), memory.room())  # another trial: it is not admitted
                reasons.append(full or Reason("to-preprocess", prompts[0].id, text))
                break
            if reason := admit_together(prompts, room):
                reasons.append(reason)
                break
            self._admit(prompts)
            admit += prompts
        newcomers = {sequence.id for sequence in admit}
        fused = [
            sequence
            for sequence in self.admitted.values()
            if sequence.phase in (Phase.READY, Phase.RUNNING) or sequence.id in newcomers
        ]
        work = tuple(Work(sequence.id, *span) for sequence in fused for span in memory.missing(sequence))
        return Proposal(work, tuple(admit), tuple(reasons), room=room)

    def _admit(self, prompts: tuple[Sequence, ...]) -> None:
        for prompt in prompts:
            self.waiting.remove(prompt.id)
            self.admitted[prompt.id] = prompt


def _context(prompt: Sequence, memory: Memory) -> list[Work]:
    """What pre-processing computes of a prompt: what memory misses of it, but for the last token."""
    spans = ((start, min(stop, len(prompt) - 1)) for start, stop in memory.missing(prompt))
    return [Work(prompt.id, start, stop) for start, stop in spans if stop > start]

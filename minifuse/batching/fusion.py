"""Temporal fusion: requests join and leave one main stream between iterations (Flover, section V)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from minifuse.batching.instances import admit_together, prompts_of_first
from minifuse.batching.queue import QueueOptions, Ranked
from minifuse.core.plan import Proposal, Reason, Room, Work
from minifuse.core.request import Phase, Sequence
from minifuse.core.stages import Memory, option
from minifuse.stages import Batching

MAIN = 0  # the worker that is the main stream


class Fusion(Batching):
    """Pre-processes each request alongside the main stream, then fuses it into the stream.

    The main stream gives each of its requests one token per iteration. Pre-processing computes a prompt's context: all
    of it but the last token, which the main stream turns into the first token of the answer. Pre-processing runs on its
    own workers, with one request on each, or inline: in the main stream, at most once between two iterations, for all
    requests that have arrived by then. The paper serves requests first come, first served; only memory bounds the
    batch.
    """

    name = "fusion"
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
        self.workers = 1 if self.inline else 1 + self.options.preprocessors
        self.waiting = Ranked()  # the request queue Q_r
        self.admitted: dict[str, Sequence] = {}  # in memory: in pre-processing, ready (Q_f) or running
        self.prompts_last = False  # inline: whether prompts were computed last: then an iteration is due

    def receive(self, sequence: Sequence) -> None:
        self.waiting.join(sequence, self.options.rank(sequence.request))

    def release(self, sequence: Sequence) -> None:
        self.waiting.discard(sequence.id)
        self.admitted.pop(sequence.id, None)
        self.prompts_last &= bool(self.admitted)  # the requests whose prompts were computed last may be gone

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        if worker != MAIN:
            return self._preprocess(memory)
        if self.inline and not self.prompts_last:
            prepared = self._preprocess(memory)
            if prepared.work:
                self.prompts_last = True
                return prepared
        self.prompts_last = False
        return self._iterate(memory)

    def _preprocess(self, memory: Memory) -> Proposal:
        """Propose the context of the first request or, inline, of all requests that fit."""
        admit, reasons, room = self._admit(memory, apart=True, most=math.inf if self.inline else 1)
        return Proposal(_context(admit, memory), tuple(admit), reasons, phase=Phase.PREPROCESSING, room=room)

    def _iterate(self, memory: Memory) -> Proposal:
        """Propose one token for every request that runs or is ready."""
        admit, reasons, room = self._admit(memory, apart=False)
        fused = [one for one in self.admitted.values() if one.phase is not Phase.PREPROCESSING]
        work = tuple([Work(one.id, *span) for one in fused for span in memory.missing(one)])
        text = "not fused: its prompt is still being pre-processed"
        apart = [one for one in self.admitted.values() if one.phase is Phase.PREPROCESSING]
        pending = [Reason("preprocessing", one.id, text) for one in apart]
        return Proposal(work, tuple(admit), (*pending, *reasons), room=room)

    def _admit(
        self, memory: Memory, apart: bool, most: float = math.inf
    ) -> tuple[list[Sequence], tuple[Reason, ...], Room | None]:
        """Admit requests in order until one is refused, or `most` prompts are admitted.

        Args:
            apart: admit requests with a context, to pre-process them. Otherwise, admit requests without one to the main
                stream.
        """
        admit: list[Sequence] = []
        room = memory.room() if self.waiting else None
        while self.waiting and room and len(admit) < most:
            prompts = prompts_of_first(self.waiting)
            if reason := _refusal(prompts, memory, room, apart):
                return admit, (reason,), room
            for prompt in prompts:
                self.waiting.remove(prompt.id)
                self.admitted[prompt.id] = prompt
            admit += prompts
        return admit, (), room


def _refusal(prompts: tuple[Sequence, ...], memory: Memory, room: Room, apart: bool) -> Reason | None:
    """Return why the prompts of a request do not join, or None."""
    if apart and not _context(prompts, memory):
        text = "not pre-processed: it has no context, and joins the next iteration directly"
        return Reason("no-context", prompts[0].id, text)
    full = admit_together(prompts, room)
    if full is None and not apart and _context(prompts, memory):
        return Reason("to-preprocess", prompts[0].id, "not fused: its prompt has yet to be pre-processed")
    return full


def _context(prompts: Iterable[Sequence], memory: Memory) -> tuple[Work, ...]:
    """Return the work of pre-processing: all missing tokens except each prompt's last one."""
    spans = [(one, start, min(stop, len(one) - 1)) for one in prompts for start, stop in memory.missing(one)]
    return tuple([Work(one.id, start, stop) for one, start, stop in spans if stop > start])

"""Prompts or single tokens in an iteration, never both; running sequences may be evicted (vLLM; Pensieve, 3.4.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from minifuse.batching.iteration import Iteration
from minifuse.batching.policy import num_missing
from minifuse.plan import Proposal, Reason
from minifuse.request import Sequence
from minifuse.stages import Memory, register

__all__ = ["PrefillFirst"]

OTHER_PHASE = "other-phase"


@register
class PrefillFirst(Iteration):
    """Newcomers join at every iteration; their prompts are computed before anything else, in iterations of their own.

    Running sequences wait meanwhile. A request is admitted with room for no more than its prompt; when memory runs out
    for running sequences, the newest of them are evicted, and come back first: with a single token if their KV was
    kept, otherwise with all their text as a prompt. A sequence that misses one token runs with the single tokens: so
    do a prompt of one token, and the last token that a token_budget has left of a longer prompt.
    """

    name: ClassVar[str] = "prefill_first"
    in_step: ClassVar[bool] = False  # running sequences wait while prompts are computed
    grows = True

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        room = memory.room()
        running = self._missing(memory)
        prompts = [item for item in running if num_missing(item[1]) > 1]
        alone = self._fill(now, memory, prompts, _unless_a_prompt, room)
        if alone.work:
            return alone
        kept_out = {
            reason.sequence: reason
            for reason in alone.reasons
            if reason.code != OTHER_PHASE and reason.sequence not in self.running
        }
        found = self._fill(now, memory, running, _unless_a_single_token, room)
        if not kept_out:
            return found
        # A prompt that had no room in an iteration of its own does not wait for the single tokens.
        return replace(found, reasons=tuple(kept_out.get(reason.sequence, reason) for reason in found.reasons))


def _unless_a_prompt(sequence: Sequence, missing: int, planned: int) -> Reason | None:
    return None if missing > 1 else _other_phase(sequence)


def _unless_a_single_token(sequence: Sequence, missing: int, planned: int) -> Reason | None:
    return None if missing == 1 else _other_phase(sequence)


def _other_phase(sequence: Sequence) -> Reason:
    text = "not admitted: prompts and single tokens run in iterations of their own"
    return Reason(OTHER_PHASE, sequence.id, text)

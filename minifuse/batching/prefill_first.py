"""Prompts or single tokens in an iteration, never both; what runs may be evicted (vLLM, as told in Pensieve 3.4.2)."""

from __future__ import annotations

from typing import ClassVar

from minifuse.batching.iteration import Iteration
from minifuse.plan import Proposal
from minifuse.stages import Memory, register

__all__ = ["PrefillFirst"]


@register
class PrefillFirst(Iteration):
    """Newcomers join at every iteration; their prompts are computed before anything else, in iterations of their own.

    Everybody else waits meanwhile. A request is admitted with room for no more than its prompt; when those who run need
    more than there is, the newest of them are evicted, and come back first: with a single token if their KV was kept,
    otherwise with all their text as a prompt. Whoever misses one token runs with the single tokens: so do a prompt of
    one, and what a token_budget has left of a longer one.
    """

    name: ClassVar[str] = "prefill_first"
    grows = True

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        room = memory.room()
        prompts = self._fill(now, memory, lambda missing: missing > 1, room)
        return prompts if prompts.work else self._fill(now, memory, lambda missing: missing == 1, room)

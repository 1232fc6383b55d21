"""What an engine loses for good: with each request that is aborted while it is suspended, or later than it should."""

from __future__ import annotations

from typing import Any

from conformance.defects.harness import Patch, defect

from minifuse.batching.prefill_first import PrefillFirst
from minifuse.core.plan import Reason
from minifuse.core.request import FinishReason, Sequence
from minifuse.memory.paged.paged import Paged
from minifuse.memory.paged.tables import Tables

_swaps = {"memory__preemption": "swap", "memory__host": 15}


@defect("vllm", "second life", check="second_life", kinds=("growing",))
def a_place_is_lost_with_a_suspended_request(patch: Patch) -> None:
    """The batch shrinks by one each time. The policy claims nothing about how full it is."""
    patch.setattr(PrefillFirst, "work_conserving", False)
    release = PrefillFirst.release

    def losing(self: Any, sequence: Sequence) -> None:
        suspended = sequence.id in self.waiting and sequence.num_new > 0
        self.lost = getattr(self, "lost", 0) + suspended
        release(self, sequence)

    def admission(self: Any, sequence: Sequence, joining: int, now: float) -> Reason | None:
        if len(self.running) + joining >= max(1, self.options.max_batch - getattr(self, "lost", 0)):
            return Reason("batch-full", sequence.id, "not admitted: the batch is full")
        return None

    patch.setattr(PrefillFirst, "release", losing)
    patch.setattr(PrefillFirst, "admission", admission)


def _lose_host_blocks(patch: Patch) -> None:
    """The sums stay right, and memory does not check itself."""
    patch.setattr(Paged, "check_integrity", lambda self: None)
    right = Paged.release

    def losing(self: Paged, sequence: Sequence, now: float) -> None:
        tables, name = self.tables, sequence.id
        if sequence.finish_reason is FinishReason.ABORTED and name in tables.away:
            tables.num_away -= tables.cached[name]
            tables.away[name] = ()
            tables.cached[name] = 0
        right(self, sequence, now)

    patch.setattr(Paged, "release", losing)


@defect("vllm", "second life", "conservation", check="second_life", kinds=("growing",), **_swaps)
def host_blocks_are_lost_with_a_suspended_request(patch: Patch) -> None:
    _lose_host_blocks(patch)


@defect("vllm", "conservation", check="under_load", kinds=("growing",), memory__preemption="swap", memory__host=10)
def host_blocks_are_free_a_plan_late(patch: Patch) -> None:
    """Swaps are dropped that had room. Memory does not check itself."""
    patch.setattr(Paged, "check_integrity", lambda self: None)
    arrived, release = Tables.arrived, Tables.release

    def later(self: Any, name: str) -> None:
        late = self.__dict__.setdefault("late", set())
        sources = self.sources.pop(name, [])
        keep = [source for source in sources if source[0] is self.host and name not in late]
        self.sources[name] = [source for source in sources if source not in keep]
        arrived(self, name)
        late.discard(name)
        if keep:
            late.add(name)
            self.sources[name] = keep

    def in_the_end(self: Any, name: str) -> None:
        later(self, name)
        release(self, name)

    patch.setattr(Tables, "arrived", later)
    patch.setattr(Tables, "release", in_the_end)

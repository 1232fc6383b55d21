"""Reserves adjacent slots for each sequence's longest answer (Orca; FluidInfer, section 2)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.plan import Extent, Placement, Plan, Proposal, Reason, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import Memory, option
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.places import Places
from minifuse.memory.trial import Trial, settle


class RunTrial(Trial):
    """Finds a run of slots for each newcomer, in a copy of memory's free runs."""

    def __init__(self, allocator: RunAllocator, where: str = "", unit: int = 1, least: int = 0) -> None:
        super().__init__()
        self.allocator = allocator.copy()
        # `where` is for the message; sizes are multiples of `unit`, and at least `least`.
        self.where, self.unit, self.least = where, unit, least
        self.extents: dict[str, Extent] = {}  # admitted sequence -> its run of slots

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        return self.find(sequence)

    def find(self, sequence: Sequence) -> Reason | None:
        """Find a run for a newcomer's longest answer, or return why there is none."""
        size = max(-(-sequence.request.max_cached // self.unit) * self.unit, self.least)
        if (offset := self.allocator.allocate(size)) is None:
            text = f"needs {size} KV tokens in a row{self.where}, the longest free run has {self.allocator.longest}"
            return Reason("memory-full", sequence.id, f"not admitted: {text}")
        self.extents[sequence.id] = Extent(offset, size)
        return None


class Contiguous(Memory):
    """Reserves one run of slots at admission, for the prompt and the longest answer."""

    kind, name = "memory", "contiguous"
    offers: ClassVar[frozenset[str]] = frozenset({"extents"})

    @dataclass(frozen=True)
    class Options:
        per_request: int | None = option(
            None, "KV tokens to set aside for each request, at least; none: for its longest answer", minimum=1
        )

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.least: int = 0 if options is None else options.per_request or 0
        if self.least > capacity:
            raise UsageError(f"memory.per_request is {self.least}, and memory holds {capacity}: lower it.")
        self.allocator = RunAllocator(capacity)
        self.books = Places[Extent]()

    def check(self, *prompts: Request) -> None:
        needed = sum(max(request.max_cached, self.least) for request in prompts)
        if needed > self.capacity:
            raise too_large(prompts, f"KV for {needed} tokens", f"memory holds {self.capacity}")

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return self.books.missing(sequence)

    def room(self) -> RunTrial:
        return RunTrial(self.allocator, least=self.least)

    def place(self, proposal: Proposal, now: float) -> Placement:
        if proposal.admit or proposal.evict:
            trial = settle(proposal, RunTrial, self.room)
            self.allocator = trial.allocator
            self.books.places |= trial.extents
        return Placement(self.books.of(proposal.work))

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self.books.wrote(plan.work)
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        if (extent := self.books.release(sequence.id)) is not None:
            self.allocator.free(*extent)

    def usage(self) -> KVUsage:
        return KVUsage(self.books.num_written, self.capacity - self.allocator.num_free, self.capacity)

    def check_integrity(self) -> None:
        self.allocator.check(self.books.places.values())


def too_large(prompts: tuple[Request, ...], need: str, have: str) -> RequestRefused:
    """Return the refusal of a request that even an empty memory cannot hold."""
    name = f"{prompts[0].group!r} with its {len(prompts)} prompts" if len(prompts) > 1 else repr(prompts[0].id)
    advice = "shorten the prompt, lower max_new_tokens, or raise --kv-memory"
    return RequestRefused(f"Request {name} may need {need} and {have}: {advice}.")

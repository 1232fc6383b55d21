"""Policies with a queue, and how they fill an iteration (Orca, Algorithm 1)."""

import math
from abc import abstractmethod
from collections.abc import Iterable
from numbers import Real
from typing import Any, ClassVar

from minifuse.batching.queue import QueueOptions, Ranked
from minifuse.core.errors import WrongReturn
from minifuse.core.plan import Proposal, Reason, Span, Work
from minifuse.core.request import Sequence
from minifuse.core.stages import Batching, Memory
from minifuse.memory.trial import checked

Missing = list[tuple[Sequence, tuple[Span, ...]]]  # each sequence with the spans of tokens that it misses


class QueuePolicy(Batching):
    """Fills each iteration from two queues: running sequences, then waiting ones."""

    kind: ClassVar[str] = "batching"
    Options: ClassVar[type] = QueueOptions
    overtaken_at_most: int | None = 0  # claims, which the laws check: see docs/stages.md
    one_plan = True
    budget_of_prompts = False
    grows = False  # admits with what is needed now, and evicts when memory is short (`minifuse/batching/growing.py`)
    fills: ClassVar[dict[bool, type["Fill"]]]  # `grows` -> which fill to use (set in `batching/__init__.py`)

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.waiting = Ranked()
        self.running = Ranked()
        self.ready = self.waiting  # the queue from which sequences join; some policies pre-process prompts first

    def rank(self, sequence: Sequence) -> Any:
        """Return a sequence's rank: the lowest goes first, and equal ranks go by arrival."""
        return self.options.rank(sequence.request)

    @abstractmethod
    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        """Return why a sequence cannot join an iteration after `joining` other newcomers, or None."""

    def victims(self, running: list[Sequence]) -> Iterable[Sequence]:
        """Return running sequences in the order of their eviction. Only called if `grows`."""
        return reversed(running)

    def displaces(self, newcomer: Sequence, running: Sequence) -> bool:
        """Return whether a newcomer may evict `running` and take its place. Only called if `grows`."""
        return False

    def wake_at(self, now: float) -> float | None:
        """Return when to propose again even if nothing arrives or completes, or None."""
        return None

    @property
    def token_budget(self) -> Any:
        return getattr(self.options, "token_budget", None)

    def receive(self, sequence: Sequence) -> None:
        rank = self._ranked(sequence)
        try:
            self.waiting.join(sequence, rank)
        except TypeError:  # some ranks are numbers and others are tuples
            raise WrongReturn(self, "rank", rank, "give all ranks as numbers, or all as tuples of numbers") from None

    def _ranked(self, sequence: Sequence) -> Any:
        """Return a sequence's rank. Raise `WrongReturn` unless the rank can be compared."""
        rank = self.rank(sequence)
        parts = rank if isinstance(rank, tuple) else (rank,)
        if not all(isinstance(part, Real) and part == part for part in parts):
            raise WrongReturn(self, "rank", rank, "give a number, or a tuple of numbers, none of them NaN")
        return rank

    def release(self, sequence: Sequence) -> None:
        self.waiting.discard(sequence.id)
        self.running.discard(sequence.id)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        return self._fill(now, memory, self._missing(memory))

    def _missing(self, memory: Memory) -> Missing:
        return [(sequence, memory.missing(sequence)) for sequence in self.running]

    def _batch_full(self, sequence: Sequence, joining: int, now: float = 0.0) -> Reason | None:
        size = len(self.running) + joining
        if size < self.options.max_batch:
            return None
        return Reason("batch-full", sequence.id, f"not admitted: the batch has {size} request{'s' * (size != 1)}")

    def _fill(self, now: float, memory: Memory, running: Missing, *rule: Any) -> Proposal:
        return self.fills[self.grows](self, now, memory, running, *rule).propose()


class Fill:
    """Builds one iteration, and reserves its newcomers' memory in a trial (the `room`)."""

    def __init__(self, policy: QueuePolicy, now: float, memory: Memory, running: Missing) -> None:
        self.policy, self.now, self.memory, self.running = policy, now, memory, running
        self.left = policy.token_budget
        self.room: Any = None  # the trial, once something is tried
        self.work: list[Work] = []
        self.joining: list[Sequence] = []
        self.reasons: list[Reason] = []

    def propose(self) -> Proposal:
        self.schedule(self.running)
        self.admit()
        return self.settle()

    def schedule(self, missing: Missing) -> None:
        """Schedule the missing tokens of sequences, up to the budget that is left."""
        for sequence, spans in missing:
            is_limited = self.left is not None and not self.is_free(spans)
            for start, stop in spans:
                if is_limited:
                    stop = min(stop, start + self.left)
                    self.left -= stop - start
                if stop > start:
                    self.work.append(Work(sequence.request.id, start, stop))

    def is_free(self, spans: tuple[Span, ...]) -> bool:
        """Return whether what a sequence misses does not count in the budget."""
        return self.policy.budget_of_prompts and sum([stop - start for start, stop in spans]) == 1

    def admit(self) -> None:
        """Let waiting sequences join until one is refused: no sequence is overtaken."""
        for sequence in self.policy.ready:
            spans = self.memory.missing(sequence)
            if (reason := self.refusal(sequence, spans, len(self.joining))) is not None:
                self.reasons.append(reason)
                return
            self.joining.append(sequence)
            self.schedule([(sequence, spans)])

    def refusal(self, newcomer: Sequence, spans: tuple[Span, ...], joining: int) -> Reason | None:
        """Return why admission, the budget or memory refuses a newcomer, or None."""
        if full := checked(self.policy, "admission", self.policy.admission(newcomer, joining, self.now), newcomer):
            return full
        if self.left == 0 and not self.is_free(spans):
            return Reason("budget-spent", newcomer.id, f"not admitted: {self.policy.token_budget} tokens are planned")
        return self.take(newcomer, spans)

    def take(self, newcomer: Sequence, spans: tuple[Span, ...]) -> Reason | None:
        """Reserve a newcomer's memory, opening a trial if there is none, or return why not."""
        if self.room is None:
            self.room = self.memory.room()
        return self.lacks(newcomer)

    def lacks(self, newcomer: Sequence) -> Reason | None:
        """Reserve a newcomer's memory in the open trial, or return why it does not fit."""
        return checked(self.room, "admit", self.room.admit(newcomer), newcomer)

    def settle(self, **more: Any) -> Proposal:
        """Return the proposal; move its newcomers to the running sequences."""
        if not self.work:
            wake_at: Any = self.policy.wake_at(self.now)
            if wake_at is not None and not (type(wake_at) in (int, float) and self.now < wake_at < math.inf):
                allowed = f"give None, or a finite time later than now, which is {self.now:g} s"
                raise WrongReturn(self.policy, "wake_at", wake_at, allowed)
            return Proposal(reasons=tuple(self.reasons), wake_at=wake_at)
        for sequence in self.joining:
            self.policy.running.add(self.policy.ready.remove(sequence.id))
        return Proposal(tuple(self.work), tuple(self.joining), tuple(self.reasons), room=self.room, **more)

"""What batching policies share: the queue, and the fill of an iteration, on which a policy is an order and a rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Sequence as Seq
from itertools import takewhile
from typing import Any, ClassVar

from minifuse.batching.queue import QueueOptions, Ranked, Ticket
from minifuse.declarations import nearest
from minifuse.errors import LawBroken, UsageError
from minifuse.fault import class_site
from minifuse.parsing import number
from minifuse.plan import Plan, Proposal, Reason
from minifuse.request import Phase, Sequence
from minifuse.stages import Memory, Room
from minifuse.work import Span, Work

__all__ = [
    "Declines",
    "Missing",
    "QueuePolicy",
    "Queued",
    "Stepwise",
    "admit_together",
    "fill",
    "num_missing",
    "prompts_of_first",
]

Missing = list[tuple[Sequence, tuple[Span, ...]]]  # sequences, each with the spans that it misses
Declines = Callable[[Sequence, int, int], Reason | None]  # a newcomer, the tokens it misses, those that are planned


def prompts_of_first(waiting: Iterable[Sequence]) -> tuple[Sequence, ...]:
    """The prompts of the request at the head of a queue, which holds the prompts of one request side by side."""
    queue = iter(waiting)
    first = next(queue)
    group = first.request.group
    if group is None:
        return (first,)
    return (first, *takewhile(lambda sequence: sequence.request.group == group, queue))


def admit_together(prompts: Iterable[Sequence], room: Room) -> Reason | None:
    """Set aside what all prompts of a request need; or return the reason why one of them does not fit."""
    return next((reason for prompt in prompts if (reason := room.admit(prompt))), None)


def fill(waiting: Iterable[Sequence], room: Room, most: int) -> tuple[list[Sequence], list[Reason]]:
    """The first `most` waiting sequences, as far as memory has room; and the reason why the next is not among them."""
    batch: list[Sequence] = []
    for sequence in waiting:
        if len(batch) == most:
            return batch, [Reason("batch-full", sequence.id, f"not batched: the batch has {number(most, 'request')}")]
        if full := room.admit(sequence):
            return batch, [full]
        batch.append(sequence)
    return batch, []


class Stepwise:
    """A policy whose workers run one plan at a time, and which needs to know nothing but the state of the sequences."""

    kind: ClassVar[str] = "batching"
    serves: ClassVar[frozenset[str]] = frozenset({"transformer"})
    workers = 1
    depth = 1
    granularity = "cell"
    overtaken_at_most: ClassVar[int | None] = None
    starts_together: ClassVar[bool] = False

    @property
    def token_budget(self) -> int | None:
        """Tokens of one iteration, at most. A longer span is cut and goes on in the next iteration."""
        return None

    def check(self, model: str, cell_types: Collection[str]) -> None:
        """No option of its own names a type of cell."""

    def commit(self, plan: Plan, now: float) -> None:
        """Nothing to keep: the next proposal starts from the sequences as they are then."""


class Queued(Stepwise):
    """A policy with a queue of requests: those that wait, in the order of their `rank`.

    Its `Options` are `QueueOptions` and its own. A policy with a rank of its own has options without an order, and
    claims no bound on overtaking unless it says so.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = QueueOptions
    overtaken_at_most: ClassVar[int | None] = 0

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "rank" in vars(cls) and "overtaken_at_most" not in vars(cls):
            cls.overtaken_at_most = None
        if cls.rank is Queued.rank and not issubclass(cls.Options, QueueOptions):
            what = "let them inherit QueueOptions (minifuse.batching.queue), or give the policy a rank of its own."
            if near := nearest("rank", cls):
                what = f"its {near!r} is never called: did you mean 'rank'? Rename it."
            whose = f"The batching policy {cls.__name__} ({class_site(cls)})"
            raise UsageError(f"{whose} has a queue and Options without an order: {what}")

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.waiting = Ranked()
        self.num_received = 0

    def rank(self, sequence: Sequence) -> Any:
        """Where a sequence stands in the queue: the lowest rank first, and of equal ranks the first to arrive.

        It is asked when the sequence joins the queue: when it arrives, and when it has been evicted. Any two ranks must
        compare: numbers, or tuples of numbers.
        """
        return self.options.rank(sequence.request)

    def receive(self, sequence: Sequence) -> None:
        self.num_received += 1
        self.waiting.add(Ticket(self.rank(sequence), self.num_received, sequence))

    def release(self, sequence: Sequence) -> None:
        self.waiting.discard(sequence.id)


class QueuePolicy(Queued, ABC):
    """Running sequences first, then newcomers, of both the lowest `rank` first, for as long as `admission` and memory
    let them in.

    The first newcomer that cannot join stops the fill, so that no request is overtaken by one of a higher rank. An
    evicted sequence waits again, ahead of all that arrived later with its rank. An iteration that evicts because memory
    is short admits none, and the first of those that run is never evicted for that: it goes on, at the latest when the
    copies under way have landed. A newcomer may take the place of any that it `displaces`.
    """

    one_plan: ClassVar[bool] = True
    grows = False  # admits with no more than is needed now, and evicts when memory runs out: see `victims`

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.running = Ranked()
        self.ready = self.waiting  # sequences that may join, the evicted included; a `READY` one was admitted before

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self.running.discard(sequence.id)

    @abstractmethod
    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        """Why `sequence` may not join now, or None.

        Args:
            joining: how many newcomers this iteration already has; `self.running` does not hold them yet.
        """

    def _batch_full(self, sequence: Sequence, joining: int) -> Reason | None:
        """Why `sequence` has no place in a batch of `max_batch` requests, or None: for a policy with this option."""
        size = len(self.running) + joining
        if size >= self.options.max_batch:
            return Reason("batch-full", sequence.id, f"not admitted: the batch has {number(size, 'request')}")
        return None

    def victims(self, running: Seq[Sequence]) -> Iterable[Sequence]:
        """The running sequences in the order in which they are evicted when memory runs out, each once.

        By default the last in rank first: of the lowest priority the newest. Asked only if one has to be evicted.

        Args:
            running: those that may be evicted, in the order of their rank.
        """
        return reversed(running)

    def displaces(self, newcomer: Sequence, running: Sequence) -> bool:
        """Whether a newcomer that may not join takes the place of a running sequence, which is evicted for it.

        Args:
            running: the last in rank of those that run.
        """
        return False

    def wake_at(self, now: float) -> float | None:
        """When to ask again although nothing has arrived or completed."""
        return None

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        return self._fill(now, memory, self._missing(memory))

    def _missing(self, memory: Memory) -> Missing:
        """What each running sequence misses."""
        missing = memory.missing
        return [(sequence, missing(sequence)) for sequence in self.running]

    def _fill(
        self,
        now: float,
        memory: Memory,
        running: Missing,
        declines: Declines | None = None,
        room: Room | None = None,
    ) -> Proposal:
        """These `running` sequences, then newcomers, up to the first that the iteration `declines`."""
        evict: dict[str, Sequence] = {}
        stuck: dict[str, Reason] = {}
        if self.grows and running:
            room = memory.room() if room is None else room
            evict, stuck = self._make_room(running, room)
            if evict or stuck:
                running = [pair for pair in running if pair[0].id not in evict and pair[0].id not in stuck]
        work: list[Work] = []
        left = self.token_budget
        if left is None:
            work = [Work(s.request.id, start, stop) for s, spans in running for start, stop in spans if stop > start]
        else:
            for sequence, spans in running:
                left = _add(work, sequence.id, spans, left)
        admit: list[Sequence] = []
        reasons = [Reason("evicted", name, "evicted: the others have no room for their next token") for name in evict]
        reasons += stuck.values()
        displaced: dict[str, Sequence] = {}
        for sequence in () if evict or stuck else self.ready:
            first = next((name for name, one in displaced.items() if not self.displaces(sequence, one)), None)
            if first is not None:
                reasons.append(Reason("behind", sequence.id, f"not admitted: {first} was evicted, and waits before it"))
                break
            spans, kept, leaving = memory.missing(sequence), work, dict(displaced)
            while True:
                reason = self.admission(sequence, len(admit) - len(leaving), now)
                if reason is None and left == 0:
                    reason = Reason(
                        "budget-spent", sequence.id, f"not admitted: {self.token_budget} tokens are planned"
                    )
                if reason is None and declines:
                    planned = sum([item.stop - item.start for item in kept])
                    reason = declines(sequence, num_missing(spans), planned)
                if reason is None:
                    room = memory.room() if room is None else room
                    reason = self._lacks(sequence, room)
                victim = None if reason is None else self._displaced(sequence, leaving, memory)
                if victim is None:
                    break
                leaving[victim.id] = victim
                kept = [item for item in kept if item.sequence != victim.id]
                room, full = self._without(leaving, running, admit, memory)
                if full is not None:
                    text = f"not admitted: {full.sequence} joins before it, and not without {victim.id}"
                    reason = Reason("behind", sequence.id, text)
                    break
            if reason is not None:  # those that would have left for it stay
                reasons.append(reason)
                break
            admit.append(sequence)
            work, displaced = kept, leaving
            left = _add(work, sequence.id, spans, left)
        reasons += [Reason("displaced", name, "evicted: one of higher priority takes its place") for name in displaced]
        if not work:
            return Proposal(reasons=tuple(reasons), wake_at=self.wake_at(now))
        evict |= displaced
        for sequence in admit:
            self.running.add(self.ready.remove(sequence.id))
        for name, sequence in evict.items():
            ticket = self.running.remove(name)
            self.ready.add(ticket._replace(rank=self.rank(sequence)))
        admit = [sequence for sequence in admit if sequence.phase is not Phase.READY]
        return Proposal(tuple(work), tuple(admit), tuple(reasons), evict=tuple(evict.values()), growing=self.grows)

    def _lacks(self, newcomer: Sequence, room: Room) -> Reason | None:
        """Set aside what a newcomer needs; or return the reason why it does not fit now."""
        if newcomer.phase is Phase.READY:
            return room.extend(newcomer)
        return room.admit(newcomer, growing=True) if self.grows else room.admit(newcomer)

    def _displaced(self, newcomer: Sequence, leaving: Collection[str], memory: Memory) -> Sequence | None:
        """The running sequence whose place a newcomer takes, if it does; memory must be able to evict it."""
        if not self.grows or not memory.evicts:
            return None
        last = next((one for one in reversed(self.running) if one.id not in leaving), None)
        return last if last is not None and self.displaces(newcomer, last) else None

    def _without(
        self, leaving: dict[str, Sequence], running: Missing, admit: list[Sequence], memory: Memory
    ) -> tuple[Room, Reason | None]:
        """Try again what is settled so far without the sequences that leave, in the order in which it is placed.

        Placed, they leave before any newcomer joins. So an earlier newcomer finds nothing of theirs to share.

        Returns:
            The trial, and why one of the earlier newcomers would not join it, or would miss other tokens.
        """
        room = memory.room()
        for sequence in leaving.values():
            room.evict(sequence)
        rest = (room.extend(sequence) for sequence, _ in running if sequence.id not in leaving)
        joined = (self._lacks(sequence, room) for sequence in admit)
        return room, next((reason for reason in (*rest, *joined) if reason is not None), None)

    def _make_room(self, running: Missing, room: Room) -> tuple[dict[str, Sequence], dict[str, Reason]]:
        """Evict until each of these `running` sequences that is left has room for its next token.

        Returns:
            The evicted, in the order in which they were; and those that have no room although no other is left to
            evict, with the reason: they wait until copies that are under way have landed.
        """
        evicted: dict[str, Sequence] = {}
        stuck: dict[str, Reason] = {}
        victims: Iterator[Sequence] | None = None
        for sequence, _ in running:
            if evicted and sequence.id in evicted:
                continue
            while (full := room.extend(sequence)) is not None:
                if victims is None:
                    victims = self._victims()
                victim = next(victims, None)
                if victim is None:
                    stuck[sequence.id] = full._replace(text=f"{full.text}, and no other sequence is left to evict")
                    break
                room.evict(victim)
                evicted[victim.id] = victim
                if victim is sequence:
                    break
        return evicted, stuck

    def _victims(self) -> Iterator[Sequence]:
        """What `victims` returns, one by one, each checked when it is taken. The first that runs is not among them."""
        others = list(self.running)[1:]
        left = {sequence.id: sequence for sequence in others}
        for victim in self.victims(others):
            name = getattr(victim, "id", str(victim))
            if victim is None or left.pop(name, None) is not victim:
                raise LawBroken(
                    "progress",
                    f"the policy {self.name} evicts {name}, which is not among the {len(others)} running sequences "
                    "that its `victims` was given, or is named twice",
                )
            yield victim


def num_missing(spans: tuple[Span, ...]) -> int:
    """Tokens of these spans."""
    if len(spans) == 1:  # as of most sequences
        return spans[0].stop - spans[0].start
    return sum([stop - start for start, stop in spans])


def _add(work: list[Work], name: str, spans: tuple[Span, ...], left: int | None) -> int | None:
    """Append what a sequence misses, cut to the budget that is left; return what is left then."""
    for start, stop in spans:
        if left is not None:
            stop = min(stop, start + left)
            left -= stop - start
        if stop > start:
            work.append(Work(name, start, stop))
    return left

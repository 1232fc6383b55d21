"""What queue policies share: the queue, and the fill of an iteration."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, ClassVar

from minifuse.batching.queue import QueueOptions, Ranked
from minifuse.contracts.values import check_rank, check_reason, check_time
from minifuse.core.errors import UsageError
from minifuse.core.plan import Proposal, Reason, Room, Span, Work
from minifuse.core.request import Phase, Sequence
from minifuse.core.stages import Batching, Memory
from minifuse.declarations import nearest
from minifuse.fault import Wrong, class_site, is_own, returned_by, shown
from minifuse.parsing import number

__all__ = [
    "Missing",
    "QueuePolicy",
    "Rule",
    "admit_together",
    "fill",
    "num_missing",
    "prompts_of_first",
]

Missing = list[tuple[Sequence, tuple[Span, ...]]]  # sequences, each with the spans that it misses
Rule = Callable[[Sequence, int, int], Reason | None]  # of a newcomer, the tokens it misses, the tokens planned


def prompts_of_first(waiting: Iterable[Sequence]) -> tuple[Sequence, ...]:
    """The prompts of the first request in a queue: they stand side by side."""
    queue = iter(waiting)
    first = next(queue)
    group = first.request.group
    if group is None:
        return (first,)
    return (first, *takewhile(lambda sequence: sequence.request.group == group, queue))


def admit_together(prompts: Iterable[Sequence], room: Room) -> Reason | None:
    """Set aside what all prompts of a request need, or return the reason of a refusal."""
    return next((reason for prompt in prompts if (reason := room.admit(prompt))), None)


def fill(waiting: Iterable[Sequence], room: Room, most: int) -> tuple[list[Sequence], list[Reason]]:
    """The first `most` waiting sequences that fit, and why the next does not join."""
    batch: list[Sequence] = []
    for sequence in waiting:
        if len(batch) == most:
            return batch, [Reason("batch-full", sequence.id, f"not batched: the batch has {number(most, 'request')}")]
        if full := room.admit(sequence):
            return batch, [full]
        batch.append(sequence)
    return batch, []


@dataclass(slots=True)
class Filling:
    """An iteration in the making, and the trial of memory on which it is settled."""

    memory: Memory
    left: int | None  # tokens of the budget that are left; None: no budget
    running: Missing  # the running sequences that are scheduled
    opened: Room | None = None  # the trial, once something is tried
    work: list[Work] = field(default_factory=list)
    admit: list[Sequence] = field(default_factory=list)
    evicted: dict[str, Sequence] = field(default_factory=dict)  # because memory is short
    stuck: dict[str, Reason] = field(default_factory=dict)  # running, and without room although none is left to evict
    displaced: dict[str, Sequence] = field(default_factory=dict)  # a newcomer takes the place of each
    reasons: list[Reason] = field(default_factory=list)  # why the first that waits was not admitted

    @property
    def room(self) -> Room:
        if self.opened is None:
            self.opened = self.memory.room()
        return self.opened

    @property
    def num_planned(self) -> int:
        """Tokens of the work so far."""
        return sum([work.stop - work.start for work in self.work])

    def add(self, sequence: Sequence, spans: tuple[Span, ...]) -> None:
        """Schedule what a sequence misses, cut to the budget that is left."""
        name, left = sequence.request.id, self.left
        for start, stop in spans:
            if left is not None:
                stop = min(stop, start + left)
                left -= stop - start
            if stop > start:
                self.work.append(Work(name, start, stop))
        self.left = left


class QueuePolicy(Batching):
    """Schedules running sequences, then waiting ones, in rank order, until admission or memory refuses.

    The first waiting sequence that cannot join ends the fill, so that no request is overtaken by one of a higher rank.
    An evicted sequence waits again, ahead of all that arrived later with its rank. An iteration that evicts because
    memory is short admits none, and the first that runs is never evicted for that: it goes on, at the latest when the
    copies under way have landed. A newcomer may take the place of any sequence that it `displaces`.

    Its `Options` are `QueueOptions` and its own. A policy with a rank of its own has options without an order, and
    claims no bound on overtaking unless it says so.
    """

    kind: ClassVar[str] = "batching"
    name: ClassVar[str]
    Options: ClassVar[type] = QueueOptions
    overtaken_at_most: int | None = 0
    one_plan = True
    grows = False  # admits with no more than is needed now, and evicts when memory runs out: see `victims`

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "rank" in vars(cls) and "overtaken_at_most" not in vars(cls):
            cls.overtaken_at_most = None
        if cls.rank is QueuePolicy.rank and not issubclass(cls.Options, QueueOptions):
            what = "let them inherit QueueOptions (minifuse.batching.queue), or give the policy a rank of its own."
            if near := nearest("rank", cls):
                what = f"its {near!r} is never called: did you mean 'rank'? Rename it."
            whose = f"The batching policy {cls.__name__} ({class_site(cls)})"
            raise UsageError(f"{whose} has a queue and Options without an order: {what}")

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options
        self.waiting = Ranked()
        self.running = Ranked()
        self._is_checked = not is_own(type(self))
        self._last_rank: Any = None
        self.ready = self.waiting  # sequences that may join, the evicted included; a `READY` one was admitted before

    def rank(self, sequence: Sequence) -> Any:
        """The rank of a sequence: the lowest goes first; of equal ranks, the first to arrive.

        It is asked when the sequence joins the queue: when it arrives, and when it has been evicted. Any two ranks must
        compare: numbers, or tuples of numbers.
        """
        return self.options.rank(sequence.request)

    def receive(self, sequence: Sequence) -> None:
        self.waiting.join(sequence, self._ranked(sequence))

    def _ranked(self, sequence: Sequence) -> Any:
        """The rank of a sequence, which must compare with that of the one before."""
        rank = self.rank(sequence)
        if self._is_checked:
            with returned_by(self, "rank"):
                check_rank(rank, self._last_rank)
            self._last_rank = rank
        return rank

    def release(self, sequence: Sequence) -> None:
        self.waiting.discard(sequence.id)
        self.running.discard(sequence.id)

    @abstractmethod
    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        """Why `sequence` may not join now, or None.

        Args:
            joining: how many newcomers this iteration already has; `self.running` does not hold them yet.
        """

    def _batch_full(self, sequence: Sequence, joining: int) -> Reason | None:
        """Why a batch of `max_batch` requests has no place for `sequence`, or None."""
        size = len(self.running) + joining
        if size >= self.options.max_batch:
            return Reason("batch-full", sequence.id, f"not admitted: the batch has {number(size, 'request')}")
        return None

    def victims(self, running: Seq[Sequence]) -> Iterable[Sequence]:
        """The order in which running sequences are evicted when memory runs out, each once.

        By default the last in rank first: of the lowest priority the newest. Asked only if one has to be evicted.

        Args:
            running: those that may be evicted, in the order of their rank.
        """
        return reversed(running)

    def displaces(self, newcomer: Sequence, running: Sequence) -> bool:
        """Whether a refused newcomer takes the place of a running sequence, which is evicted.

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

    @property
    def token_budget(self) -> int | None:
        """The option of this name, for a policy that has it."""
        budget: int | None = getattr(self.options, "token_budget", None)
        return budget

    # --- the fill of an iteration, step by step

    def _fill(self, now: float, memory: Memory, running: Missing, rule: Rule | None = None) -> Proposal:
        """Fill an iteration: running sequences, then waiting ones up to the first refused.

        Args:
            rule: why a waiting sequence does not join this iteration, or None; asked after `admission`.
        """
        filling = Filling(memory, self.token_budget, running)
        if self.grows and running:
            self._make_room(filling)
        self._schedule(filling)
        if not filling.evicted and not filling.stuck:
            filling = self._admit(filling, now, memory, rule)
        return self._settle(filling, now)

    def _make_room(self, filling: Filling) -> None:
        """Evict until each running sequence that is left has room for its next token.

        One that has no room although no other is left to evict is stuck: it waits until the copies that are under way
        have landed.
        """
        room, evicted = filling.room, filling.evicted
        victims: Iterator[Sequence] | None = None
        for sequence, _ in filling.running:
            if evicted and sequence.id in evicted:
                continue
            while (full := room.extend(sequence)) is not None:
                _check_refusal(room, "extend", full, sequence)
                if victims is None:
                    victims = self._victims()
                victim = next(victims, None)
                if victim is None:
                    text = f"{full.text}, and no other sequence is left to evict"
                    filling.stuck[sequence.id] = full._replace(text=text)
                    break
                room.evict(victim)
                evicted[victim.id] = victim
                if victim is sequence:
                    break
        if evicted or filling.stuck:
            stopped = evicted.keys() | filling.stuck.keys()
            filling.running = [pair for pair in filling.running if pair[0].id not in stopped]

    def _victims(self) -> Iterator[Sequence]:
        """Yield the `victims`, each checked as it is taken; never the first that runs."""
        others = list(self.running)[1:]
        left = {id(sequence) for sequence in others}
        victims = self.victims(others)
        with returned_by(self, "victims"):
            if not isinstance(victims, Iterable):
                raise Wrong(
                    shown(victims), "give some of the running sequences, in the order in which they are evicted"
                )
        for victim in victims:
            with returned_by(self, "victims"):
                if id(victim) not in left:
                    found = f"{shown(getattr(victim, 'id', victim))} among others"
                    raise Wrong(found, "give sequences of the list it was given, none of them twice", "progress")
            left.remove(id(victim))
            yield victim

    def _schedule(self, filling: Filling) -> None:
        """Schedule what the running sequences miss, as far as the budget goes."""
        if filling.left is None:  # as mostly: a thousand may run
            pairs = filling.running
            filling.work = [
                Work(sequence.request.id, start, stop)
                for sequence, spans in pairs
                for start, stop in spans
                if stop > start
            ]
            return
        for sequence, spans in filling.running:
            filling.add(sequence, spans)

    def _admit(self, filling: Filling, now: float, memory: Memory, rule: Rule | None) -> Filling:
        """Admit waiting sequences up to the first refused; they may displace running ones."""
        for sequence in self.ready:
            spans = memory.missing(sequence)
            attempt = filling
            reason = self._outranked(sequence, attempt)
            while reason is None and (reason := self._refusal(sequence, spans, attempt, now, rule)) is not None:
                victim = self._displaced(sequence, attempt, memory)
                if victim is None:
                    break
                attempt, reason = self._without(victim, sequence, attempt, memory)
            if reason is not None:  # what would have been displaced for it stays
                filling.reasons.append(reason)
                break
            filling = attempt
            filling.admit.append(sequence)
            filling.add(sequence, spans)
        return filling

    def _outranked(self, newcomer: Sequence, filling: Filling) -> Reason | None:
        """Why a newcomer waits behind a displaced sequence, which waits before it; or None."""
        for name, displaced in filling.displaced.items():
            if not self.displaces(newcomer, displaced):
                return Reason("behind", newcomer.id, f"not admitted: {name} was evicted, and waits before it")
        return None

    def _refusal(
        self, newcomer: Sequence, spans: tuple[Span, ...], filling: Filling, now: float, rule: Rule | None
    ) -> Reason | None:
        """Why admission, the budget, the rule or memory refuses a newcomer; or None."""
        if reason := self.admission(newcomer, len(filling.admit) - len(filling.displaced), now):
            _check_refusal(self, "admission", reason, newcomer)
            return reason
        if filling.left == 0:
            return Reason("budget-spent", newcomer.id, f"not admitted: {self.token_budget} tokens are planned")
        if rule is not None and (reason := rule(newcomer, num_missing(spans), filling.num_planned)):
            return reason
        return self._lacks(newcomer, filling.room)

    def _lacks(self, newcomer: Sequence, room: Room) -> Reason | None:
        """Set aside what a newcomer needs, or return the reason of a refusal."""
        if newcomer.phase is Phase.READY:
            method, reason = "extend", room.extend(newcomer)
        else:
            method, reason = "admit", room.admit(newcomer, growing=True) if self.grows else room.admit(newcomer)
        if reason is not None:
            _check_refusal(room, method, reason, newcomer)
        return reason

    def _displaced(self, newcomer: Sequence, filling: Filling, memory: Memory) -> Sequence | None:
        """The running sequence that a newcomer displaces, or None."""
        if not self.grows or not memory.evicts:
            return None
        last = next((one for one in reversed(self.running) if one.id not in filling.displaced), None)
        return last if last is not None and self.displaces(newcomer, last) else None

    def _without(
        self, victim: Sequence, newcomer: Sequence, filling: Filling, memory: Memory
    ) -> tuple[Filling, Reason | None]:
        """Settle the iteration again without a victim, in the order in which it is placed.

        Placed, the displaced leave before any newcomer joins. So an earlier newcomer finds nothing of theirs to share.

        Returns:
            The iteration, and why the newcomer waits for an earlier one that would not join it, or miss other tokens.
        """
        displaced = {**filling.displaced, victim.id: victim}
        room = memory.room()
        for sequence in displaced.values():
            room.evict(sequence)
        rest = (room.extend(sequence) for sequence, _ in filling.running if sequence.id not in displaced)
        joined = (self._lacks(sequence, room) for sequence in filling.admit)
        full = next((reason for reason in (*rest, *joined) if reason is not None), None)
        work = [work for work in filling.work if work.sequence != victim.id]
        attempt = replace(filling, opened=room, work=work, admit=[*filling.admit], displaced=displaced)
        if full is None:
            return attempt, None
        text = f"not admitted: {full.sequence} joins before it, and not without {victim.id}"
        return attempt, Reason("behind", newcomer.id, text)

    def _settle(self, filling: Filling, now: float) -> Proposal:
        """Make the proposal, and move what it admits and evicts from queue to queue."""
        short = "evicted: the others have no room for their next token"
        reasons = [Reason("evicted", name, short) for name in filling.evicted]
        reasons += filling.stuck.values()
        reasons += filling.reasons
        reasons += [
            Reason("displaced", name, "evicted: one of higher priority takes its place") for name in filling.displaced
        ]
        if not filling.work:
            wake_at = self.wake_at(now)
            if self._is_checked:
                with returned_by(self, "wake_at"):
                    check_time("", wake_at, now)
            return Proposal(reasons=tuple(reasons), wake_at=wake_at)
        evict = filling.evicted | filling.displaced
        for sequence in filling.admit:
            self.running.add(self.ready.remove(sequence.id))
        for name, sequence in evict.items():
            ticket = self.running.remove(name)
            self.ready.add(ticket._replace(rank=self._ranked(sequence)))
        return Proposal(
            tuple(filling.work),
            tuple([sequence for sequence in filling.admit if sequence.phase is not Phase.READY]),
            tuple(reasons),
            evict=tuple(evict.values()),
            growing=self.grows,
            room=filling.opened,
        )


def _check_refusal(stage: Any, method: str, reason: Any, sequence: Sequence) -> None:
    """Raise `StageFault` unless a stage of a user's own refuses a sequence with a `Reason`."""
    if not is_own(type(stage)):
        with returned_by(stage, method):
            check_reason("", reason, (sequence.id,))


def num_missing(spans: tuple[Span, ...]) -> int:
    """Tokens of these spans."""
    if len(spans) == 1:  # as of most sequences
        return spans[0].stop - spans[0].start
    return sum([stop - start for start, stop in spans])

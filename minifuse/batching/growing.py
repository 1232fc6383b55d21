"""Fills iterations of policies that admit with little memory and evict when it runs out."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from minifuse.batching.policy import Fill, Missing, QueuePolicy
from minifuse.contracts.fault import Wrong, returned_by, shown
from minifuse.core.errors import WrongReturn
from minifuse.core.plan import Proposal, Reason, Span, Work
from minifuse.core.request import Phase, Sequence
from minifuse.core.stages import Memory
from minifuse.memory.trial import checked

Rule = Callable[[Fill, Sequence, tuple[Span, ...]], Reason | None]  # why a newcomer with these missing spans must wait

Before = tuple[list[Work], int, dict[str, Sequence]]  # before a newcomer joins: work, its length, displaced sequences


class GrowingFill(Fill):
    """Evicts sequences when memory is short, and lets newcomers displace running ones.

    An evicted sequence waits again, ahead of sequences of its rank that arrived later. An iteration that evicts because
    memory is short admits no sequence. The first running sequence is never evicted for this reason: it goes on, at the
    latest when the copies in flight complete. A newcomer may take the place of any sequence that it `displaces`.

    Args:
        rule: returns why a waiting sequence does not join this iteration, or None. It is called last, after `admission`
            and the budget.
    """

    def __init__(
        self, policy: QueuePolicy, now: float, memory: Memory, running: Missing, rule: Rule | None = None
    ) -> None:
        super().__init__(policy, now, memory, running)
        self.rule = rule
        self.evicted: dict[str, Sequence] = {}  # evicted because memory is short
        self.displaced: dict[str, Sequence] = {}  # evicted to make room for a newcomer
        self.before: list[Before] = []  # one entry for each newcomer that joins
        self.in_order = True  # whether the trial evicted before it admitted, as `place` does

    def propose(self) -> Proposal:
        if self.running:
            self.make_room()
        self.schedule(self.running)
        if not self.reasons:
            self.admit()
        return self.settle()

    def make_room(self) -> None:
        """Evict until each remaining running sequence has room for its next token.

        If no other sequence is left to evict, a sequence without room waits until the copies in flight complete.
        """
        room, evicted, victims = self.memory.room(), self.evicted, self.victims()
        self.room = room
        for sequence, _ in self.running:
            while not (evicted and sequence.id in evicted) and (full := room.extend(sequence)) is not None:
                checked(room, "extend", full, sequence)
                victim = next(victims, None)
                if victim is None:
                    text = f"{full.text}, and no other sequence is left to evict"
                    self.reasons.append(full._replace(text=text))
                    break
                room.evict(victim)
                evicted[victim.id] = victim
                text = "evicted: the others have no room for their next token"
                self.reasons.append(Reason("evicted", victim.id, text))
        if stopped := {reason.sequence for reason in self.reasons}:
            self.running = [pair for pair in self.running if pair[0].id not in stopped]

    def victims(self) -> Iterator[Sequence]:
        """Yield the policy's victims, and check each; the first running sequence is never one."""
        others = list(self.policy.running)[1:]
        left = {id(sequence) for sequence in others}
        victims: Any = self.policy.victims(others)
        if not isinstance(victims, Iterable):
            allowed = "give some of the running sequences, in the order in which they are evicted"
            raise WrongReturn(self.policy, "victims", victims, allowed)
        for victim in victims:
            with returned_by(self.policy, "victims"):
                if id(victim) not in left:
                    found = f"{shown(getattr(victim, 'id', victim))} among others"
                    raise Wrong(found, "give sequences of the list it was given, none of them twice", "progress")
            left.remove(id(victim))
            yield victim

    def refusal(self, newcomer: Sequence, spans: tuple[Span, ...], joining: int) -> Reason | None:
        """Return why a newcomer is refused although it may displace running sequences, or None."""
        for name, sequence in self.displaced.items():
            if not self.policy.displaces(newcomer, sequence):
                return Reason("behind", newcomer.id, f"not admitted: {name} was evicted, and waits before it")
        before = self.work, len(self.work), self.displaced
        while (reason := super().refusal(newcomer, spans, joining - len(self.displaced))) is not None:
            victim = self.displaceable(newcomer)
            if victim is None:  # undo displacements that did not help
                self.restore(before)
                return reason
            self.displace(victim)
        self.before.append(before)
        return None

    def take(self, newcomer: Sequence, spans: tuple[Span, ...]) -> Reason | None:
        if self.rule is not None and (reason := self.rule(self, newcomer, spans)) is not None:
            return reason
        return super().take(newcomer, spans)

    def lacks(self, newcomer: Sequence) -> Reason | None:
        """Set aside what a newcomer needs, or return why not.

        A `READY` newcomer was admitted earlier, so memory only extends it.
        """
        if newcomer.phase is Phase.READY:
            return checked(self.room, "extend", self.room.extend(newcomer), newcomer)
        return checked(self.room, "admit", self.room.admit(newcomer, growing=True), newcomer)

    def displaceable(self, newcomer: Sequence) -> Sequence | None:
        """Return the last running sequence if a newcomer displaces it, or None."""
        order, gone = self.policy.running.order, len(self.displaced)  # displaced sequences are the last
        if not self.memory.evicts or gone == len(order):
            return None
        _, _, last = order[-1 - gone]
        return last if self.policy.displaces(newcomer, last) else None

    def displace(self, victim: Sequence) -> None:
        """Evict a running sequence for a newcomer; `settle` retries everything in order."""
        self.room = self.memory.room() if self.room is None else self.room
        self.room.evict(victim)
        self.displaced = self.displaced | {victim.id: victim}
        self.work = [work for work in self.work if work.sequence != victim.id]
        self.in_order = False

    def restore(self, before: Before) -> None:
        """Restore the work and the displaced sequences to those before a newcomer was tried."""
        work, length, self.displaced = before
        self.work = work[:length]

    def retry(self) -> Reason | None:
        """Repeat the trial in the order of `Memory.place`; return the first refusal, or None.

        `place` evicts displaced sequences before newcomers join, so a newcomer cannot share blocks of a displaced one.
        """
        self.room = self.memory.room()
        for sequence in self.displaced.values():
            self.room.evict(sequence)
        rest = (self.room.extend(sequence) for sequence, _ in self.running if sequence.id not in self.displaced)
        joined = (self.lacks(sequence) for sequence in self.joining)
        return next(filter(None, chain(rest, joined)), None)

    def settle_order(self) -> None:
        """Send newcomers back to the queue, the last one first, until `retry` refuses nothing."""
        while (full := self.retry()) is not None and self.joining:
            last = self.joining.pop()
            self.restore(self.before.pop())
            text = f"not admitted: if it joined, {full.sequence}, which goes first, could not"
            self.reasons = [full if full.sequence == last.id else Reason("behind", last.id, text)]

    def settle(self, **more: Any) -> Proposal:
        if not self.in_order:
            self.settle_order()
        text = "evicted: one of higher priority takes its place"
        self.reasons += [Reason("displaced", name, text) for name in self.displaced]
        evict = self.evicted | self.displaced
        if self.work:
            for name, sequence in evict.items():
                _, number, _ = self.policy.running.remove(name)
                self.policy.ready.add((self.policy._ranked(sequence), number, sequence))
        return super().settle(evict=tuple(evict.values()), growing=True)

"""Re-batching with prompts prefilled in iterations of their own (Baton, 4.2)."""

import math
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.queue import Ranked, Ticket
from minifuse.batching.rebatch import RefillOptions, batch_closed, takes_place
from minifuse.batching.reranking import first_of, last_of, outranks
from minifuse.core.errors import UsageError
from minifuse.core.plan import Plan, Proposal, Reason, Work
from minifuse.core.request import Phase, Sequence
from minifuse.core.stages import Memory, option

BATCH = 0  # the worker of the batch; with `prompts=worker`, the other one computes prompts
LOOKED_AT = 4  # prompts of similar length are sought among the first LOOKED_AT * max_batch that wait


class Drawn(Ranked):
    """A queue whose order among equal ranks is drawn at random.

    The prompt is the seed of a sequence's draw, so that a run repeats, whatever was served before it.
    """

    def add(self, ticket: Ticket) -> None:
        rank, number, sequence = ticket
        drawn = Random(str(sequence.request.prompt)).random()
        super().add(((rank, drawn), number, sequence))  # type: ignore[arg-type]

    def remove(self, name: str) -> Ticket:
        (rank, _), number, sequence = super().remove(name)  # type: ignore[misc]
        return rank, number, sequence


class Decoupled(QueuePolicy):
    """Prefills prompts of similar length together, between iterations; prefilled prompts wait for a place.

    The next group to compute always has the first waiting prompt, so no prompt is overtaken for ever. Groups are
    computed one after the other until the batch can be filled. After that, one group at a time is computed ahead,
    between two iterations of the batch, while fewer than `max_batch` sequences are ready to join. No group is computed
    ahead while an evicted sequence waits before the first prompt. A prompt that outranks a ready sequence, or may
    displace a running one, is computed at once, and joins before the sequences that it outranks.

    With `prompts=worker` a second worker computes the groups while the first runs the batch. Then no newcomer displaces
    a running sequence.

    With `compose=random`, prompts are computed ahead while memory has room for them, and join in an order drawn at
    random among equal ranks. Without `refill`, this is the "PD" of 5.1.
    """

    name = "decoupled"
    apart = True
    in_step = True
    displaces = takes_place
    grows = True
    one_plan = False
    overtaken_at_most = None  # prompts similar in length to the first may overtake without bound

    @dataclass(frozen=True)
    class Options(RefillOptions):
        padding: float = option(
            0.1, "part of what is computed that prompts of similar length may have as padding", minimum=0, maximum=1
        )
        compose: str = option(
            "together",
            "order in which computed prompts join: as computed, so mostly together, or at random",
            choices=("together", "random"),
        )
        prompts: str = option(
            "inline",
            "where prompts are computed: between two iterations of the batch, or beside it",
            choices=("inline", "worker"),
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.prompts == "worker" and self.order == "priority" and self.preempt and self.refill:
                raise UsageError("batching.prompts=worker interrupts no request: give batching.preempt=off.")

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.ready = (
            Drawn() if self.options.compose == "random" else Ranked()
        )  # computed or evicted sequences without a place
        self.computing: dict[str, Ticket] = {}  # prompts of the plan in flight
        self.workers = 2 if self.options.prompts == "worker" else 1
        self.prompts_last = False  # inline: whether the last plan computed prompts: then an iteration is due

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self.ready.discard(sequence.id)
        self.computing.pop(sequence.id, None)

    def commit(self, plan: Plan, now: float) -> None:
        if plan.phase is Phase.PREPROCESSING:
            for ticket in self.computing.values():
                self.ready.add(ticket)
            self.computing.clear()

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        if self.workers == 1:
            return self._take_turns(worker, now, memory)
        if worker == BATCH:
            batch = self._batch(worker, now, memory)
            return replace(batch, reasons=(*self._apart(), *batch.reasons))
        return self._prefill(memory) if self._ahead() else Proposal(reasons=self._enough_ready())

    def _take_turns(self, worker: int, now: float, memory: Memory) -> Proposal:
        """Propose prompts, or an iteration of the batch."""
        ahead = self._ahead()
        prompts = self._prefill(memory) if ahead else Proposal()
        batch = Proposal() if prompts.work else self._batch(worker, now, memory)
        if not ahead and not batch.work:
            prompts = self._prefill(memory)
        self.prompts_last = bool(prompts.work)
        if prompts.work:
            return prompts
        return replace(batch, reasons=(*(prompts.reasons or self._enough_ready()), *batch.reasons))

    def _batch(self, worker: int, now: float, memory: Memory) -> Proposal:
        """Propose an iteration of the batch."""
        batch = super().propose(worker, now, memory)
        admit = tuple([one for one in batch.admit if one.phase is not Phase.READY])  # READY: already admitted
        return replace(batch, admit=admit)

    def _apart(self) -> tuple[Reason, ...]:
        """Return why prompts that another worker computes, or will compute, do not join."""
        text = "not admitted: its prompt is still being computed"
        computing = [Reason("preprocessing", name, text) for name in self.computing]
        first = first_of(self.waiting)
        text = "not admitted: its prompt has yet to be computed"
        return (*computing, *([Reason("to-preprocess", first.id, text)] if first else []))

    def _enough_ready(self) -> tuple[Reason, ...]:
        """Return why no prompt is computed, if one waits."""
        if (first := first_of(self.waiting)) is None:
            return ()
        text = f"not admitted: its prompt is computed when fewer than {len(self.ready)} are ready to join"
        return (Reason("prompts-ready", first.id, text),)

    def _ahead(self) -> bool:
        """Return whether prompts are computed before the next iteration of the batch."""
        first, most = first_of(self.waiting), self.options.max_batch
        if first is None:
            return False
        rank = self.rank(first)
        if any(one.phase is Phase.SUSPENDED and self.rank(one) <= rank for one in self.ready):
            return False
        last_ready, last_running = last_of(self.ready), last_of(self.running)
        outranked = last_ready is not None and outranks(self, first, last_ready)
        if outranked or (last_running is not None and self.displaces(first, last_running)):
            return not (self.prompts_last and self.running)
        enough = math.inf if self.options.compose == "random" else most
        if (self.options.refill or not self.running) and len(self.running) + len(self.ready) < enough:
            return True
        return not self.prompts_last and len(self.ready) < enough

    def admission(self, sequence: Sequence, joining: int, now: float) -> Reason | None:
        first = first_of(self.waiting)
        for other in (*([first] if first else []), *[ticket[2] for ticket in self.computing.values()]):
            if self.running and outranks(self, other, sequence):
                text = f"not admitted: {other.id} goes before it, with a prompt to compute"
                return Reason("behind", sequence.id, text)
        return batch_closed(self, sequence, joining, now)

    def _prefill(self, memory: Memory) -> Proposal:
        """Propose the first waiting prompt, together with later prompts of similar length."""
        room = memory.room()
        group: list[Sequence] = []
        longest = total = 0
        for sequence in islice(self.waiting, LOOKED_AT * self.options.max_batch):
            length = len(sequence)
            padded = (len(group) + 1) * max(longest, length)
            if padded - total - length > self.options.padding * padded:
                continue
            if reason := room.admit(sequence, growing=True):
                if not group:
                    return Proposal(reasons=(reason,))
                break
            group.append(sequence)
            longest, total = max(longest, length), total + length
            if len(group) == self.options.max_batch:
                break
        for sequence in group:
            self.computing[sequence.id] = self.waiting.remove(sequence.id)
        work = tuple(Work(sequence.id, 0, len(sequence)) for sequence in group)
        return Proposal(work, tuple(group), phase=Phase.PREPROCESSING, growing=True, room=room)

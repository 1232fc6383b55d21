"""A multi-level feedback queue: long-running requests make way for others (FastServe; FluidInfer, 2)."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from minifuse.batching.policy import QueuePolicy
from minifuse.batching.queue import Ranked
from minifuse.batching.reranking import first_of, outranks, rerank
from minifuse.core.plan import Plan, Proposal, Reason
from minifuse.core.request import Phase, Sequence
from minifuse.core.stages import Memory, option


@dataclass(slots=True)
class _Turn:
    """A request's level, when it entered that level, and the time it used there."""

    level: int
    entered_s: float
    used_s: float = 0.0


class Mlfq(QueuePolicy):
    """Runs requests level by level; a request that uses up its quantum is demoted.

    Level i has a quantum of `quantum` x 2^i, so short answers are done before long ones, although no length is known in
    advance. A new request skips the levels whose quantum is shorter than its first iteration, since it would only be
    interrupted there. That iteration is estimated from the prompt and the speed of the last iteration with a prompt.
    Between two iterations, a waiting request takes the place of the last running one if the waiting one ranks higher.
    An evicted request keeps its level and its used time. In the last level, requests take turns. A request that has
    waited for `starve` moves to the end of the first level, with a new quantum. Requests that arrive after that moment
    are admitted after it.

    >>> # quantum 10 ms, a first iteration of 35 ms: the request begins in level 2, whose quantum is 40 ms; if it takes
    >>> # 35 ms, then 6 ms for its second token, it goes on in level 3, with 80 ms
    """

    name = "mlfq"
    grows = True
    admission = QueuePolicy._batch_full
    displaces = outranks
    remembers = True  # the speed of the last iteration with a prompt

    @dataclass(frozen=True)
    class Options:
        max_batch: int = option(8, "requests in one iteration, at most", minimum=1, batch_size=True)
        quantum: float = option(
            0.01, "time in the first level; each has twice that of the last", minimum=1e-6, unit="s"
        )
        levels: int = option(8, "levels", minimum=1, maximum=32)
        starve: float = option(3.0, "after so long a wait, to the first level", minimum=0.0, unit="s")
        host_reserve: float = option(
            0.1,
            "no new prompt begins beside others while less than this part of the host's KV memory is free of what lies "
            "there alone",
            minimum=0,
            maximum=1,
        )

    def __init__(self, options: Any = None) -> None:
        super().__init__(options)
        self.work_conserving = not self.options.host_reserve  # a reserve holds new prompts back
        self.turns: dict[str, _Turn] = {}  # request, waiting or running -> its turn
        self.waits: OrderedDict[str, float] = OrderedDict()  # request -> when its wait began, longest wait first
        self.seconds_per_token = 0.0  # in the last iteration with a prompt of several tokens, swaps included
        self.proposed_s = 0.0  # when the iteration that runs was proposed
        self.evicted = Ranked()  # waiting sequences that have run before

    def rank(self, sequence: Sequence) -> tuple[int, float]:
        turn = self.turns[sequence.id]
        return turn.level, turn.entered_s

    def receive(self, sequence: Sequence) -> None:
        first_s, arrival_s = self.seconds_per_token * len(sequence), sequence.request.arrival_s
        last = self.options.levels - 1
        level = next((level for level in range(last) if self._quantum(level) >= first_s), last)
        self.turns[sequence.id] = _Turn(level, arrival_s)
        self.waits[sequence.id] = arrival_s
        super().receive(sequence)

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self.evicted.discard(sequence.id)
        self.turns.pop(sequence.id, None)
        self.waits.pop(sequence.id, None)

    def _quantum(self, level: int) -> float:
        return float(self.options.quantum * 2**level)

    def propose(self, worker: int, now: float, memory: Memory) -> Proposal:
        self._promote(now)
        usage = memory.usage()
        free = memory.host_capacity - usage.host - usage.kept_on_host
        is_host_full = free < self.options.host_reserve * memory.host_capacity
        self.proposed_s = now
        # While the host is short of memory, sequences that have run go on, and no new prompt begins.
        is_held = is_host_full and bool(self.evicted or self.running)
        self.ready, other = (self.evicted, self.waiting) if is_held else (self.waiting, self.evicted)
        proposal = super().propose(worker, now, memory)
        for sequence in proposal.admit:
            other.discard(sequence.id)
            self.waits.pop(sequence.id, None)
        for sequence in proposal.evict:
            other.add(self.ready.tickets[sequence.id])
            self.waits[sequence.id] = now
        first = first_of(self.waiting)
        if not is_held or first is None or first.phase is not Phase.RECEIVED:
            return proposal
        held = Reason("host-full", first.id, "not admitted: little of the host's KV memory is free")
        return replace(proposal, reasons=(*proposal.reasons, held))

    def _promote(self, now: float) -> None:
        """Move requests that have waited for `starve` to the first level, with a new quantum.

        The level counts as entered at the moment when the wait reached `starve`.
        """
        starve = self.options.starve
        while self.waits and next(iter(self.waits.values())) + starve <= now:
            name, since_s = self.waits.popitem(last=False)
            turn = self.turns[name]
            if turn.level or turn.entered_s > since_s + starve:
                self.turns[name] = _Turn(0, since_s + starve)
                for queue in (self.waiting, self.evicted):
                    if name in queue:
                        rerank(queue, name, self.rank)

    def commit(self, plan: Plan, now: float) -> None:
        took_s = now - self.proposed_s
        if any(work.num_tokens > 1 for work in plan.work):
            self.seconds_per_token = took_s / plan.num_tokens
        for name in plan.sequences:
            if name not in self.running:
                continue  # it was aborted meanwhile
            turn = self.turns[name]
            turn.used_s += took_s
            if turn.used_s >= self._quantum(turn.level):
                self.turns[name] = _Turn(min(turn.level + 1, self.options.levels - 1), now)
                rerank(self.running, name, self.rank)

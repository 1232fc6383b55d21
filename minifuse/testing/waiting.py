"""Tracks which sequences wait and run, and checks a policy's proposals against them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import product

from minifuse.batching.policy import QueuePolicy
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Proposal, Reason
from minifuse.core.request import Phase, Sequence
from minifuse.serve.assembly import Choices
from minifuse.stages import stage

ROUNDING = 1e-9  # tolerance for levels of priority (closer requests may go in either order) and seconds
CODE = re.compile(r"[a-z]+(-[a-z]+)*")


class WaitingBooks:
    """Checks the laws "queue", "together", "window" and "reasons".

    docs/laws.md says what each law demands. The order of the queue is computed here only from requests and the time.
    The level of a request is its priority, plus its waiting time divided by `ageing`.

    A policy that computes prompts `apart`, in iterations of their own, has two queues: waiting prompts, and computed
    prompts that have not joined the batch. The first prompt of such an iteration must be the head of the first queue;
    the policy is free to choose the others. Computed prompts join the batch in order, or with `compose=random` in any
    order among equal priorities. If the batch has running sequences, no prompt joins it before a waiting prompt of
    higher priority. A prompt that another worker still computes cannot join.
    """

    def __init__(self, choices: Choices) -> None:
        options = vars(choices.options["batching"])
        self.ordered = "order" in options
        self.by_priority = options.get("order") == "priority"
        self.ageing: float | None = options.get("ageing")
        self.window: float | None = options.get("window")
        self.apart = options.get("unify") is False
        self.drawn = options.get("compose") == "random"
        self.max_tokens: int | None = options.get("max_tokens")
        self.prompt_tokens: int | None = options.get("prompt_tokens")
        policy = stage("batching", choices.row.batching)
        self.together: bool = policy.starts_together
        self.decouples: bool = policy.apart
        self.newest_first = self.ordered and getattr(policy, "victims", None) is QueuePolicy.victims
        self.arrived: list[str] = []  # every sequence that was ever received
        self.waiting: dict[str, Sequence] = {}
        self.ready: dict[str, Sequence] = {}  # only if prompts are computed apart: computed or evicted
        self.running: dict[str, Sequence] = {}
        self.num_plans = 0  # plans with work, proposed and not completed
        self.idle_since = 0.0  # the time from which on nothing runs
        self._unexplained: str | None = None  # describes a wait without reasons; reported once the wait ends

    def receive(self, sequence: Sequence) -> None:
        """Record that the policy has received a sequence."""
        self._check_explained()
        self.arrived.append(sequence.id)
        self.waiting[sequence.id] = sequence

    def release(self, sequence: Sequence, now: float) -> None:
        """Record that the policy has been told of the end of a sequence."""
        for books in (self.waiting, self.ready, self.running):
            books.pop(sequence.id, None)
        self.idle_since = now

    def commit(self, now: float) -> None:
        """Record that the policy has been told of a completed plan."""
        self.num_plans -= 1
        self.idle_since = now

    @property
    def idle(self) -> bool:
        return not self.running and not self.num_plans

    def propose(self, proposal: Proposal, now: float) -> None:
        """Record a proposal; raise `LawBroken` if the proposal breaks one of the laws."""
        self._check_reasons(proposal)
        self._check_window(now)
        if not proposal.work:
            return
        self._check_explained()
        self._check_threshold(proposal)
        self._check_apart(proposal)
        self.num_plans += 1
        for evicted in proposal.evict:
            (self.ready if self.decouples else self.waiting)[evicted.id] = self.running.pop(evicted.id, evicted)
        staying = list(self.running.values())
        apart = self.decouples and proposal.phase is Phase.PREPROCESSING
        names = {} if apart else dict.fromkeys(work.sequence for work in proposal.work)
        joining = [self.ready.pop(name) for name in names if name in self.ready]
        self.running |= {sequence.id: sequence for sequence in joining}
        for newcomer in proposal.admit:
            (self.ready if apart else self.running)[newcomer.id] = self.waiting.pop(newcomer.id, newcomer)
        for evicted in proposal.evict if self.ordered else ():
            if all(self._precedes(evicted, other, now) for other in self.running.values()):
                raise LawBroken("queue", f"{evicted.id} was evicted, and it precedes all others that run")
        for evicted, other in product(proposal.evict if self.newest_first else (), staying):
            if self._precedes(evicted, other, now):
                raise LawBroken("queue", f"{evicted.id} was evicted, and {other.id}, which it precedes, runs on")
        chosen: Iterable[Sequence] = proposal.admit[:1] if apart else joining if self.decouples else proposal.admit
        computed = {name: one for name, one in self.ready.items() if one.phase is not Phase.PREPROCESSING}
        others = self.waiting if apart or not self.decouples else computed
        any_order = self.drawn and not apart
        for newcomer, other in product(chosen if self.ordered else (), others.values()):
            if self._precedes(other, newcomer, now, any_order):
                raise LawBroken("queue", f"{newcomer.id} was admitted at {now}, and {other.id} precedes it")
        for newcomer, other in product(joining if self.decouples and staying else (), self.waiting.values()):
            if self.by_priority and self._level(other, now) > self._level(newcomer, now) + ROUNDING:
                raise LawBroken("queue", f"{newcomer.id} joined at {now}, and {other.id} has a higher priority")
        self._check_together(proposal)

    def _check_together(self, proposal: Proposal) -> None:
        groups = {newcomer.request.group for newcomer in proposal.admit if self.together} - {None}
        for other in self.waiting.values():
            if other.request.group in groups:
                raise LawBroken("together", f"{other.id} was left behind when the others of its request were admitted")

    def _check_reasons(self, proposal: Proposal) -> None:
        admitted = {sequence.id for sequence in proposal.admit}
        known = (self.waiting.keys() | self.ready.keys() | self.running.keys()) - admitted
        for reason in proposal.reasons:
            if not isinstance(reason, Reason) or not CODE.fullmatch(reason.code) or " " not in reason.text.strip():
                raise LawBroken("reasons", f"{reason!r} is no reason: give a code, the sequence and a sentence")
            if reason.sequence not in known:
                raise LawBroken("reasons", f"{reason!r} is of a sequence that has ended, or is admitted here")
        if not proposal.work and not proposal.reasons and (self.waiting or self.ready) and self.idle:
            self._unexplained = f"{sorted(self.waiting | self.ready)} wait, nothing runs, and there is no reason"
            if proposal.wake_at is None:
                self._check_explained()

    def _check_explained(self) -> None:
        if self._unexplained is not None:
            raise LawBroken("reasons", self._unexplained)

    def _check_threshold(self, proposal: Proposal) -> None:
        """Check the tokens of the iteration that each newcomer joins.

        There are fewer than `max_tokens`. Newcomers' prompts, unless one joins alone, have at most `prompt_tokens`. The
        work of newcomers comes last, in the order in which they join.
        """
        admitted = {sequence.id for sequence in proposal.admit}
        tokens, prompts = 0, list[int]()
        for name, own in _tokens(proposal).items():
            if name in admitted:
                prompts += [own] if own > 1 else []
                if self.max_tokens is not None and tokens >= self.max_tokens:
                    raise LawBroken("budget", f"{name} joined an iteration of {tokens} tokens")
            tokens += own
        if self.prompt_tokens is not None and len(prompts) > 1 and sum(prompts) > self.prompt_tokens:
            raise LawBroken("budget", f"newcomers with prompts of {prompts} tokens joined one iteration")

    def _check_apart(self, proposal: Proposal) -> None:
        counts = _tokens(proposal)
        single = [name for name, count in counts.items() if count == 1]
        if self.apart and single and len(single) < len(counts):
            raise LawBroken("together", f"{single[0]} computes a single token beside prompts, and unify is off")

    def _check_window(self, now: float) -> None:
        if self.window is None or not self.idle or not self.waiting:
            return
        oldest = min(sequence.request.arrival_s for sequence in self.waiting.values())
        closes = max(self.idle_since, oldest + self.window)
        if now > closes + ROUNDING:
            raise LawBroken("window", f"nothing is proposed at {now:.9g} s: the oldest window closed at {closes:.9g} s")

    def _precedes(self, one: Sequence, two: Sequence, now: float, any_order: bool = False) -> bool:
        """Return whether `one` precedes `two`: by level if priorities count and differ, otherwise by arrival.

        Args:
            any_order: whether arrival does not count.
        """
        if self.by_priority and one.request.priority != two.request.priority:
            difference = self._level(one, now) - self._level(two, now)
            return difference > (0 if self.ageing is None else ROUNDING)
        return not any_order and self.arrived.index(one.id) < self.arrived.index(two.id)

    def _level(self, sequence: Sequence, now: float) -> float:
        request = sequence.request
        return request.priority + (0 if self.ageing is None else (now - request.arrival_s) / self.ageing)


def _tokens(proposal: Proposal) -> Counter[str]:
    """Count the tokens of each sequence in a proposal, in the order of its work."""
    counts: Counter[str] = Counter()
    for work in proposal.work:
        counts[work.sequence] += work.num_tokens
    return counts

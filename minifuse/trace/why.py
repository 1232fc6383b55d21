"""Gives a reason for each waiting request for which the policy gave no reason.

A policy names the first request that it could not admit and stops there: an iteration's host work must not grow with
the queue. The other requests get their reason here: during the run from an observer of the loop, if `Settings.why` asks
for it; or afterwards from the trace of any run (`minifuse.trace.waits`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from minifuse.core.plan import TRANSFORMER, Proposal, Reason, Work
from minifuse.core.request import Phase
from minifuse.core.requests import Observer, Requests
from minifuse.io.parsing import number

WAITING = (Phase.RECEIVED, Phase.READY, Phase.SUSPENDED)
Told = tuple[str, str, str]  # code, request, text: a `Reason`, also as a trace has it


class Choice(NamedTuple):
    """What was chosen to run while others wait; empty in a pause.

    >>> Choice(0, (), {"transformer": 12}).passed_over((), "b")
    ('not-in-batch', 'not admitted: worker 0 runs 12 tokens without it')
    """

    worker: int | None = None
    evicted: Collection[str] = ()
    batch: Mapping[str, int] = {}

    def passed_over(self, reasons: Iterable[Told], waiting: Collection[str]) -> tuple[str, str]:
        """Return the code and text of the reason for requests that the policy passed over.

        The policy stopped at the last waiting request for which it gave a reason. A request that the policy
        evicts does not count, because it begins to wait only now.

        | code | when |
        |---|---|
        | behind | the policy stopped at a waiting request |
        | evicting | the policy gave no reason, and evicts requests |
        | not-in-batch | the policy gave no reason, and others run |
        | no-reason | the policy gave no reason, and nothing runs |
        """
        if named := [name for _, name, _ in reasons if name in waiting and name not in self.evicted]:
            admits = "none is admitted" if self.worker is None else f"worker {self.worker} admits none"
            return "behind", f"not considered: {admits} behind {named[-1]}"
        if self.evicted:
            return "evicting", f"not admitted: worker {self.worker} evicts {', '.join(self.evicted)}"
        if self.batch:
            counts = ", ".join(_counted(count, cell) for cell, count in self.batch.items())
            return "not-in-batch", f"not admitted: worker {self.worker} runs {counts} without it"
        return "no-reason", "not admitted: nothing was proposed, and no reason was given"


class Accounting(Observer):
    """Adds a reason for each waiting sequence without one; the cost grows with the queue."""

    def proposed(self, worker: int | None, proposal: Proposal, requests: Requests) -> Proposal:
        if worker is not None and not proposal.work:
            return proposal
        joining = {sequence.id for sequence in proposal.admit} | {work.sequence for work in proposal.work}
        waiting = dict.fromkeys(
            one.id for one in requests.sequences.values() if one.phase in WAITING and one.id not in joining
        )
        choice = Choice(worker, [sequence.id for sequence in proposal.evict], _amounts(proposal.work))
        code, text = choice.passed_over(proposal.reasons, waiting)
        given = {reason.sequence for reason in proposal.reasons}
        others = tuple(Reason(code, name, text) for name in waiting if name not in given)
        return replace(proposal, reasons=proposal.reasons + others) if others else proposal


def told_by_policy(reasons: tuple[Told, ...], choice: Choice, waiting: Collection[str]) -> tuple[Told, ...]:
    """Return a policy's own reasons in a trace, without those that `Accounting` added.

    >>> full, behind = ("batch-full", "b", "..."), "not considered: worker 0 admits none behind b"
    >>> told_by_policy((full, ("behind", "c", behind), ("behind", "d", behind)), Choice(0), "bcd")
    (('batch-full', 'b', '...'),)
    """
    if not reasons:
        return reasons
    code, _, text = reasons[-1]
    count = len(reasons)
    while count and reasons[count - 1][::2] == (code, text):
        count -= 1
    own = reasons[:count]
    return own if choice.passed_over(own, waiting) == (code, text) else reasons


def _amounts(works: Iterable[Work]) -> Counter[str]:
    """Count the tokens computed, or the nodes of each type of cell."""
    found: Counter[str] = Counter()
    for work in works:
        found[work.cell] += work.num_tokens
    return found


def _counted(count: int, cell: str) -> str:
    """Return a text such as `12 tokens` or `64 nodes of encoder`."""
    return number(count, "token") if cell == TRANSFORMER else f"{number(count, 'node')} of {cell}"

"""Why each waiting request was not admitted: the reasons that a policy gave, and one for every other that waits.

A policy names the first that it could not admit and stops there: an iteration's host work must not grow with the queue.
For a run that is to tell of each of them (`Settings.why`), the others are accounted for here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from minifuse.plan import Proposal, Reason
from minifuse.request import Phase, Sequence
from minifuse.work import TRANSFORMER

__all__ = ["account_for"]

WAITING = (Phase.RECEIVED, Phase.READY, Phase.SUSPENDED)


def account_for(proposal: Proposal, worker: int, sequences: Iterable[Sequence]) -> Proposal:
    """The proposal with a reason for each of the `sequences` that waits and that it does not admit.

    A reason that the policy gave stays. For the others:

    | code | when |
    |---|---|
    | behind | the policy stopped at a waiting sequence, the last that it gave a reason for |
    | evicting | it gave none, and the proposal evicts |
    | not-in-batch | it gave none, and there is work |
    | no-reason | it gave none, and proposes nothing |
    """
    joining = {sequence.id for sequence in proposal.admit} | {work.sequence for work in proposal.work}
    waiting = {one.id: one for one in sequences if one.phase in WAITING and one.id not in joining}
    given = {reason.sequence for reason in proposal.reasons}
    # What is evicted by this very proposal has a reason, and waits only from now on: the policy did not stop at it.
    stopped_at = next((reason.sequence for reason in reversed(proposal.reasons) if reason.sequence in waiting), None)
    code, text = _passed_over(proposal, worker, stopped_at)
    others = tuple(Reason(code, name, text) for name in waiting if name not in given)
    return replace(proposal, reasons=proposal.reasons + others) if others else proposal


def _passed_over(proposal: Proposal, worker: int, stopped_at: str | None) -> tuple[str, str]:
    """The code and the text of the reason of a sequence for which the policy gave none."""
    if stopped_at is not None:
        return "behind", f"not considered: worker {worker} admits none behind {stopped_at}"
    if proposal.evict:
        return "evicting", f"not admitted: worker {worker} evicts {', '.join(s.id for s in proposal.evict)}"
    if proposal.work:
        return "not-in-batch", f"not admitted: worker {worker} runs {', '.join(_batch(proposal))} without it"
    return "no-reason", f"not admitted: the policy proposed nothing for worker {worker}, without a reason"


def _batch(proposal: Proposal) -> Iterator[str]:
    """What a batch computes: `12 tokens`, or by type of cell, `64 nodes of encoder`."""
    counts: dict[str, int] = {}
    for work in proposal.work:
        counts[work.cell] = counts.get(work.cell, 0) + work.num_tokens
    for cell, count in counts.items():
        noun = f"node{'s' * (count != 1)} of {cell}" if cell != TRANSFORMER else f"token{'s' * (count != 1)}"
        yield f"{count} {noun}"

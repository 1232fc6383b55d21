"""Records what the laws know of an observed run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from minifuse.core.plan import Plan, Proposal
from minifuse.core.report import KVUsage, StepReport
from minifuse.core.request import FinishReason, Request, Sequence
from minifuse.testing.subject import Case, Tokens
from minifuse.trace.log import Event, Trace


@dataclass
class Observation:
    """Records what one run did, up to its end or to the first broken law."""

    case: Case
    trace: Trace
    tokens: Tokens
    submitted_s: dict[int, float]  # when each step was decided
    steps: list[StepReport] = field(default_factory=list)
    answers: dict[str, Sequence] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)  # when each request finished, or was aborted
    handed: list[Event] = field(default_factory=list)  # every event, as `Trace(into=...)` hands it on
    costs: dict[int, float] = field(default_factory=dict)  # seconds of each plan on a device of its own
    usage_at_end: KVUsage | None = None
    arrived_s: dict[str, float] = field(default_factory=dict)  # when the policy received each request
    proposals: list[Proposed] = field(default_factory=list)
    usages: list[KVUsage] = field(default_factory=list)  # of memory, after each proposal
    plans: dict[int, Plan] = field(default_factory=dict)  # in the order in which they were submitted
    happened: list[tuple[float, Plan | StepReport]] = field(default_factory=list)  # plans submitted, steps completed
    room_at_end: int = 0  # how many one-token sequences memory would admit after all requests have ended
    room_at_start: int = 0

    def never_arrived(self, request: Request) -> bool:
        """Return whether a request was aborted before the policy received it."""
        ended = self.answers.get(request.id)
        aborted = ended is not None and ended.finish_reason is FinishReason.ABORTED
        return aborted and request.id not in self.arrived_s

    def until(self, count: int) -> Observation:
        """Return the run cut off after its first `count` plans and their proposals."""
        plans = dict(islice(self.plans.items(), count))
        with_work = [i for i, one in enumerate(self.proposals) if one.proposal is not None and one.proposal.work]
        last = with_work[: sum(bool(plan.work) for plan in plans.values())][-1:]
        return replace(self, plans=plans, proposals=self.proposals[: last[0] + 1 if last else 0])


class Proposed(NamedTuple):
    """Records what a policy proposed for a worker at one moment.

    A proposal with work becomes a plan, unless memory cannot place it.
    """

    now: float
    worker: int
    proposal: Proposal | None = None  # None: the policy raised an error, or did not return

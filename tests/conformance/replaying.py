"""A real run replayed in virtual time: the same completion times and tokens, taken from its trace's steps."""

from __future__ import annotations

from collections.abc import Iterable

from minifuse.core.clock import VirtualClock
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Plan
from minifuse.core.report import Ran, StepReport
from minifuse.core.request import FinishReason, Sequence
from minifuse.execute import VirtualExecutor


class ReplayExecutor(VirtualExecutor):
    """Completes step n when, and with the tokens with which, step n of the recorded run completed.

    Raises `LawBroken("same in simulation", ...)` as soon as a plan differs from the recorded one.
    """

    def __init__(self, clock: VirtualClock, steps: Iterable[StepReport]) -> None:
        super().__init__(clock, cost=lambda plan: 0.0)
        self.recorded = {step.plan.step: step for step in steps}

    def submit(self, plan: Plan, sequences: dict[str, Sequence], now: float) -> None:
        step = self.recorded.get(plan.step)
        if step is None or step.plan != plan:
            raise LawBroken("same in simulation", f"the run decided {step and step.plan}, its simulation {plan}")
        failed = tuple(name for name, reason in step.finished.items() if reason is FinishReason.NAN)
        ran = Ran(step.tokens, step.measured, not_finite=failed)
        self._push(plan, lambda: ran, step.ended_s)

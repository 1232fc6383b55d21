"""Plans that are issued to a device, and waited for until they are computed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import pytest
from helpers import plan_of_a, sequences_of_a, seven

from minifuse.core.clock import RealClock
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.execute import RealExecutor


class _Device:
    """Plans issued to it are computed when the test says so, and never make the issuing thread wait."""

    def __init__(self) -> None:
        self.issued: list[int] = []
        self.computed = {step: threading.Event() for step in range(4)}

    def issue(self, plan: Plan, sequences: dict[str, Sequence]) -> Callable[[], Ran]:
        self.issued.append(plan.step)
        if plan.step == 3:
            raise RuntimeError("the device is lost")

        def ran() -> Ran:
            assert self.computed[plan.step].wait(60)
            return Ran({"a": (plan.step,)})

        return ran


def test_issued_plans_are_waited_for_in_order() -> None:
    device = _Device()
    executor = RealExecutor(seven, RealClock(), depth=3, issue=device.issue)
    for step in range(3):
        executor.submit(plan_of_a(step), sequences_of_a(), 0.0)
    deadline = time.monotonic() + 10
    while len(device.issued) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert device.issued == [0, 1, 2]  # all of them, though nothing is computed yet
    device.computed[1].set()
    assert executor.wait(RealClock().now()) == []  # the second is computed: the first, before it, is not
    device.computed[0].set()
    tokens: list[Mapping[str, tuple[int, ...]]] = []
    while len(tokens) < 2:
        tokens += [completion.ran.tokens for completion in executor.wait(None)]
    assert tokens == [{"a": (0,)}, {"a": (1,)}]
    device.computed[2].set()
    assert [completion.ran.tokens for completion in executor.wait(None)] == [{"a": (2,)}]
    executor.submit(plan_of_a(3), sequences_of_a(), 0.0)
    with pytest.raises(RuntimeError, match="the device is lost"):
        executor.wait(None)
    executor.close()

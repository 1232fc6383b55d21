"""The executor of virtual time: plans end in the order of their costs, on devices of their own or on one."""

from __future__ import annotations

import pytest
from helpers import asks, plan_of_a, sequences_of_a, seven
from hypothesis import given
from hypothesis import strategies as st

from minifuse.core.clock import VirtualClock
from minifuse.core.plan import Extent, Plan, Work
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.execute import VirtualExecutor
from minifuse.execute.virtual import placeholder_tokens


def test_virtual_completions_come_in_the_order_of_their_ends() -> None:
    clock = VirtualClock()
    seconds = {0: 3.0, 1: 1.0, 2: 2.0, 3: 1.0}
    executor = VirtualExecutor(clock, lambda plan: seconds[plan.step], seven)
    for step in (0, 2, 3, 1):
        executor.submit(plan_of_a(step, worker=step), sequences_of_a(), 10.0)
    assert [(c.plan.step, c.ended_s, c.ran.tokens) for c in executor.wait(None)] == [
        (1, 11.0, {"a": (7,)}),
        (3, 11.0, {"a": (7,)}),
    ]
    assert clock.now() == 11.0
    assert executor.wait(11.5) == []
    assert clock.now() == 11.5
    assert [c.plan.step for c in executor.wait(12.0)] == [2]  # an end at the very time counts
    assert [c.plan.step for c in executor.wait(99.0)] == [0]
    assert clock.now() == 13.0
    assert executor.wait(20.0) == []
    assert clock.now() == 20.0


def test_a_worker_runs_its_plans_in_order_in_virtual_time() -> None:
    """Worker 0 has plans of 3, 1 and 2 s, worker 1 one of 5 s: a queued plan waits for its own worker alone."""
    clock = VirtualClock()
    seconds = {0: 3.0, 1: 1.0, 2: 5.0, 3: 2.0}
    executor = VirtualExecutor(clock, lambda plan: seconds[plan.step], seven)
    for step, worker in ((0, 0), (1, 0), (2, 1), (3, 0)):
        executor.submit(plan_of_a(step, worker), sequences_of_a(), 0.0)
    ended = [(c.plan.step, c.ended_s) for _ in range(4) for c in executor.wait(None)]
    assert ended == [(0, 3.0), (1, 4.0), (2, 5.0), (3, 6.0)]


def test_a_plan_submitted_between_two_does_not_overtake_the_one_that_is_queued() -> None:
    clock = VirtualClock()
    executor = VirtualExecutor(clock, lambda plan: 1.0, seven)
    executor.submit(plan_of_a(0), sequences_of_a(), 0.0)
    executor.submit(plan_of_a(1), sequences_of_a(), 0.0)
    assert [c.plan.step for c in executor.wait(None)] == [0]
    executor.submit(plan_of_a(2), sequences_of_a(), 1.0)  # before the executor is waited on again
    assert [[(c.plan.step, c.ended_s) for c in executor.wait(None)] for _ in range(2)] == [[(1, 2.0)], [(2, 3.0)]]


def test_the_host_prepares_one_plan_at_a_time_while_devices_compute() -> None:
    """Merging takes 3, 2 and 4 s on the host, and computing 5 s. Plan 1 is ready at 5, and its worker free at 8.

    Plan 2, on a worker of its own, waits for the host alone: it is ready at 9.
    """
    merging = {0: 3.0, 1: 2.0, 2: 4.0}
    executor = VirtualExecutor(VirtualClock(), lambda plan: 5.0, seven, host=lambda plan: merging[plan.step])
    for step, worker in ((0, 0), (1, 0), (2, 1)):
        executor.submit(plan_of_a(step, worker), sequences_of_a(), 0.0)
    assert executor.wait(3.5) == []
    ended = [(c.plan.step, c.ended_s) for _ in range(3) for c in executor.wait(None)]
    assert ended == [(0, 8.0), (1, 13.0), (2, 14.0)]


@pytest.mark.parametrize("shared", [False, True])
def test_a_plan_begins_no_earlier_than_the_host_has_prepared_it(shared: bool) -> None:
    executor = VirtualExecutor(VirtualClock(), lambda plan: 1.0, seven, host=lambda plan: 2.0, shared=shared)
    executor.submit(plan_of_a(0), sequences_of_a(), 10.0)
    assert executor.wait(12.0) == []
    assert executor.wait(12.5) == []
    assert [c.ended_s for c in executor.wait(None)] == [13.0]
    executor.submit(plan_of_a(1), sequences_of_a(), 20.0)  # the host was idle in between
    assert [c.ended_s for c in executor.wait(None)] == [23.0]


def test_workers_that_share_a_device_share_its_time() -> None:
    """Two plans of 4 s, the second begun at 2 s: 2 s alone, then both at half speed, then the rest of the second."""
    executor = VirtualExecutor(VirtualClock(), lambda plan: 4.0, seven, shared=True)
    executor.submit(plan_of_a(0, 0), sequences_of_a(), 0.0)
    assert executor.wait(2.0) == []
    executor.submit(plan_of_a(1, 1), sequences_of_a(), 2.0)
    assert executor.wait(5.0) == []
    assert [(c.plan.step, c.ended_s) for c in executor.wait(None)] == [(0, 6.0)]
    assert [(c.plan.step, c.ended_s) for c in executor.wait(99.0)] == [(1, 8.0)]
    executor.submit(plan_of_a(2, 0), sequences_of_a(), 10.0)  # after a pause, alone
    assert [(c.plan.step, c.ended_s) for c in executor.wait(None)] == [(2, 14.0)]


def test_workers_together_may_be_faster_than_one() -> None:
    """The first is done 2 s after both run at 1.6 / 2 of the speed; the second has 2 s left then, and is alone."""
    executor = VirtualExecutor(VirtualClock(), lambda plan: 4.0, seven, shared=True, together=1.6)
    executor.submit(plan_of_a(0, 0), sequences_of_a(), 0.0)
    assert executor.wait(2.0) == []
    executor.submit(plan_of_a(1, 1), sequences_of_a(), 2.0)
    ends = [completion.ended_s for _ in range(2) for completion in executor.wait(None)]
    assert ends == pytest.approx([4.5, 6.5])


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 5)), min_size=1, max_size=6))
def test_a_shared_device_is_always_busy_and_shared_equally(plans: list[tuple[float, float]]) -> None:
    """Against a count in small steps of time."""
    begins, costs = [begin for begin, _ in sorted(plans)], [cost for _, cost in sorted(plans)]
    executor = VirtualExecutor(VirtualClock(), lambda plan: costs[plan.step], seven, shared=True)
    ends: dict[int, float] = {}
    for step, begin in enumerate(begins):
        while done := executor.wait(begin):
            ends |= {c.plan.step: c.ended_s for c in done}
        executor.submit(plan_of_a(step, step), sequences_of_a(), begin)
    while len(ends) < len(plans):
        ends |= {c.plan.step: c.ended_s for c in executor.wait(None)}
    left, now, small = dict(enumerate(costs)), 0.0, 0.01
    counted: dict[int, float] = {}
    while left:
        running = [step for step in left if begins[step] <= now]
        for step in running:
            left[step] -= small / len(running)
            if left[step] <= 0:
                counted[step] = now + small
                del left[step]
        now += small
    assert ends == pytest.approx(counted, abs=0.2)


def test_placeholders_are_for_sequences_whose_last_token_is_computed() -> None:
    sequences = {name: Sequence(asks(name, 3, 2)) for name in "ab"}
    plan = Plan(0, 0, (Work("a", 0, 2), Work("b", 0, 3)), (Extent(0, 4), Extent(4, 4)))
    assert placeholder_tokens(plan, sequences) == Ran({"b": (-1,)})

"""Executors: in real time with one worker or several, and in virtual time."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import pytest
from helpers import asks
from hypothesis import given
from hypothesis import strategies as st

from minifuse.clock import RealClock, VirtualClock
from minifuse.execute import RealExecutor, VirtualExecutor
from minifuse.execute.virtual import placeholder_tokens
from minifuse.place import Extent
from minifuse.plan import Plan
from minifuse.report import Ran
from minifuse.request import Sequence
from minifuse.work import Work


def _plan(step: int, worker: int = 0) -> Plan:
    return Plan(step, worker, (Work("a", 0, 2),), (Extent(0, 4),))


def _sequences() -> dict[str, Sequence]:
    return {"a": Sequence(asks("a", 2, 3))}


def _seven(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
    return Ran({"a": (7,)})


class _FakeClock:
    """A real clock as a test can have it: every reading is a second later."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        self.time += 1.0
        return self.time

    def sleep_until(self, when: float) -> None:
        self.slept.append(when)


# --- virtual time


def test_virtual_completions_come_in_the_order_of_their_ends() -> None:
    clock = VirtualClock()
    seconds = {0: 3.0, 1: 1.0, 2: 2.0, 3: 1.0}
    executor = VirtualExecutor(clock, lambda plan: seconds[plan.step], _seven)
    for step in (0, 2, 3, 1):
        executor.submit(_plan(step, worker=step), _sequences(), 10.0)
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
    executor = VirtualExecutor(clock, lambda plan: seconds[plan.step], _seven)
    for step, worker in ((0, 0), (1, 0), (2, 1), (3, 0)):
        executor.submit(_plan(step, worker), _sequences(), 0.0)
    ended = [(c.plan.step, c.ended_s) for _ in range(4) for c in executor.wait(None)]
    assert ended == [(0, 3.0), (1, 4.0), (2, 5.0), (3, 6.0)]


def test_a_plan_submitted_between_two_does_not_overtake_the_one_that_is_queued() -> None:
    clock = VirtualClock()
    executor = VirtualExecutor(clock, lambda plan: 1.0, _seven)
    executor.submit(_plan(0), _sequences(), 0.0)
    executor.submit(_plan(1), _sequences(), 0.0)
    assert [c.plan.step for c in executor.wait(None)] == [0]
    executor.submit(_plan(2), _sequences(), 1.0)  # before the executor is waited on again
    assert [[(c.plan.step, c.ended_s) for c in executor.wait(None)] for _ in range(2)] == [[(1, 2.0)], [(2, 3.0)]]


def test_workers_that_share_a_device_share_its_time() -> None:
    """Two plans of 4 s, the second begun at 2 s: 2 s alone, then both at half speed, then the rest of the second."""
    executor = VirtualExecutor(VirtualClock(), lambda plan: 4.0, _seven, shared=True)
    executor.submit(_plan(0, 0), _sequences(), 0.0)
    assert executor.wait(2.0) == []
    executor.submit(_plan(1, 1), _sequences(), 2.0)
    assert executor.wait(5.0) == []
    assert [(c.plan.step, c.ended_s) for c in executor.wait(None)] == [(0, 6.0)]
    assert [(c.plan.step, c.ended_s) for c in executor.wait(99.0)] == [(1, 8.0)]
    executor.submit(_plan(2, 0), _sequences(), 10.0)  # after a pause, alone
    assert [(c.plan.step, c.ended_s) for c in executor.wait(None)] == [(2, 14.0)]


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 5)), min_size=1, max_size=6))
def test_a_shared_device_is_always_busy_and_shared_equally(plans: list[tuple[float, float]]) -> None:
    """Against a count in small steps of time."""
    begins, costs = [begin for begin, _ in sorted(plans)], [cost for _, cost in sorted(plans)]
    executor = VirtualExecutor(VirtualClock(), lambda plan: costs[plan.step], _seven, shared=True)
    ends: dict[int, float] = {}
    for step, begin in enumerate(begins):
        while done := executor.wait(begin):
            ends |= {c.plan.step: c.ended_s for c in done}
        executor.submit(_plan(step, step), _sequences(), begin)
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


def test_placeholders_are_for_those_whose_last_token_is_computed() -> None:
    sequences = {name: Sequence(asks(name, 3, 2)) for name in "ab"}
    plan = Plan(0, 0, (Work("a", 0, 2), Work("b", 0, 3)), (Extent(0, 4), Extent(4, 4)))
    assert placeholder_tokens(plan, sequences) == Ran({"b": (-1,)})


# --- real time


def test_one_worker_runs_when_waited_for() -> None:
    clock = _FakeClock()
    executor = RealExecutor(_seven, clock)
    executor.submit(_plan(0), _sequences(), 0.0)
    (completion,) = executor.wait(None)
    assert (completion.plan.step, completion.ran.tokens, completion.ended_s) == (0, {"a": (7,)}, 1.0)
    assert executor.wait(5.0) == []
    assert clock.slept == [5.0]
    executor.close()


def test_one_workers_error_is_raised_by_wait() -> None:
    def broken(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        raise ValueError("broken")

    executor = RealExecutor(broken, _FakeClock())
    executor.submit(_plan(0), _sequences(), 0.0)
    with pytest.raises(ValueError, match="broken"):
        executor.wait(None)


def test_several_workers_do_not_wait_for_each_other() -> None:
    gate = threading.Event()

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        if plan.worker == 0:
            assert gate.wait(60)
        return Ran({"a": (plan.worker,)})

    executor = RealExecutor(run, RealClock(), workers=2)
    try:
        executor.submit(_plan(0, 0), _sequences(), 0.0)
        executor.submit(_plan(1, 1), _sequences(), 0.0)
        assert [(c.plan.step, c.ran.tokens) for c in executor.wait(None)] == [(1, {"a": (1,)})]
        assert executor.wait(0.0) == []  # the time has passed; worker 0 still runs
        gate.set()
        assert [(c.plan.step, c.ran.tokens) for c in executor.wait(None)] == [(0, {"a": (0,)})]
    finally:
        gate.set()
        executor.close()


def test_a_time_that_has_passed_comes_before_what_ended_after_it() -> None:
    """As in virtual time: an arrival at 0 s is received before what is seen to end later."""
    executor = RealExecutor(_seven, RealClock(), workers=2)
    executor.submit(_plan(0), _sequences(), 0.0)
    assert executor.wait(0.0) == []
    (completion,) = executor.wait(None)
    assert completion.plan.step == 0
    assert executor.wait(0.0) == []  # and it is told once
    executor.close()


def test_the_first_worker_never_waits_for_the_others() -> None:
    """Four prompts take both threads; the main stream goes on beside them."""
    gate = threading.Event()

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        assert plan.worker == 0 or gate.wait(60)
        return Ran({"a": (plan.worker,)})

    executor = RealExecutor(run, RealClock(), workers=5, threads=2)
    try:
        for worker in (1, 2, 3, 4, 0):
            executor.submit(_plan(worker, worker), _sequences(), 0.0)
        assert [c.plan.worker for c in executor.wait(None)] == [0]
    finally:
        gate.set()
        executor.close()


def test_what_ended_before_a_time_that_has_passed_is_told_first() -> None:
    executor = RealExecutor(_seven, clock := RealClock(), workers=2)
    executor.submit(_plan(0), _sequences(), 0.0)
    executor.submit(_plan(1, 1), _sequences(), 0.0)
    while executor._ended.qsize() < 2:
        time.sleep(0.001)
    now = clock.now()
    told = executor.wait(now)
    assert sorted(c.plan.step for c in told) == [0, 1]
    assert len({c.ended_s for c in told}) == 1  # one event
    assert told[0].ended_s <= now
    executor.close()


def test_no_more_plans_at_once_than_threads() -> None:
    running, most, lock = [0], [0], threading.Lock()

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.01)
        with lock:
            running[0] -= 1
        return Ran({})

    executor = RealExecutor(run, RealClock(), workers=6, threads=2)
    for step in range(6):
        executor.submit(_plan(step, step + 1), _sequences(), 0.0)
    steps: list[int] = []
    while len(steps) < 6:
        steps += [c.plan.step for c in executor.wait(None)]
    executor.close()
    assert sorted(steps) == [*range(6)]
    assert most == [2]


def test_an_idle_pool_sleeps_until_the_next_event() -> None:
    clock = _FakeClock()
    executor = RealExecutor(_seven, clock, workers=2)
    assert executor.wait(9.0) == []
    assert clock.slept == [9.0]
    executor.close()


def test_an_error_in_a_thread_is_raised_by_wait() -> None:
    def broken(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        raise ValueError("broken")

    executor = RealExecutor(broken, RealClock(), workers=2)
    executor.submit(_plan(0), _sequences(), 0.0)
    with pytest.raises(ValueError, match="broken"):
        executor.wait(None)
    executor.close()


def test_close_waits_for_what_runs() -> None:
    gate, ended = threading.Event(), []

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        assert gate.wait(60)
        ended.append(plan.step)
        return Ran({})

    executor = RealExecutor(run, RealClock(), workers=2)
    executor.submit(_plan(0, 0), _sequences(), 0.0)
    threading.Timer(0.05, gate.set).start()
    executor.close()
    assert ended == [0]
    with pytest.raises(RuntimeError):
        executor.submit(_plan(1, 1), _sequences(), 0.0)


def test_one_workers_plans_run_in_order_one_at_each_wait() -> None:
    ran: list[int] = []

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        ran.append(plan.step)
        return Ran({"a": (1,)})

    executor = RealExecutor(run, RealClock(), depth=3)
    for step in range(3):
        executor.submit(_plan(step), _sequences(), 0.0)
    assert ran == []
    for step in range(3):
        (completion,) = executor.wait(None)
        assert (completion.plan.step, ran) == (step, list(range(step + 1)))
    executor.close()


def test_workers_with_several_plans_run_each_theirs_in_order() -> None:
    ran: list[tuple[int, int]] = []
    first = threading.Event()

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        if plan.step == 0:
            first.wait(10)  # worker 0 is slow; its second plan must wait for it, worker 1's must not
        ran.append((plan.worker, plan.step))
        if plan.step == 3:
            first.set()
        return Ran({})

    executor = RealExecutor(run, RealClock(), 2, depth=2)
    for step, worker in ((0, 0), (1, 0), (2, 1), (3, 1)):
        executor.submit(_plan(step, worker), _sequences(), 0.0)
    done: list[int] = []
    while len(done) < 4:
        done += [completion.plan.step for completion in executor.wait(None)]
    executor.close()
    assert ran[:2] == [(1, 2), (1, 3)]
    assert [step for worker, step in ran if worker == 0] == [0, 1]


class _Device:
    """Plans issued to it are ready when the test says so, and never make the issuing thread wait."""

    def __init__(self) -> None:
        self.issued: list[int] = []
        self.computed = {step: threading.Event() for step in range(4)}

    def issue(self, plan: Plan, sequences: dict[str, Sequence]) -> _OnItsWay:
        self.issued.append(plan.step)
        if plan.step == 3:
            raise RuntimeError("the device is lost")
        return _OnItsWay(self.computed[plan.step], plan.step)


class _OnItsWay:
    def __init__(self, computed: threading.Event, step: int) -> None:
        self.ready = computed.is_set
        self.step = step

    def ran(self) -> Ran:
        return Ran({"a": (self.step,)})


def test_issued_plans_are_polled_for_in_order_without_waiting_for_any() -> None:
    device = _Device()
    executor = RealExecutor(_seven, RealClock(), depth=3, issue=device.issue)
    for step in range(3):
        executor.submit(_plan(step), _sequences(), 0.0)
    deadline = time.monotonic() + 10
    while len(device.issued) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert device.issued == [0, 1, 2]  # all of them, though nothing is computed yet
    device.computed[1].set()
    assert executor.wait(RealClock().now()) == []  # the second is ready: the first, before it, is not
    device.computed[0].set()
    tokens: list[Mapping[str, tuple[int, ...]]] = []
    while len(tokens) < 2:
        tokens += [completion.ran.tokens for completion in executor.wait(None)]
    assert tokens == [{"a": (0,)}, {"a": (1,)}]
    device.computed[2].set()
    assert [completion.ran.tokens for completion in executor.wait(None)] == [{"a": (2,)}]
    executor.submit(_plan(3), _sequences(), 0.0)
    with pytest.raises(RuntimeError, match="the device is lost"):
        executor.wait(None)
    executor.close()

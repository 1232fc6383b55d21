"""The executor of real time: one worker in the caller's thread, several in threads, plans in order."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest
from helpers import plan_of_a, sequences_of_a, seven

from minifuse.core.clock import RealClock
from minifuse.core.plan import Move, Plan
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.execute import RealExecutor
from minifuse.execute.real import _Ended


class _FakeClock:
    """A real clock for tests: every reading is a second later."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 1.0
        return self.time


def test_one_worker_runs_its_plan_in_wait() -> None:
    clock = _FakeClock()
    executor = RealExecutor(seven, clock)
    executor.submit(plan_of_a(0), sequences_of_a(), 0.0)
    (completion,) = executor.wait(None)
    assert (completion.plan.step, completion.ran.tokens, completion.ended_s) == (0, {"a": (7,)}, 1.0)
    assert executor.wait(0.0) == []
    executor.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_by_wait(workers: int) -> None:
    def broken(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        raise ValueError("broken")

    executor = RealExecutor(broken, RealClock(), workers)
    executor.submit(plan_of_a(0), sequences_of_a(), 0.0)
    with pytest.raises(ValueError, match="broken"):
        executor.wait(None)
    executor.close()


def test_several_workers_do_not_wait_for_each_other() -> None:
    gate = threading.Event()

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        if plan.worker == 0:
            assert gate.wait(60)
        return Ran({"a": (plan.worker,)})

    executor = RealExecutor(run, RealClock(), workers=2)
    try:
        executor.submit(plan_of_a(0, 0), sequences_of_a(), 0.0)
        executor.submit(plan_of_a(1, 1), sequences_of_a(), 0.0)
        assert [(c.plan.step, c.ran.tokens) for c in executor.wait(None)] == [(1, {"a": (1,)})]
        assert executor.wait(0.0) == []  # the time has passed; worker 0 still runs
        gate.set()
        assert [(c.plan.step, c.ran.tokens) for c in executor.wait(None)] == [(0, {"a": (0,)})]
    finally:
        gate.set()
        executor.close()


def test_a_time_that_has_passed_comes_before_plans_that_ended_after_it() -> None:
    """As in virtual time: an arrival at 0 s is received before plans that end later."""
    clock = RealClock()
    executor = RealExecutor(seven, clock, workers=2)
    executor.submit(plan_of_a(0), sequences_of_a(), clock.now())
    assert executor.wait(0.0) == []
    (completion,) = executor.wait(None)
    assert completion.plan.step == 0
    assert executor.wait(0.0) == []  # and it is reported once
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
            executor.submit(plan_of_a(worker, worker), sequences_of_a(), 0.0)
        assert [c.plan.worker for c in executor.wait(None)] == [0]
    finally:
        gate.set()
        executor.close()


def test_plans_that_ended_before_a_time_that_has_passed_come_first() -> None:
    executor = RealExecutor(seven, clock := RealClock(), workers=2)
    executor.submit(plan_of_a(0), sequences_of_a(), 0.0)
    executor.submit(plan_of_a(1, 1), sequences_of_a(), 0.0)
    while len(executor._ended) < 2:
        time.sleep(0.001)
    now = clock.now()
    ended = executor.wait(now)
    assert sorted(c.plan.step for c in ended) == [0, 1]
    assert len({c.ended_s for c in ended}) == 1  # one event
    assert ended[0].ended_s <= now
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
        executor.submit(plan_of_a(step, step + 1), sequences_of_a(), 0.0)
    steps: list[int] = []
    while len(steps) < 6:
        steps += [c.plan.step for c in executor.wait(None)]
    executor.close()
    assert sorted(steps) == [*range(6)]
    assert most == [2]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_idle_executor_sleeps_until_the_next_event_or_until_it_is_woken(workers: int) -> None:
    clock = RealClock()
    executor = RealExecutor(seven, clock, workers)
    assert executor.wait(0.05) == []
    assert clock.now() >= 0.05
    threading.Timer(0.02, executor.wake).start()
    assert executor.wait(1e6) == []
    executor.wake()
    assert executor.wait(None) == []  # it was woken before it slept
    executor.close()


def test_close_waits_for_running_plans() -> None:
    gate, ended = threading.Event(), []

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        assert gate.wait(60)
        ended.append(plan.step)
        return Ran({})

    executor = RealExecutor(run, RealClock(), workers=2)
    executor.submit(plan_of_a(0, 0), sequences_of_a(), 0.0)
    threading.Timer(0.05, gate.set).start()
    executor.close()
    assert ended == [0]
    with pytest.raises(RuntimeError):
        executor.submit(plan_of_a(1, 1), sequences_of_a(), 0.0)


def test_one_worker_runs_one_plan_at_each_wait_in_order() -> None:
    ran: list[int] = []

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        ran.append(plan.step)
        return Ran({"a": (1,)})

    executor = RealExecutor(run, RealClock(), depth=3)
    for step in range(3):
        executor.submit(plan_of_a(step), sequences_of_a(), 0.0)
    assert ran == []
    for step in range(3):
        (completion,) = executor.wait(None)
        assert (completion.plan.step, ran) == (step, list(range(step + 1)))
    executor.close()


def test_each_worker_runs_its_plans_in_order() -> None:
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
        executor.submit(plan_of_a(step, worker), sequences_of_a(), 0.0)
    done: list[int] = []
    while len(done) < 4:
        done += [completion.plan.step for completion in executor.wait(None)]
    executor.close()
    assert ran[:2] == [(1, 2), (1, 3)]
    assert [step for worker, step in ran if worker == 0] == [0, 1]


def _moves(step: int) -> Plan:
    """A plan of moves alone."""
    return Plan(step, 1, (), (), moves=(Move("swap_out", 0, 0, 1, target_tier="host", moment="behind"),))


class _Landing:
    """Moves behind everything that land when the test says so."""

    def __init__(self) -> None:
        self.futures: dict[int, Future[Ran]] = {}

    def __call__(self, plan: Plan) -> Future[Ran]:
        self.futures[plan.step] = Future()
        return self.futures[plan.step]

    def land(self, step: int) -> None:
        self.futures[step].set_result(Ran({}))


def test_moves_alone_do_not_keep_the_only_worker_from_its_plans() -> None:
    behind = _Landing()
    executor = RealExecutor(seven, _FakeClock(), behind=behind)
    executor.submit(_moves(0), {}, 0.0)
    for step in (1, 2):
        executor.submit(plan_of_a(step), sequences_of_a(), 0.0)
        assert [c.plan.step for c in executor.wait(None)] == [step]
    behind.land(0)
    (landed,) = executor.wait(None)
    assert (landed.plan.step, landed.ran) == (0, Ran({}))
    executor.close()


def test_what_lands_while_a_plan_is_computed_is_one_event_with_its_end() -> None:
    behind = _Landing()

    def run(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        behind.land(0)
        return Ran({"a": (7,)})

    executor = RealExecutor(run, _FakeClock(), behind=behind)
    executor.submit(_moves(0), {}, 0.0)
    executor.submit(plan_of_a(1), sequences_of_a(), 0.0)
    assert [(c.plan.step, c.ended_s) for c in executor.wait(None)] == [(0, 2.0), (1, 2.0)]  # the time of the last
    executor.close()


def test_waiting_for_a_landing_ends_at_the_time_limit() -> None:
    behind = _Landing()
    executor = RealExecutor(seven, clock := RealClock(), behind=behind)
    executor.submit(_moves(0), {}, 0.0)
    assert executor.wait(clock.now() + 0.01) == []
    behind.land(0)
    assert [c.plan.step for c in executor.wait(None)] == [0]
    executor.close()


def test_an_error_of_a_move_behind_everything_is_raised_by_wait() -> None:
    behind = _Landing()
    executor = RealExecutor(seven, RealClock(), behind=behind)
    executor.submit(_moves(0), {}, 0.0)
    behind.futures[0].set_exception(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        executor.wait(None)
    executor.close()


def test_without_anything_to_begin_moves_behind_they_are_run_as_plans() -> None:
    executor = RealExecutor(lambda plan, sequences: Ran({}), RealClock())
    executor.submit(_moves(0), {}, 0.0)
    assert [c.plan.step for c in executor.wait(None)] == [0]


def test_a_plan_that_is_noted_late_is_an_event_of_its_own() -> None:
    """It ended before the last event, which was reported first: at one time a replay would take the two for one."""
    executor = RealExecutor(seven, _FakeClock(), workers=2)
    executor.submit(plan_of_a(0), sequences_of_a(), 0.0)
    (first,) = executor.wait(None)
    executor._ended.append(_Ended(plan_of_a(1), lambda: Ran({}), first.ended_s / 2))
    (second,) = executor.wait(None)
    assert first.ended_s < second.ended_s < first.ended_s + 1e-9
    executor.close()

"""Concurrent model instances: a worker for each request, in virtual time and in threads."""

from __future__ import annotations

import threading
from dataclasses import replace

from helpers import answers_of, asks, expected_answers, make_engine, run_all, schedule

from minifuse.core.clock import RealClock
from minifuse.core.plan import Plan
from minifuse.core.report import Ran
from minifuse.core.request import Sequence
from minifuse.execute import RealExecutor


def test_each_request_has_a_worker_from_its_arrival_to_its_end() -> None:
    steps = run_all(make_engine("instances"), [asks("a", 2, 3), asks("b", 3, 2, at=0.5), asks("c", 1, 1, at=3.2)])
    assert {(work.sequence, step.plan.worker) for step in steps for work in step.plan.work} == {
        ("a", 0),
        ("b", 1),
        ("c", 0),
    }
    assert schedule(sorted(steps, key=lambda step: step.plan.step)) == [
        "0: a[0:2)",
        "0.5: b[0:3)",
        "1: a[2:3)",
        "1.5: b[3:4)",
        "2: a[3:4)",
        "3.2: c[0:1)",
    ]


def test_the_prompts_of_a_request_share_an_instance() -> None:
    engine = make_engine("instances")
    engine.submit(*[asks(f"g/{i}", 2, 1 + i, group="g") for i in range(3)])
    engine.submit(asks("a", 2, 1))
    steps = sorted(engine.run(), key=lambda step: step.plan.step)
    assert [(step.plan.worker, sorted(work.sequence for work in step.plan.work)) for step in steps] == [
        (0, ["g/0", "g/1", "g/2"]),
        (1, ["a"]),
        (0, ["g/1", "g/2"]),
        (0, ["g/2"]),
    ]


def test_a_request_waits_for_a_free_instance() -> None:
    steps = run_all(make_engine("instances", settings={"batching.instances": 2}), [asks(n, 2, 2) for n in "abc"])
    reasons = {reason for step in steps for reason in step.plan.reasons}
    assert {(reason.code, reason.sequence) for reason in reasons} == {("batch-full", "c")}
    assert {reason.text for reason in reasons} == {"not admitted: all 2 instances are serving"}
    started = {work.sequence: step.started_s for step in reversed(steps) for work in step.plan.work}
    assert started == {"a": 0.0, "b": 0.0, "c": 2.0}


def test_an_instance_is_taken_until_the_plan_of_an_aborted_request_has_ended() -> None:
    """Plans of worker 0 take 5 s; its request is aborted after 1 s, when worker 1 proposes its next plan."""
    engine = make_engine("instances", settings={"batching.instances": 2}, cost=lambda plan: 1.0 if plan.worker else 5.0)
    for name in "abc":
        engine.submit(asks(name, 2, 4))
    steps = engine.turn()
    engine.abort("a")
    steps += list(engine.run())
    started = {work.sequence: step.started_s for step in reversed(steps) for work in step.plan.work}
    assert started == {"a": 0.0, "b": 0.0, "c": 4.0}  # when b has ended: its worker is free before the other
    told = [(step.started_s, reason.code) for step in steps for reason in step.plan.reasons if reason.sequence == "c"]
    assert told == [(at, "batch-full") for at in (1.0, 2.0, 3.0)]


def test_instances_in_threads_give_the_oracles_tokens() -> None:
    """The first plans of three instances meet at a barrier, so they really run at the same time."""
    engine = make_engine("instances", model="llama")
    compute, barrier = engine.executor._run, threading.Barrier(3)  # type: ignore[attr-defined]

    def meet(plan: Plan, sequences: dict[str, Sequence]) -> Ran:
        if plan.step < 3:
            barrier.wait(timeout=60)
        ran: Ran = compute(plan, sequences)
        return ran

    clock = RealClock()
    engine = replace(engine, clock=clock, executor=RealExecutor(meet, clock, engine.batching.workers))
    requests = [replace(asks(f"r{i}", 1 + i, 3 + i), arrival_s=0.0) for i in range(3)]
    try:
        steps = run_all(engine, requests)
    finally:
        engine.executor.close()
    assert answers_of(engine) == expected_answers("llama", requests)
    assert {step.plan.worker for step in steps} == {0, 1, 2}

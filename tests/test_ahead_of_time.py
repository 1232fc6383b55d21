"""Ahead-of-time swap-out through the unchanged loop: when a toy memory's copies run and land, second by second."""

from __future__ import annotations

from dataclasses import replace

from ahead_of_time import AheadOfTime
from conformance.replaying import ReplayExecutor
from helpers import CROWD, answers_of, asks, expected_answers, make_engine, make_real_engine, run_all

from minifuse.attention.layouts import PagedStage
from minifuse.core.clock import VirtualClock
from minifuse.execute.link import Link
from minifuse.serve.engine import ServingEngine
from minifuse.trace.log import decisions
from minifuse.trace.metrics import compute_metrics

TIGHT = 16  # slots: two or three of the crowd at once


def _engine(memory: AheadOfTime, seconds_per_token: float) -> ServingEngine:
    """Every step takes 1 s."""
    link = Link(256, 256 / seconds_per_token, num_layers=2)
    return make_engine("vllm", model="llama", memory=memory, link=link)


def test_what_has_landed_is_evicted_for_free_and_comes_back_layer_by_layer() -> None:
    engine = _engine(AheadOfTime(TIGHT), 0.05)
    steps = run_all(engine, CROWD)
    assert answers_of(engine) == expected_answers("llama", CROWD)
    plans = [step.plan for step in steps]
    alone = [plan for plan in plans if not plan.work]
    assert {move.moment for plan in alone for move in plan.moves} == {"behind"}
    assert {plan.worker for plan in alone} == {1}
    beside = [move for plan in plans if plan.work for move in plan.moves]
    assert {(move.kind, move.moment) for move in beside} == {("swap_in", "before")}
    metrics = compute_metrics(engine.trace.events())
    evictions = metrics["evictions"]
    assert evictions >= 3
    assert metrics["tokens"]["recomputed"] <= 2 * evictions  # what was computed last has not landed, the rest has
    assert metrics["moves"]["swap_in"]["tokens"] >= 4 * evictions
    carried = metrics["transfers"]
    assert carried["to_device"]["bytes"] == 256 * metrics["moves"]["swap_in"]["tokens"]
    assert carried["to_host"]["bytes"] == 256 * metrics["moves"]["swap_out"]["tokens"]
    assert 0 < carried["exposed_s"] < carried["to_device"]["seconds"]  # the first of two layers, hardly more
    assert carried["hidden_s"] > carried["to_host"]["seconds"]


def test_the_run_ends_when_everything_has_landed() -> None:
    """The only request has ended while tokens are still on their way; its blocks are free when these are there."""
    memory = AheadOfTime(TIGHT)
    engine = _engine(memory, 0.7)
    *_, last = run_all(engine, [asks("a", 3, 4)])
    assert not last.plan.work
    assert not engine.in_flight
    assert memory.usage()[:4] == (0, 0, TIGHT, 0)
    memory.check_integrity()
    assert len(memory.free) == memory.num_blocks


def test_in_real_time_and_replayed() -> None:
    memory = AheadOfTime(TIGHT)
    engine = make_real_engine("vllm", model="llama", memory=memory)
    requests = [asks(f"r{i}", 1 + 3 * i % 7, 2 + i % 5) for i in range(9)]
    steps = run_all(engine, requests)
    engine.executor.close()
    assert answers_of(engine) == expected_answers("llama", requests)
    assert any(not step.plan.work for step in steps)
    assert memory.usage()[:4] == (0, 0, TIGHT, 0)
    memory.check_integrity()
    virtual = VirtualClock()
    again = make_engine("vllm", memory=AheadOfTime(TIGHT), attention=PagedStage())
    again = replace(again, executor=ReplayExecutor(virtual, steps), clock=virtual)
    assert [step.plan for step in run_all(again, requests)] == [step.plan for step in steps]
    assert decisions(again.trace.events()) == decisions(engine.trace.events())

"""Ahead-of-time swap-out through the unchanged loop: a toy memory under all laws, in virtual and in real time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ahead_of_time import AheadOfTime, _Room
from conformance.defects.harness import Defect, caught
from helpers import CROWD, answers_of, asks, expected_answers, make_engine, make_real_engine, run_all

from minifuse.attention.layouts import PagedStage
from minifuse.clock import VirtualClock
from minifuse.engine import Engine
from minifuse.execute.link import Link
from minifuse.metrics import compute_metrics
from minifuse.plan import Move, Plan
from minifuse.stages import register
from minifuse.techniques import mix, technique
from minifuse.testing import TEXTS, capacity, put_through
from minifuse.testing.capacity import count_slots
from minifuse.testing.replay import ReplayExecutor
from minifuse.trace import decisions

TIGHT = 16  # slots: two or three of the crowd at once


@pytest.fixture
def row(own_register: None) -> Any:
    """The technique, while the memory is registered."""
    register(AheadOfTime)
    count_slots("ahead_of_time")(capacity._COUNTS["paged"])
    return mix(technique("vllm"), batching="prefill_first", memory="ahead_of_time", attention="paged")


def test_all_laws_hold(row: Any) -> None:
    put_through(TEXTS, row, examples=4, derandomize=True)


def _lands_at_once(patch: pytest.MonkeyPatch) -> None:
    """The link tells that moves have landed when they have just begun."""
    behind = Link.behind

    def early(self: Link, plan: Plan, now: float) -> None:
        behind(self, plan, now)
        self._queue.clear()
        self._landing.append((now, plan))

    patch.setattr(Link, "behind", early)


def _counts_what_has_begun(patch: pytest.MonkeyPatch) -> None:
    """Memory takes for landed what is still on its way."""
    ahead = AheadOfTime.ahead

    def trusting(self: AheadOfTime, now: float) -> tuple[Move, ...]:
        moves = ahead(self, now)
        for kept in self.kept.values():
            kept.landed = max(kept.landed, kept.begun)
        return moves

    patch.setattr(AheadOfTime, "ahead", trusting)


def _gives_blocks_out_while_they_are_copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AheadOfTime, "_give_back", lambda self, block: self.free.append(block))
    patch.setattr(_Room, "evict", lambda self, sequence: setattr(self, "free", self.free + self.held.pop(sequence.id)))


def _copies_what_is_not_computed_yet(patch: pytest.MonkeyPatch) -> None:
    """A token of the plan that has just been submitted is copied while it is being computed."""
    ahead = AheadOfTime.ahead

    def greedy(self: AheadOfTime, now: float) -> tuple[Move, ...]:
        for kept in self.kept.values():
            kept.cached += bool(kept.device) and kept.cached < len(kept.device) * self.size
        moves = ahead(self, now)
        for kept in self.kept.values():
            kept.cached -= bool(kept.device) and kept.begun == kept.cached
        return moves

    patch.setattr(AheadOfTime, "ahead", greedy)


@pytest.mark.parametrize(
    ("defect", "law", "kind", "size"),
    [
        (_lands_at_once, "counting", "growing", 2),
        (_counts_what_has_begun, "conservation", "growing", 5),
        (_gives_blocks_out_while_they_are_copied, "conservation", "growing", 2),
        (_copies_what_is_not_computed_yet, "conservation", "growing", 2),
    ],
)
def test_what_goes_wrong_behind_everything_is_caught(
    row: Any,
    monkeypatch: pytest.MonkeyPatch,
    defect: Callable[[pytest.MonkeyPatch], None],
    law: str,
    kind: str,
    size: int,
) -> None:
    defect(monkeypatch)
    options = {"memory.block_size": size}
    broken = caught(Defect(lambda patch: None, TEXTS, row.name, (law,), "of_one_run", (kind,), options), row)
    assert broken is not None
    assert broken.law == law, broken


def _engine(memory: AheadOfTime, seconds_per_token: float) -> Engine:
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
    again.executor, again.clock = ReplayExecutor(virtual, steps), virtual
    assert [step.plan for step in run_all(again, requests)] == [step.plan for step in steps]
    assert decisions(again.trace.events()) == decisions(engine.trace.events())

"""What an admission costs is paid once an iteration: what a policy has settled in memory's trial is what is placed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from graphs import Scene, lstm
from helpers import asks, make_engine, unit

from minifuse.attention.cell_layouts import CellsStage, PaddedCellsStage
from minifuse.batching import Cellular, GraphMerged, GraphPadded, Rebatch
from minifuse.core.errors import LawBroken
from minifuse.core.plan import Placement, Proposal, Work
from minifuse.core.request import Sequence
from minifuse.memory import ChainRows, Contiguous, States
from minifuse.memory.trial import Trial
from minifuse.serve.engine import ServingEngine
from minifuse.stages import Memory

BATCH = {"batching.max_batch": 4}
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {  # memory -> a technique with it, and options
    "recompute": ("naive", {}),
    "contiguous": ("orca", BATCH),
    "contiguous, instances": ("instances", {"batching.instances": 3}),
    "padded": ("static", BATCH),
    "slots": ("fusion", {"memory.slots": 4}),
    "shaped": ("baton", BATCH),
    "embedded": ("baton-pd", BATCH),
    "paged": ("vllm", BATCH | {"memory.block_size": 2, "memory.share": True}),
    "paged, displacing": ("vllm", BATCH | {"memory.block_size": 2, "memory.preemption": "swap"}),
    "tiered": ("pensieve", BATCH | {"memory.chunk": 2, "memory.share": True}),
    "waves": ("fluid", {"memory.block_size": 2}),
}
GRAPHS: dict[str, Callable[[], tuple[Any, Any, Any]]] = {
    "states": lambda: (GraphMerged(), States(40), CellsStage()),
    "states, cellular": lambda: (Cellular(), States(40), CellsStage()),
    "rows": lambda: (GraphPadded(), ChainRows(40), PaddedCellsStage()),
}


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _subclasses(sub)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sequence of every call of the formula of an admission."""
    calls: list[str] = []

    def counting(take: Callable[..., Any]) -> Callable[..., Any]:
        def counted(self: Trial, sequence: Sequence, growing: bool) -> Any:
            calls.append(sequence.id)
            return take(self, sequence, growing)

        return counted

    for cls in _subclasses(Trial):
        if "take" in vars(cls):
            monkeypatch.setattr(cls, "take", counting(vars(cls)["take"]))
    return calls


def _admitted_once(engine: ServingEngine, taken: list[str]) -> int:
    """Run the engine, and compare. Returns how many were admitted."""
    propose, place = engine.batching.propose, engine.memory.place
    admitted = 0

    def proposed(worker: int, now: float, memory: Memory) -> Proposal:
        taken.clear()
        return propose(worker, now, memory)

    def placed(proposal: Proposal, now: float) -> Placement:
        nonlocal admitted
        before = Counter(taken)
        placement = place(proposal, now)
        assert Counter(taken) == before, "place computes an admission again"
        assert all(before[sequence.id] == 1 for sequence in proposal.admit), before
        admitted += len(proposal.admit)
        return placement

    engine.batching.propose, engine.memory.place = proposed, placed  # type: ignore[method-assign]
    for _ in engine.run():
        pass
    return admitted


@pytest.mark.parametrize("name", TEXTS)
def test_an_admission_is_computed_once_an_iteration(name: str, taken: list[str]) -> None:
    technique, options = TEXTS[name]
    engine = make_engine(technique, capacity=64, settings=options)
    for i in range(12):
        engine.submit(asks(f"r{i}", 3 + i % 5, 2 + i % 4, at=float(i // 4), ignore_eos=True))
    assert _admitted_once(engine, taken) >= 12


@pytest.mark.parametrize("name", GRAPHS)
def test_an_admission_of_a_graph_is_computed_once(name: str, taken: list[str]) -> None:
    scene = Scene(*GRAPHS[name](), {f"r{i}": (lstm(2 + i % 3), 0.0) for i in range(6)}, cost=unit)
    assert _admitted_once(scene.engine, taken) == 6


def test_newcomers_that_displace_others_are_tried_at_most_twice(taken: list[str]) -> None:
    """Once as each asks, and once in the order in which all are placed: not once for each that is displaced."""
    policy = Rebatch(Rebatch.Options(max_batch=8, order="priority"))
    engine = make_engine("vllm", capacity=400, batching=policy, settings={"memory.preemption": "swap"})
    for i in range(8):
        engine.submit(asks(f"low{i}", 3, 9, ignore_eos=True))
    for i in range(8):
        engine.submit(asks(f"high{i}", 3, 2, priority=5, at=1.5, ignore_eos=True))
    for report in engine.run():
        if report.plan.evicted:
            break
        taken.clear()
    assert len(report.plan.evicted) == len(report.plan.admitted) == 8
    assert Counter(taken) == dict.fromkeys(report.plan.admitted, 2)


def test_what_was_not_tried_is_tried_as_it_is_placed_and_refused_if_it_does_not_fit() -> None:
    memory = Contiguous(10)
    a, b = Sequence(asks("a", 4, 3)), Sequence(asks("b", 3, 3))
    with pytest.raises(LawBroken, match="budget: the proposal does not fit: b not admitted: needs 5 KV tokens"):
        memory.place(Proposal((Work("a", 0, 4), Work("b", 0, 3)), (a, b)), 0.0)
    assert memory.usage().reserved == 0
    memory.place(Proposal((Work("a", 0, 4),), (a,)), 0.0)
    assert memory.usage().reserved == 6


def test_a_trial_of_something_else_is_not_placed() -> None:
    """A room in which others were admitted, or in another order, tells nothing of this proposal."""
    memory = Contiguous(20)
    a, b = Sequence(asks("a", 4, 3)), Sequence(asks("b", 3, 3))
    room = memory.room()
    for sequence in (b, a):
        assert room.admit(sequence) is None
    work = (Work("a", 0, 4), Work("b", 0, 3))
    places = memory.place(Proposal(work, (a, b), room=room), 0.0).places
    assert [place.offset for place in places] == [0, 6]  # type: ignore[union-attr]
    memory.check_integrity()

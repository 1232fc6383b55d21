"""Plans in flight: how many a worker takes, which sequences may be scheduled again, and whose memory waits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from graphs import lstm, sequence_of, work_of
from helpers import asks

from minifuse.contracts.lawful import check_sequences
from minifuse.core.errors import LawBroken
from minifuse.core.in_flight import InFlight
from minifuse.core.plan import Extent, Plan, Proposal, Work
from minifuse.core.request import Phase, Sequence

A, B, GRAPH = Sequence(asks("a")), Sequence(asks("b")), sequence_of("g", lstm(4))
SEQUENCES = {sequence.id: sequence for sequence in (A, B, GRAPH)}
for sequence in SEQUENCES.values():
    sequence.phase = Phase.RUNNING


def launch(in_flight: InFlight, plan: Plan, now: float) -> None:
    in_flight.launch(plan, plan.sequences, now)


def decode(step: int, *names: str, worker: int = 0) -> Plan:
    return Plan(step, worker, tuple(Work(name, 1, 2) for name in names), (Extent(0, 9),) * len(names))


def check(in_flight: InFlight, worker: int, proposal: Proposal, sequences: dict[str, Sequence] = SEQUENCES) -> None:
    check_sequences(worker, proposal, SimpleNamespace(in_flight=in_flight, sequences=sequences))  # type: ignore[arg-type]


def refused(in_flight: InFlight, worker: int, proposal: Proposal) -> str:
    with pytest.raises(LawBroken) as broken:
        check(in_flight, worker, proposal)
    assert broken.value.law == "conservation"
    return str(broken.value)


def test_a_worker_has_room_for_as_many_plans_as_its_depth() -> None:
    in_flight = InFlight(workers=2, depth=2)
    assert not in_flight
    plans = [decode(0, "a"), decode(1, "a")]
    for plan in plans:
        assert in_flight.has_room(0)
        launch(in_flight, plan, 0.0)
    assert in_flight
    assert (in_flight.has_room(0), in_flight.has_room(1)) == (False, True)
    in_flight.land(plans[0], 1.0)
    assert in_flight.has_room(0)


def test_a_plan_begins_when_its_worker_has_ended_the_last_one() -> None:
    in_flight = InFlight(workers=2, depth=2)
    first, second, beside = decode(0, "a"), decode(1, "a"), decode(2, "b", worker=1)
    for plan in (first, second, beside):
        launch(in_flight, plan, 0.5)
    assert in_flight.land(first, 3.0)[0] == 0.5
    assert in_flight.land(beside, 4.0)[0] == 0.5
    assert in_flight.land(second, 5.0)[0] == 3.0
    late = decode(3, "a")
    launch(in_flight, late, 9.0)
    assert in_flight.land(late, 10.0)[0] == 9.0  # the worker was idle in between


def test_a_sequence_is_not_scheduled_again_while_its_plan_runs() -> None:
    in_flight = InFlight(workers=2, depth=1)
    launch(in_flight, plan := decode(0, "a"), 0.0)
    again = Proposal((Work("b", 1, 2), Work("a", 2, 3)))
    for worker in (0, 1):
        assert f"worker {worker} was given a" in refused(in_flight, worker, again)
    in_flight.land(plan, 1.0)
    check(in_flight, 1, again)


def test_a_worker_with_several_plans_may_continue_its_own_sequences() -> None:
    """It runs its plans in order, so the second begins where the first has ended; another worker's would not."""
    in_flight = InFlight(workers=2, depth=2)
    launch(in_flight, decode(0, "a"), 0.0)
    again = Proposal((Work("a", 2, 3),))
    check(in_flight, 0, again)
    assert "worker 1 was given a" in refused(in_flight, 1, again)


@pytest.mark.parametrize("depth", [1, 3])
def test_the_nodes_of_one_graph_may_run_on_several_workers(depth: int) -> None:
    in_flight = InFlight(workers=2, depth=depth)
    launch(in_flight, Plan(0, 0, work_of(("g", 0)), ()), 0.0)
    check(in_flight, 1, Proposal(work_of(("g", 1))))


def test_a_sequence_is_not_evicted_while_its_plan_runs() -> None:
    in_flight = InFlight(workers=1, depth=2)
    launch(in_flight, plan := decode(0, "a"), 0.0)
    assert "was to evict a, whose last work is not done" in refused(in_flight, 0, Proposal(evict=(A,)))
    in_flight.land(plan, 1.0)
    check(in_flight, 0, Proposal(evict=(A,)))


def test_memory_waits_for_the_last_plan_that_touches_it() -> None:
    in_flight = InFlight(workers=2, depth=2)
    plans = [decode(0, "a", "b"), decode(1, "a"), Plan(2, 1, work_of(("g", 0)), ())]
    for plan in plans:
        launch(in_flight, plan, 0.0)
    in_flight.leaving["a"] = A
    assert len(in_flight.using("a")) == 2
    assert in_flight.land(plans[0], 1.0)[1] == []
    assert [len(in_flight.using(name)) for name in ("a", "b", "g")] == [1, 0, 1]
    assert in_flight.leaving == {"a": A}
    assert in_flight.land(plans[2], 2.0)[1] == []
    assert in_flight.land(plans[1], 3.0)[1] == [A]
    assert in_flight.leaving == {}


def test_abandoned_plans_hold_no_memory() -> None:
    in_flight = InFlight(workers=1, depth=1)
    launch(in_flight, decode(0, "a", "b"), 0.0)
    in_flight.clear()
    assert not in_flight
    assert in_flight.has_room(0)
    assert in_flight.using("a") == []

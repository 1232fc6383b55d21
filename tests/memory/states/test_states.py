"""Slots for the states of nodes: by hand, and against a model of the nodes held."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

import pytest
from graphs import pair_chain, sequence_of, work_of
from helpers import breach
from hypothesis import given
from hypothesis import strategies as st

from minifuse.core.cell_graph import CellGraph, Node, Output
from minifuse.core.errors import RequestRefused
from minifuse.core.places import State
from minifuse.core.plan import Layout, Placement, Plan, Proposal, Span, Work
from minifuse.core.request import Request, Sequence
from minifuse.memory import States

TREE = CellGraph((Node("leaf", (1,)), Node("leaf", (2,)), Node("internal", (Output(0), Output(1)))))
DIAMOND = CellGraph(
    (Node("a", (1,)), Node("a", (Output(0),)), Node("b", (Output(0),)), Node("b", (Output(1), Output(2))))
)


def plan(step: int, items: tuple[Work, ...], placement: Placement) -> Plan:
    return Plan(step, 0, items, placement.places, layout=Layout(placement.waves))


def test_a_chain_of_three_by_hand() -> None:
    """The example of the docstring: three chains in nine slots, whose second batch reads the first's as one run."""
    memory = States(9)
    chains = [sequence_of(name, pair_chain(3)) for name in "xyz"]
    first = work_of(("x", 0), ("y", 0), ("z", 0))
    placed = memory.place(Proposal(first, tuple(chains)), 0.0)
    assert placed.places == (State((), 0), State((), 1), State((), 2))
    memory.commit(plan(0, first, placed), (), 0.0)
    second = work_of(("x", 1), ("y", 1), ("z", 1))
    placed = memory.place(Proposal(second), 0.0)
    assert placed.places == (State((0, 0), 3), State((1, 1), 4), State((2, 2), 5))
    assert memory.usage().used == 6
    memory.commit(plan(1, second, placed), (), 0.0)
    assert memory.usage()[:4] == (3, 6, 9, 0)
    third = work_of(("x", 2), ("y", 2), ("z", 2))
    assert [place.slot for place in memory.place(Proposal(third), 0.0).places] == [0, 1, 2]
    memory.check_integrity()


def test_waves_of_one_plan_reuse_slots_which_are_free_when_the_plan_has_run() -> None:
    memory = States(4)
    x = sequence_of("x", pair_chain(50))
    items = work_of(*(("x", node) for node in range(50)))
    waves = tuple(Span(i, i + 1) for i in range(50))
    placed = memory.place(Proposal(items, (x,), waves=waves), 0.0)
    slots = [place.slots(0, 1)[0] for place in placed.places]
    assert slots == [0, 1] * 25
    assert placed.waves == waves
    memory.check_integrity()
    assert memory.usage()[:4] == (2, 2, 4, 0)  # the result, and the slot that its own waves passed on
    memory.commit(plan(0, items, placed), (), 0.0)
    assert memory.usage().used == 1
    memory.release(x, 0.0)
    assert memory.usage()[:4] == (0, 0, 4, 0)


def test_a_slot_that_the_waves_are_done_with_is_not_free_until_the_plan_has_run() -> None:
    memory = States(4)
    x, y = sequence_of("x", pair_chain(3)), sequence_of("y", pair_chain(1))
    items = work_of(("x", 0), ("x", 1), ("x", 2))
    memory.place(Proposal(items, (x,), waves=(Span(0, 1), Span(1, 2), Span(2, 3))), 0.0)
    (place,) = memory.place(Proposal(work_of(("y", 0)), (y,)), 0.0).places
    assert place.slots(0, 1)[0] == 2


def test_slots_passed_between_the_waves_of_an_abandoned_plan_are_free() -> None:
    memory = States(9)
    x, y = sequence_of("x", pair_chain(5)), sequence_of("y", pair_chain(5))
    items = work_of(*((name, node) for node in range(5) for name in "xy"))
    memory.place(Proposal(items, (x, y), waves=tuple(Span(2 * i, 2 * i + 2) for i in range(5))), 0.0)
    memory.release(x, 0.0)
    memory.release(y, 0.0)
    memory.check_integrity()
    assert memory.usage()[:4] == (0, 0, 9, 0)


def test_a_plan_of_waves_takes_no_more_than_its_requests_were_promised() -> None:
    """Its third wave needs two slots and has one from the first; it may not take two more, one of which is z's."""
    memory = States(4)
    x, y, z = (
        sequence_of("x", pair_chain(3)),
        sequence_of("y", pair_chain(1)),
        sequence_of("z", pair_chain(1)),
    )
    items = work_of(("x", 0), ("x", 1), ("x", 2), ("y", 0))
    placed = memory.place(Proposal(items, (x, y, z), waves=(Span(0, 1), Span(1, 2), Span(2, 4))), 0.0)
    assert [place.slots(0, 1)[0] for place in placed.places] == [0, 1, 0, 2]
    (place,) = memory.place(Proposal(work_of(("z", 0))), 0.0).places
    assert place.slots(0, 1)[0] == 3


def test_a_batch_is_scattered_when_no_run_is_long_enough() -> None:
    memory = States(4)
    names = "abcd"
    ones = {name: sequence_of(name, pair_chain(1)) for name in names}
    items = work_of(*((name, 0) for name in names))
    placed = memory.place(Proposal(items, tuple(ones.values())), 0.0)
    memory.commit(plan(0, items, placed), (), 0.0)
    for name in "ac":
        memory.release(ones[name], 0.0)
    new = [sequence_of(name, pair_chain(1)) for name in "ef"]
    places = memory.place(Proposal(work_of(("e", 0), ("f", 0)), tuple(new)), 0.0).places
    assert [place.slots(0, 1)[0] for place in places] == [0, 2]
    memory.check_integrity()


def test_promises() -> None:
    """A chain may hold two states at once, a tree twice its leaves, and any other graph all."""
    assert [graph.most_held for graph in (pair_chain(1), pair_chain(9), TREE, DIAMOND)] == [1, 2, 3, 4]
    memory = States(5)
    room = memory.room()
    assert room.admit(sequence_of("x", pair_chain(9))) is None
    assert room.admit(sequence_of("t", TREE)) is None
    full = room.admit(sequence_of("y", pair_chain(9)))
    assert full is not None
    assert full.text == "not admitted: needs 2 slots for its states, and 0 are left"
    assert memory.room().admit(sequence_of("y", pair_chain(9))) is None  # trying out changed nothing


def test_a_sequence_may_exceed_its_promise_only_by_spare_slots() -> None:
    memory = States(5)
    x, y = sequence_of("x", pair_chain(9)), sequence_of("y", pair_chain(9))
    memory.place(Proposal(work_of(("x", 0), ("y", 0)), (x, y)), 0.0)
    room = memory.room()
    assert [room.extend(x) is None for _ in range(3)] == [True, True, False]  # its second slot, the spare one, no more
    assert room.extend(y) is None  # y's own is not touched
    memory.place(Proposal(work_of(("x", 1))), 0.0)
    memory.place(Proposal(work_of(("x", 2))), 0.0)
    assert memory.usage()[:4] == (4, 5, 5, 0)
    assert memory.room().extend(x) is not None
    assert memory.room().extend(y) is None
    memory.check_integrity()


def test_a_graph_that_could_never_be_held_is_refused() -> None:
    memory = States(3)
    memory.receive(sequence_of("t", TREE))
    with pytest.raises(RequestRefused, match=r"Request 'd' may need slots for 4 states at once and memory holds 3"):
        memory.receive(sequence_of("d", DIAMOND))


X, Y = sequence_of("x", pair_chain(3)), sequence_of("y", pair_chain(3))
WAVES = (Span(0, 1), Span(1, 2), Span(2, 3))


@pytest.mark.parametrize(
    ("proposal", "law"),
    [
        (Proposal(work_of(("x", 2))), "ghost"),  # what it reads was never computed
        (Proposal(work_of(("x", 1), ("y", 0), ("y", 2)), (Y,), waves=WAVES), "ghost"),
        (Proposal(work_of(("y", 0), ("y", 1)), (Y,)), "ghost"),  # reads what is computed beside it
        (Proposal(work_of(("x", 1), *[("z", 0)] * 4)), "budget"),
        (Proposal(work_of(("x", 1), ("x", 2), *[("z", 0)] * 9), waves=(Span(0, 1), Span(1, 2), Span(2, 11))), "budget"),
        (Proposal(evict=(X,)), "conservation"),
        (Proposal(work_of(("y", 0)), (Sequence(Request("y", (1,))),)), "layout"),  # a text
    ],
)
def test_a_proposal_that_breaks_a_law_changes_nothing(proposal: Proposal, law: str) -> None:
    memory = States(5)
    memory.place(Proposal(work_of(("x", 0)), (X,)), 0.0)
    memory.place(Proposal(work_of(("z", 0)), (sequence_of("z", pair_chain(1)),)), 0.0)
    before = pickle.dumps(vars(memory))
    with breach(law):
        memory.place(proposal, 0.0)
    assert pickle.dumps(vars(memory)) == before


@dataclass
class Model:
    """The nodes held, in the plainest way: from when a node is placed until all its readers have run."""

    graphs: dict[str, CellGraph] = field(default_factory=dict)
    ran: set[tuple[str, int]] = field(default_factory=set)
    placed: set[tuple[str, int]] = field(default_factory=set)

    def held(self) -> set[tuple[str, int]]:
        return {
            (name, node)
            for name, node in self.placed
            if not self.graphs[name].topology.readers[node]
            or any((name, reader) not in self.ran for reader in self.graphs[name].topology.readers[node])
        }


GRAPHS = st.sampled_from([pair_chain(1), pair_chain(2), pair_chain(5), TREE, DIAMOND])


@given(st.data(), st.lists(GRAPHS, min_size=1, max_size=4), st.integers(4, 12))
def test_against_a_model(data: st.DataObject, graphs: list[CellGraph], capacity: int) -> None:
    """Random batches of ready nodes, several plans in flight, in any order of completion that keeps dependencies."""
    memory, model = States(capacity), Model()
    waiting = {f"r{i}": sequence_of(f"r{i}", graph) for i, graph in enumerate(graphs)}
    model.graphs = dict(zip(waiting, graphs, strict=True))
    live: dict[str, Sequence] = {}
    flying: list[Plan] = []
    for step in range(60):
        room = memory.room()
        admit = []
        for name in list(waiting):
            if room.admit(waiting[name]) is None:
                admit.append(waiting.pop(name))
        live |= {newcomer.id: newcomer for newcomer in admit}
        ready = [
            (name, node)
            for name in live
            for node in range(len(model.graphs[name]))
            if (name, node) not in model.placed
            and all((name, source) in model.placed for source in model.graphs[name].topology.sources[node])
        ]
        chosen = [item for item in ready if data.draw(st.booleans()) and room.extend(live[item[0]]) is None]
        items = work_of(*chosen)
        placed = memory.place(Proposal(items, tuple(admit)), 0.0)
        for (name, node), place in zip(chosen, placed.places, strict=True):
            assert isinstance(place, State)
            assert place.reads == tuple(
                memory.books[name].slots[source] for source in model.graphs[name].topology.reads[node]
            )
        model.placed.update(chosen)
        if items:
            flying.append(plan(step, items, placed))
        memory.check_integrity()
        assert memory.usage().used == len(model.held()) <= memory.usage().reserved <= capacity
        if flying and data.draw(st.booleans()):
            done = flying.pop(0)
            memory.commit(done, (), 0.0)
            model.ran.update((item.sequence, item.start) for item in done.work)
        for name in [name for name in live if all((name, n) in model.ran for n in range(len(model.graphs[name])))]:
            memory.release(live.pop(name), 0.0)
            model.placed -= {item for item in model.placed if item[0] == name}
            model.ran -= {item for item in model.ran if item[0] == name}
    memory.check_integrity()

"""A row for each request of a padded batch."""

from __future__ import annotations

import pytest
from graphs import pair_chain, sequence_of, work_of
from helpers import breach

from minifuse.core.cell_graph import CellGraph, Node, Output
from minifuse.core.errors import LawBroken, RequestRefused
from minifuse.core.places import State
from minifuse.core.plan import Proposal, Span
from minifuse.core.request import Request, Sequence
from minifuse.core.shapes import StateRows
from minifuse.memory import ChainRows


def sequence(name: str, length: int = 2) -> Sequence:
    return sequence_of(name, pair_chain(length))


def test_a_batch_admitted_together_has_adjacent_rows_and_each_sequence_keeps_its_row() -> None:
    memory = ChainRows(9)
    memory.place(Proposal(work_of(("x", 0)), (sequence("x"),)), 0.0)
    items = work_of(("a", 0), ("b", 0), ("a", 1))
    waves = (Span(0, 2), Span(2, 3), Span(3, 3))
    placed = memory.place(Proposal(items, (sequence("a"), sequence("b", 1)), waves=waves), 0.0)
    assert placed.places == (State((), 1), State((), 2), State((1, 1), 1))
    assert placed.shape == StateRows(1, 2, 3)
    assert placed.waves == waves
    assert memory.usage()[:4] == (3, 3, 9, 0)
    memory.check_integrity()


def test_a_plan_for_a_part_of_the_batch_has_no_shape() -> None:
    memory = ChainRows(9)
    batch = (sequence("a"), sequence("b"))
    assert memory.place(Proposal(work_of(("a", 0)), batch, waves=(Span(0, 1),)), 0.0).shape is None
    assert memory.place(Proposal(work_of(("a", 1), ("b", 0)), waves=(Span(0, 2),)), 0.0).shape is None


def test_a_batch_needs_its_rows_side_by_side() -> None:
    memory = ChainRows(3)
    three = [sequence(name) for name in "abc"]
    memory.place(Proposal(work_of(), tuple(three)), 0.0)
    memory.release(three[0], 0.0)
    memory.release(three[2], 0.0)
    room = memory.room()
    assert room.admit(sequence("d")) is None
    full = room.admit(sequence("e"))
    assert full is not None
    assert full.text == "not admitted: a batch has its rows side by side, and the longest free run is 1"
    with pytest.raises(LawBroken, match="budget"):
        memory.place(Proposal((), (sequence("d"), sequence("e"))), 0.0)
    memory.check_integrity()


def test_only_chains_have_room_in_a_row() -> None:
    memory = ChainRows(3)
    memory.receive(sequence("c", 5))
    fork = CellGraph((Node("a", (1,)), Node("a", (Output(0),)), Node("a", (Output(0),))))
    join = CellGraph((Node("a", (1,)), Node("a", (2,)), Node("a", (Output(0), Output(1)))))
    two = CellGraph((Node("a", (1,)), Node("a", (2,))))
    for graph in (fork, join, two):
        with pytest.raises(RequestRefused, match="choose the memory 'states'"):
            memory.receive(sequence_of("g", graph))


@pytest.mark.parametrize(
    ("proposal", "law"),
    [
        (Proposal(evict=(sequence("x"),)), "conservation"),
        (Proposal((), (Sequence(Request("y", (1,))),)), "layout"),
    ],
)
def test_proposals_that_break_a_law(proposal: Proposal, law: str) -> None:
    memory = ChainRows(9)
    memory.place(Proposal((), (sequence("x"),)), 0.0)
    with breach(law):
        memory.place(proposal, 0.0)

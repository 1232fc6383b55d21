"""Contiguous, Padded and Recompute: where extents go, worked out by hand, and books that only change as a whole."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from helpers import asks, breach, make_engine, refusal, run_all

from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.plan import Extent, Layout, Placement, Plan, Proposal, Span, Work
from minifuse.core.report import KVUsage
from minifuse.core.request import Sequence
from minifuse.core.shapes import Rectangle
from minifuse.memory import Contiguous, Padded, Recompute

every_memory = pytest.mark.parametrize("cls", [Contiguous, Padded, Recompute])


def _sequence(name: str, prompt: int, new: int) -> Sequence:
    return Sequence(asks(name, prompt, new))


def _whole(*sequences: Sequence) -> tuple[Work, ...]:
    return tuple(Work(s.id, 0, len(s)) for s in sequences)


def _admit(memory: Contiguous | Padded, *sequences: Sequence) -> Placement:
    return memory.place(Proposal(_whole(*sequences), sequences), 0.0)


def _commit(memory: Contiguous | Padded, placement: Placement, *work: Work, sampled: tuple[str, ...] = ()) -> None:
    memory.commit(Plan(0, 0, work, placement.places, layout=Layout(shape=placement.shape)), sampled, 0.0)


def _books(memory: Contiguous | Padded) -> dict[str, Any]:
    books = copy.deepcopy(vars(memory))
    return {name: vars(value) if name in ("allocator", "books") else value for name, value in books.items()}


# --- where extents go


def test_contiguous_by_hand() -> None:
    """A request with p prompt tokens and up to n new ones needs p + n - 1 slots: the last token is never fed back."""
    memory = Contiguous(20)
    a, b, c, d = (_sequence(*args) for args in (("a", 3, 4), ("b", 5, 1), ("c", 2, 6), ("d", 4, 2)))
    assert _admit(memory, a, b).places == (Extent(0, 6), Extent(6, 5))
    assert _admit(memory, c).places == (Extent(11, 7),)
    assert memory.usage() == KVUsage(0, 18, 20)
    memory.release(b, 0.0)
    assert _admit(memory, d).places == (Extent(6, 5),)
    memory.release(a, 0.0)
    memory.release(d, 0.0)
    assert _admit(memory, _sequence("e", 9, 3)).places == (Extent(0, 11),)  # what a and d left, merged
    memory.check_integrity()


def test_padded_by_hand() -> None:
    """Prompts of 3 and 5, answers up to 4 and 2: two rows of 5 + 3 columns, the prompts' ends in one column."""
    memory = Padded(16)
    a, b = _sequence("a", 3, 4), _sequence("b", 5, 2)
    assert _admit(memory, a, b) == Placement((Extent(2, 6), Extent(8, 6)), Rectangle(0, 2, 8, 0, 5))
    assert memory.usage() == KVUsage(0, 16, 16)
    _commit(memory, Placement((Extent(2, 6), Extent(8, 6))), *_whole(a, b), sampled=("a", "b"))
    assert memory.usage() == KVUsage(10, 16, 16)  # five columns of both rows, the padding too
    step = memory.place(Proposal((Work("a", 3, 4), Work("b", 5, 6))), 0.0)
    assert step.shape == Rectangle(0, 2, 8, 5, 6)
    memory.release(b, 0.0)
    assert memory.usage() == KVUsage(10, 16, 16)  # a finished row keeps its place
    assert memory.place(Proposal((Work("a", 3, 4),)), 0.0).shape == Rectangle(0, 2, 8, 5, 6)
    memory.release(a, 0.0)
    assert memory.usage() == KVUsage(0, 0, 16)
    # The next batch has a rectangle of its own.
    assert _admit(memory, _sequence("c", 2, 2)) == Placement((Extent(0, 3),), Rectangle(0, 1, 3, 0, 2))


def test_recompute_drops_the_kv_of_a_sampled_sequence() -> None:
    memory = Recompute(20)
    a, b = _sequence("a", 3, 4), _sequence("b", 4, 2)
    placement = _admit(memory, a, b)
    assert placement.places == (Extent(0, 6), Extent(6, 5))
    _commit(memory, placement, Work("a", 0, 3), Work("b", 0, 2), sampled=("a",))
    a.tokens.append(1)
    assert memory.missing(a) == (Span(0, 4),)
    assert memory.missing(b) == (Span(2, 4),)  # a prompt in pieces continues where it was
    assert memory.usage().used == 5


# --- what fits


@every_memory
def test_check_refuses_a_request_that_could_never_fit(cls: type[Contiguous | Padded]) -> None:
    memory = cls(10)
    memory.check(asks("fits", 8, 3))
    with refusal(RequestRefused, "'big'", "11 tokens", "holds 10", "--kv-memory"):
        memory.check(asks("big", 8, 4))
    assert memory.usage() == KVUsage(0, 0, 10)


def test_room_of_runs() -> None:
    memory = Contiguous(12)
    a = _sequence("a", 3, 3)
    _admit(memory, a)
    before = _books(memory)
    room = memory.room()
    assert room.admit(_sequence("b", 2, 3)) is None
    reason = room.admit(_sequence("c", 2, 3))
    assert reason is not None
    assert (reason.code, reason.sequence) == ("memory-full", "c")
    assert str(reason) == "c not admitted: needs 4 KV tokens in a row, the longest free run has 3"
    assert room.admit(_sequence("d", 2, 2)) is None  # a refusal took nothing
    assert _books(memory) == before


def test_room_of_a_rectangle() -> None:
    memory = Padded(20)
    room = memory.room()
    assert room.admit(_sequence("a", 3, 3)) is None  # 1 row of 5
    assert room.admit(_sequence("b", 6, 2)) is None  # 2 rows of 6 + 2
    reason = room.admit(_sequence("c", 1, 1))  # 3 rows of 8 exceed 20
    assert reason is not None
    assert (reason.code, str(reason)) == ("memory-full", "c not admitted: 3 rows of 8 KV tokens exceed 20")
    _admit(memory, _sequence("a", 3, 3))
    reason = memory.room().admit(_sequence("d", 1, 1))
    assert reason is not None
    assert (reason.code, str(reason)) == ("batch-closed", "d not admitted: the padded batch still holds 1 request")


# --- the books change as a whole or not at all


@every_memory
def test_place_without_room_changes_nothing(cls: type[Contiguous | Padded]) -> None:
    memory = cls(10)
    fits, big = _sequence("fits", 2, 2), _sequence("big", 8, 2)
    before = _books(memory)
    with breach("budget"):
        _admit(memory, fits, big)
    assert _books(memory) == before
    _admit(memory, fits)
    memory.check_integrity()


# --- check_integrity


def _contiguous() -> Contiguous:
    memory = Contiguous(20)
    _admit(memory, _sequence("a", 3, 4), _sequence("b", 3, 4))
    memory.check_integrity()
    return memory


def _padded() -> Padded:
    memory = Padded(20)
    _admit(memory, _sequence("a", 3, 4), _sequence("b", 5, 2))
    memory.check_integrity()
    return memory


def test_lost_and_shared_slots_are_found() -> None:
    lost = _contiguous()
    lost.books.places.pop("a")
    shared = _contiguous()
    shared.books.places["b"] = Extent(4, 8)
    short = _contiguous()
    short.allocator.capacity = 21
    for memory in (lost, shared, short):
        with breach("conservation"):
            memory.check_integrity()


def test_a_broken_rectangle_is_found() -> None:
    same_row = _padded()
    same_row.books.places["b"] = same_row.books.places["a"]
    beyond = _padded()
    beyond.books.places["b"] = Extent(9, 8)
    outside = _padded()
    outside.books.places["b"] = Extent(16, 3)
    empty = _padded()
    empty.books.places.clear()
    for memory in (same_row, beyond, outside, empty):
        with breach("conservation"):
            memory.check_integrity()


def test_orca_may_set_aside_more_than_a_request_asks_for() -> None:
    """As where lengths are not known: of 20 slots, each request gets 9, though it needs 5; so two run at once."""
    engine = make_engine("orca", capacity=20, settings={"memory.per_request": 9})
    steps = run_all(engine, [asks(f"r{i}", 3, 3) for i in range(3)])
    assert [len(step.plan.work) for step in steps] == [2, 2, 2, 1, 1, 1]
    assert steps[0].usage.reserved == 18
    with refusal(UsageError, "memory.per_request is 9, and memory holds 8"):
        make_engine("orca", capacity=8, settings={"memory.per_request": 9})

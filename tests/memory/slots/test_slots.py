"""Adjacent buffers: which sequence gets which slot, the region, the shuffle, and what is refused."""

from __future__ import annotations

import pytest
from helpers import asks, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from minifuse.core.errors import LawBroken, RequestRefused, UsageError
from minifuse.core.plan import Extent, Layout, Move, Placement, Plan, Proposal, Work
from minifuse.core.report import KVUsage
from minifuse.core.request import Phase, Sequence
from minifuse.core.shapes import Region
from minifuse.memory import Slots

WIDTH = 10


def _slots(slots: int, shuffle: bool = True, shrink: bool = True) -> Slots:
    return Slots(slots * WIDTH, Slots.Options(slots, shuffle, shrink))


class Stream:
    """A main stream by hand: each iteration produces a token for every sequence in memory."""

    def __init__(self, slots: int, shuffle: bool = True, shrink: bool = True) -> None:
        self.memory = _slots(slots, shuffle, shrink)
        self.running: dict[str, Sequence] = {}

    def iterate(self, *newcomers: str) -> Placement:
        admit = tuple(Sequence(asks(name, 1, 9)) for name in newcomers)
        self.running |= {sequence.id: sequence for sequence in admit}
        work = tuple(Work(s.id, *span) for s in self.running.values() for span in self.memory.missing(s))
        placement = self.memory.place(Proposal(work, admit), 0.0)
        self.memory.check_integrity()
        plan = Plan(0, 0, work, placement.places, layout=Layout(shape=placement.shape), moves=placement.moves)
        self.memory.commit(plan, self.running, 0.0)
        for sequence in self.running.values():
            sequence.tokens.append(0)
        return placement

    def leave(self, *names: str) -> None:
        for name in names:
            self.memory.release(self.running.pop(name), 0.0)

    def slots(self) -> dict[str, int]:
        return {name: self.memory.slot(name) for name in self.running}


def _region(placement: Placement) -> tuple[int, int]:
    assert isinstance(placement.shape, Region)
    assert placement.shape.width == WIDTH
    return placement.shape.offset, placement.shape.size


# --- fusing: the region grows by a neighbour


def test_without_shuffle_and_shrink_the_region_keeps_offset_and_size() -> None:
    """Fig. 5 of the paper: evicted buffers are computed on, until a newcomer takes them or nothing runs."""
    stream = Stream(4, shuffle=False, shrink=False)
    assert _region(stream.iterate("a", "b", "c")) == (0, 3)
    stream.leave("c")  # at an end
    assert _region(stream.iterate()) == (0, 3)
    stream.leave("a")
    assert _region(stream.iterate("d")) == (0, 3)
    assert stream.slots() == {"b": 1, "d": 0}
    assert _region(stream.iterate("e", "f")) == (0, 4)
    stream.leave("b", "d", "e", "f")
    assert _region(stream.iterate("g")) == (0, 1)


def test_equal_lengths_make_the_region_a_queue() -> None:
    """With equal lengths the region is a queue: it moves on through memory and nothing is ever copied (V-C)."""
    stream = Stream(4)
    stream.iterate("a", "b")
    stream.leave("a")
    placement = stream.iterate("c")
    assert (_region(placement), placement.moves) == ((1, 2), ())
    stream.leave("b")
    assert _region(stream.iterate("d")) == (2, 2)
    placement = stream.iterate("e")  # nothing is left on the right: the other neighbour
    assert (_region(placement), stream.slots(), placement.moves) == ((1, 3), {"c": 2, "d": 3, "e": 1}, ())


# --- leaving


def test_without_shuffle_a_hole_stays_in_the_region() -> None:
    """Flover, Fig. 5: requests 5 and 7 of 4 to 8 leave, and their memory is orphaned."""
    stream = Stream(8, shuffle=False)
    stream.iterate(*"45678")
    stream.leave("5", "7")
    placement = stream.iterate()
    assert (_region(placement), placement.moves) == ((0, 5), ())
    stream.leave("4")
    assert _region(stream.iterate()) == (2, 3)  # 4's neighbour was a hole: the end is free further on
    stream.leave("8")
    assert _region(stream.iterate()) == (2, 1)


def test_a_newcomer_takes_a_hole_that_is_computed_anyway() -> None:
    stream = Stream(8, shuffle=False)
    stream.iterate(*"abcd")
    stream.leave("c")
    placement = stream.iterate("e")
    assert (_region(placement), stream.slots()["e"]) == ((0, 4), 2)


def test_with_shuffle_the_remaining_sequences_close_up() -> None:
    stream = Stream(8)
    stream.iterate(*"abcd")
    stream.iterate()
    stream.leave("b")
    placement = stream.iterate()
    assert (_region(placement), placement.moves) == ((0, 3), (Move("shuffle", 3 * WIDTH, WIDTH, 2),))
    assert stream.slots() == {"a": 0, "c": 2, "d": 1}  # moving a would be one copy too: the first window wins


def test_fig_6_in_memory() -> None:
    """Copies of what each has cached, no more; the extents follow."""
    names = "abcdefghijklmnop"
    live = [2, 3, 4, 7, 10, 11, 13, 14, 15]
    stream = Stream(16)
    stream.iterate(*names)
    stream.iterate()
    stream.leave(*(name for i, name in enumerate(names) if i not in live))
    placement = stream.iterate()
    assert _region(placement) == (7, 9)
    assert placement.moves == tuple(
        Move("shuffle", source * WIDTH, target * WIDTH, 2) for source, target in ((2, 8), (3, 9), (4, 12))
    )
    assert stream.slots() == {"c": 8, "d": 9, "e": 12} | {names[i]: i for i in live[3:]}
    assert placement.places == tuple(Extent(slot * WIDTH, WIDTH) for slot in stream.slots().values())


def test_a_newcomer_without_kv_is_moved_without_a_copy() -> None:
    """A newcomer takes a hole, and then closes up with the running sequences: nothing of it is copied."""
    stream = Stream(8)
    stream.iterate(*"abcdefgh")
    stream.leave("b", "c", "d", "e")
    stream.memory.fused = {"a"}  # so that the newcomer is put beside a, away from f, g and h
    placement = stream.iterate("x")
    assert _region(placement) == (3, 5)
    assert stream.slots() == {"a": 3, "x": 4, "f": 5, "g": 6, "h": 7}
    assert placement.moves == (Move("shuffle", 0, 3 * WIDTH, 1),)


# --- beside the main stream


def _preprocess(memory: Slots, *names: str) -> tuple[tuple[Sequence, ...], Placement]:
    admit = tuple(Sequence(asks(name, 4, 3)) for name in names)
    work = tuple(Work(name, 0, 3) for name in names)
    return admit, memory.place(Proposal(work, admit, phase=Phase.PREPROCESSING), 0.0)


def test_pre_processing_takes_the_next_slot_and_leaves_the_region_alone() -> None:
    stream = Stream(8)
    stream.iterate(*"abc")
    stream.leave("a")
    _, placement = _preprocess(stream.memory, "x")
    assert (placement.shape, placement.moves, placement.places) == (None, (), (Extent(3 * WIDTH, WIDTH),))
    assert _region(stream.iterate()) == (1, 2)


def test_the_shuffle_leaves_a_sequence_in_pre_processing_where_it_is() -> None:
    stream = Stream(6)
    stream.iterate(*"abcdef")
    stream.leave("b", "c", "d")
    _preprocess(stream.memory, "x")  # in b's slot
    placement = stream.iterate()
    assert stream.memory.slot("x") == 1
    assert [(move.source // WIDTH, move.target // WIDTH) for move in placement.moves] == [(0, 3)]
    assert _region(placement) == (3, 3)


def _with_a_hole() -> tuple[Slots, dict[str, Sequence]]:
    """a, b and c have computed their prompts in three slots, and b, in the middle, has left."""
    memory = _slots(3)
    sequences = {name: Sequence(asks(name, 2, 9)) for name in "abc"}
    placement = memory.place(Proposal(tuple(Work(n, 0, 2) for n in "abc"), tuple(sequences.values())), 0.0)
    memory.commit(Plan(0, 0, tuple(Work(n, 0, 2) for n in "abc"), placement.places), "abc", 0.0)
    memory.release(sequences["b"], 0.0)
    return memory, sequences


def test_a_slot_is_free_once_it_has_been_copied_from() -> None:
    """c moves to b's place; until that plan has run, no newcomer gets c's old slot and writes into it too soon."""
    memory, _ = _with_a_hole()
    work = (Work("a", 1, 2), Work("c", 1, 2))
    placement = memory.place(Proposal(work), 0.0)
    assert [(move.source // WIDTH, move.target // WIDTH) for move in placement.moves] == [(2, 1)]
    assert memory.room().admit(Sequence(asks("x"))) is not None
    with pytest.raises(LawBroken, match="all 3 slots are taken"):
        _preprocess(memory, "x")
    memory.commit(
        Plan(1, 0, work, placement.places, layout=Layout(shape=placement.shape), moves=placement.moves), "ac", 0.0
    )
    assert memory.room().admit(Sequence(asks("x"))) is None
    _, placement = _preprocess(memory, "x")
    assert placement.places == (Extent(2 * WIDTH, WIDTH),)


def test_a_slot_to_be_copied_from_is_not_lost_when_its_owner_is_abandoned() -> None:
    memory, sequences = _with_a_hole()
    memory.place(Proposal((Work("a", 1, 2), Work("c", 1, 2))), 0.0)
    for name in "ac":  # interrupted: the plan is never committed
        memory.release(sequences[name], 0.0)
    room = memory.room()
    assert [room.admit(Sequence(asks(name))) is None for name in "wxyz"] == [True, True, True, False]


# --- refusals


def test_slots_divide_memory_equally() -> None:
    memory = Slots(43, Slots.Options(4))
    assert memory.width == 10
    assert memory.usage() == KVUsage(0, 0, 43)
    with refusal(UsageError, "4 slots", "3 tokens", "memory.slots", "--kv-memory"):
        Slots(3, Slots.Options(4))


def test_a_region_that_is_gathered_cannot_keep_its_size() -> None:
    with refusal(UsageError, "memory.shrink is off", "memory.shuffle on", "turn memory.shuffle off"):
        Slots(43, Slots.Options(4, shrink=False))
    Slots(43, Slots.Options(4, shuffle=False, shrink=False))


def test_a_request_that_never_fits_is_refused() -> None:
    memory = _slots(2)
    memory.check(asks("fits", 8, 3))
    with refusal(RequestRefused, "'long'", "11 tokens", "2 slots", "holds 10", "memory.slots", "--kv-memory"):
        memory.check(asks("long", 8, 4))
    prompts = [asks(f"many/{i}", 2, 2, group="many") for i in range(3)]
    memory.check(*prompts[:2])
    with refusal(RequestRefused, "'many'", "3 prompts", "slots for 2", "memory.slots"):
        memory.check(*prompts)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_fragmented_memory_has_room_as_long_as_a_slot_is_free(shuffle: bool) -> None:
    stream = Stream(5, shuffle)
    stream.iterate(*"abcde")
    room = stream.memory.room()
    reason = room.admit(Sequence(asks("f")))
    assert reason is not None
    assert (reason.code, reason.sequence, reason.text) == ("memory-full", "f", "not admitted: all 5 slots are taken")
    stream.leave("b", "d")
    stream.iterate()
    room = stream.memory.room()
    assert [room.admit(Sequence(asks(name))) is None for name in "fgh"] == [True, True, False]
    stream.iterate("f", "g")
    assert sorted(stream.slots().values()) == [0, 1, 2, 3, 4]


def test_corrupt_books_are_noticed() -> None:
    for extent in (Extent(3, WIDTH), Extent(2 * WIDTH, WIDTH), Extent(0, WIDTH + 1), Extent(-WIDTH, WIDTH)):
        memory = _slots(2)
        memory.books.places["a"] = extent
        with pytest.raises(LawBroken, match="conservation"):
            memory.check_integrity()
    memory = _slots(2)
    memory.books.places |= {"a": Extent(0, WIDTH), "b": Extent(0, WIDTH)}
    with pytest.raises(LawBroken, match="share"):
        memory.check_integrity()


# --- any arrivals and departures


@settings(max_examples=200)
@given(st.data())
def test_any_arrivals_and_departures(data: st.DataObject) -> None:
    """With shuffle the region is exactly the running sequences; without it nothing is ever copied."""
    shuffle = data.draw(st.booleans())
    num_slots = data.draw(st.integers(1, 8))
    stream = Stream(num_slots, shuffle)
    for step in range(data.draw(st.integers(1, 8))):
        leaving = [name for name in list(stream.running) if data.draw(st.booleans())]
        stream.leave(*leaving)
        free = num_slots - len(stream.running)
        newcomers = [f"{step}.{i}" for i in range(data.draw(st.integers(0, free)))]
        if not stream.running and not newcomers:
            continue
        before = stream.slots()
        placement = stream.iterate(*newcomers)
        offset, size = _region(placement)
        slots = sorted(stream.slots().values())
        assert (offset, offset + size - 1) == (slots[0], slots[-1])
        moved = {name for name, slot in before.items() if stream.slots()[name] != slot}
        assert len(moved) == len(placement.moves)
        if shuffle:
            assert size == len(stream.running)
        else:
            assert not placement.moves

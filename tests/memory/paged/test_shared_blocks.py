"""Blocks that prompts share: what is copied, when it may be read, and what is still promised to others."""

from __future__ import annotations

from helpers import asks, make_engine, run_all
from memory.paged.scene import SIZE, PagedScene

from minifuse.core.places import Pages
from minifuse.core.plan import Move, Placement, Plan, Proposal, Span, Work
from minifuse.core.report import KVUsage
from minifuse.core.request import Sequence
from minifuse.memory import Paged
from minifuse.serve.assembly import choose
from minifuse.techniques import mix, technique
from minifuse.testing import TEXTS, observe
from minifuse.testing.texts import TextScenario

# --- by hand


def test_a_block_shared_in_part_is_copied_and_a_whole_one_is_not() -> None:
    served = PagedScene(share=True)
    beginning = (1, 2, 3, 4, 5, 6)
    served.ask("a", beginning)
    served.iterate(admit="a")
    b = served.ask("b", (*beginning, 7))
    assert served.memory.missing(b) == (Span(6, 7),)
    placement = served.iterate(admit="b")
    assert (served.blocks(placement), placement.moves) == ([(0, 2)], (Move("copy", 4, 8, 2),))
    c = served.ask("c", (*beginning[:4], 9))
    assert served.memory.missing(c) == (Span(4, 5),)
    placement = served.iterate(admit="c")
    assert (served.blocks(placement), placement.moves) == ([(0, 3)], ())
    assert served.memory.usage() == KVUsage(4 + 2 + 3 + 1, 16, 24, 0)  # the first block counts once
    placement = served.iterate("a")  # a continues in its own block, which b has copied and no longer holds
    assert (served.blocks(placement), placement.moves) == ([(0, 1)], ())


def test_a_shared_block_stays_with_its_other_owners() -> None:
    served = PagedScene(share=True, preemption="swap")
    served.ask("a", (1, 2, 3, 4, 5))
    served.iterate(admit="a")
    served.ask("b", (1, 2, 3, 4, 6))
    served.iterate(admit="b")
    moves = served.iterate(evict="a").moves
    assert moves == (Move("swap_out", 0, 0, 5, target_tier="host"),)
    assert served.memory.usage() == KVUsage(5, 8, 24, 5)
    assert served.blocks(served.iterate("b")) == [(0, 2)]


def test_of_equally_long_beginnings_that_of_the_first_admitted_is_shared() -> None:
    """a is computed in pieces, so b has its first block earlier; c and d still share the blocks of a."""
    memory = Paged(9 * SIZE, Paged.Options(SIZE, share=True))
    endings: dict[str, tuple[int, ...]] = {"a": (7,), "b": (7,), "c": (), "d": (7, 8)}
    a, b, c, d = (Sequence(asks(name, (1, 2, 3, 4, 5, *ending), 1)) for name, ending in endings.items())

    def run(*work: Work, admit: tuple[Sequence, ...] = ()) -> list[tuple[int, ...]]:
        places = memory.place(Proposal(work, admit), 0.0).places
        memory.commit(Plan(0, 0, work, places, tuple(sequence.id for sequence in admit)), set(), 0.0)
        return [place.blocks for place in places if isinstance(place, Pages)]

    assert run(Work("a", 0, 2), Work("b", 0, 6), admit=(a, b)) == [(0,), (1, 2)]
    assert run(Work("a", 2, 6)) == [(0, 3)]
    assert run(Work("c", 4, 5), admit=(c,)) == [(0, 4)]
    (span,) = memory.missing(d)
    assert run(Work("d", *span), admit=(d,)) == [(0, 5)]  # the second block is a copy of a's, 3
    assert memory.usage().used == 6 + 6 + 1 + 3


def test_a_newcomer_does_not_join_without_the_sequence_that_it_shares_with() -> None:
    """Its work was proposed as if the beginning stayed, which leaves with the evicted."""
    memory = Paged(6 * SIZE, Paged.Options(SIZE, share=True))
    a, b, c = (Sequence(asks(name, (1, 2, 3, 4, 5), 2)) for name in "abc")
    work = (Work("a", 0, 5),)
    placed = memory.place(Proposal(work, (a,), growing=True), 0.0)
    memory.commit(Plan(0, 0, work, placed.places, ("a",)), {"a"}, 0.0)
    room = memory.room()
    assert room.admit(b, growing=True) is None
    room.evict(a)
    refused = room.admit(c, growing=True)
    assert refused is not None
    assert refused.code == "shares"
    assert memory.missing(c) == (Span(4, 5),)


# --- several workers, whose plans end in any order


class Slots:
    """What lies in the slots of the device: the text up to each token. A plan's moves and work are done by `run`."""

    def __init__(self) -> None:
        self.texts: dict[int, tuple[int, ...]] = {}

    def run(self, placement: Placement, work: Work, sequence: Sequence) -> None:
        for move in placement.moves:
            for i in range(move.num_tokens):
                self.texts[move.target + i] = self.texts.get(move.source + i, ())
        for t, slot in enumerate(placement.places[0].slots(0, work.stop)):
            own = tuple(sequence.tokens[: t + 1])
            if t >= work.start:
                self.texts[slot] = own
            assert self.texts.get(slot) == own, f"{sequence.id} reads token {t} from slot {slot}: not its own text"


def test_a_copy_that_has_not_been_made_is_not_copied_from() -> None:
    """b, on another worker, is to copy what it shares of a's last block; a leaves, and only b has this beginning.

    c begins like both, and its plan may run before b's: it must not read from the block that b has not filled yet.
    """
    memory, slots = Paged(10 * SIZE, Paged.Options(SIZE, share=True)), Slots()
    endings: dict[str, tuple[int, ...]] = {"a": (), "b": (7,), "c": (8,)}
    a, b, c = (Sequence(asks(name, (1, 2, 3, 4, 5, 6, *ending), 1)) for name, ending in endings.items())

    def plan(sequence: Sequence) -> tuple[Placement, Work]:
        work = Work(sequence.id, *memory.missing(sequence)[0])
        return memory.place(Proposal((work,), (sequence,)), 0.0), work

    def complete(placement: Placement, work: Work, sequence: Sequence) -> None:
        slots.run(placement, work, sequence)
        memory.commit(Plan(0, 0, (work,), placement.places, moves=placement.moves), {sequence.id}, 0.0)
        memory.release(sequence, 0.0)
        memory.check_integrity()

    first = plan(a)
    slots.run(*first, a)
    memory.commit(Plan(0, 0, (first[1],), first[0].places), {"a"}, 0.0)
    of_b = plan(b)
    memory.release(a, 0.0)
    assert memory.usage().used == 6  # the tokens of b, in two blocks; a's second block is only copied from
    of_c = plan(c)
    memory.check_integrity()
    complete(*of_c, c)
    complete(*of_b, b)
    assert memory.usage().reserved == 0


def test_sharing_with_a_running_sequence_whose_source_has_left_breaks_no_law() -> None:
    """b, running, shares the whole of a's block; a leaves, and c shares it with b: it was written long ago."""
    row = mix(technique("instances"), memory="paged", attention="paged")
    beginning = (1, 2, 3, 4)
    requests = (
        asks("a", beginning, 2), asks("b", (*beginning, 7), 1, at=0.015), asks("c", (*beginning, 8), 1, at=0.02)
    )  # fmt: skip
    options = (("batching.instances", 3), ("memory.block_size", SIZE), ("memory.share", True))
    seen = observe(TEXTS.case(row, TextScenario(model="llama", requests=requests, capacity=40, options=options)))
    assert [(work.sequence, work.start) for step in seen.steps for work in step.plan.work][2:] == [("b", 4), ("c", 4)]


# --- promises


def test_a_newcomer_without_work_takes_no_block_that_another_was_promised() -> None:
    """g/0 shares all that its pre-processing would compute, so it is admitted without work beside g/1's work.

    So a is the first to write in the block that both hold. The blocks of all were set aside, 3 + 1 + 1 of 5; a must
    get its third.
    """
    row = mix(technique("fusion"), memory="paged", attention="paged")
    stages = choose(row, {"memory.block_size": SIZE, "memory.share": True}).stages(5 * SIZE)
    engine = make_engine("fusion", batching=stages.batching, memory=stages.memory, attention=stages.attention)
    beginning = (1, 2, 3, 4, 5, 6)
    run_all(
        engine,
        [
            asks("a", beginning, 4),
            asks("g/0", beginning, 3, at=1.5, group="g"),
            asks("g/1", (9, 10, 11), 2, at=1.5, group="g"),
        ],
    )
    assert set(engine.finished) == {"a", "g/0", "g/1"}

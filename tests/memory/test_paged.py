"""Paged memory by hand: blocks that prompts share, what is copied, when it may be read, and what was promised."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from helpers import asks, make_engine, run_all, sentence

from minifuse.errors import LawBroken, RequestRefused, UsageError
from minifuse.memory import Paged
from minifuse.memory.tables import Tables
from minifuse.place import Pages
from minifuse.plan import Move, Placement, Plan, Proposal, Reason
from minifuse.report import KVUsage
from minifuse.request import Request, Sequence
from minifuse.techniques import Stages, mix, technique
from minifuse.testing import TEXTS, observe
from minifuse.testing.texts import TextScenario
from minifuse.testing.texts.models import expected_answer
from minifuse.work import Span, Work

SIZE = 4


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


# --- several workers: plans end in any order


def test_a_copy_that_has_not_been_made_is_not_copied_from() -> None:
    """b, on another worker, is to copy what it shares of a's last block; a leaves, and b alone has its beginning.

    c begins like both, and its plan may run before b's: it must not read from the block that b has not filled yet.
    """
    memory, slots = Paged(10 * SIZE, Paged.Options(SIZE, share=True)), Slots()
    endings: dict[str, tuple[int, ...]] = {"a": (), "b": (7,), "c": (8,)}
    a, b, c = (Sequence(asks(name, (1, 2, 3, 4, 5, 6, *ending), 1)) for name, ending in endings.items())

    def plan(sequence: Sequence) -> tuple[Placement, Work]:
        work = Work(sequence.id, *memory.missing(sequence)[0])
        return memory.place(Proposal((work,), (sequence,))), work

    def complete(placement: Placement, work: Work, sequence: Sequence) -> None:
        slots.run(placement, work, sequence)
        memory.commit(Plan(0, 0, (work,), placement.places, moves=placement.moves), {sequence.id})
        memory.release(sequence)
        memory.check_integrity()

    first = plan(a)
    slots.run(*first, a)
    memory.commit(Plan(0, 0, (first[1],), first[0].places), {"a"})
    of_b = plan(b)
    memory.release(a)
    of_c = plan(c)
    memory.check_integrity()
    complete(*of_c, c)
    complete(*of_b, b)
    assert memory.usage().reserved == 0


def test_answers_of_prompts_that_begin_alike_on_several_workers() -> None:
    """The same through the engine, with a model: c's plan is quicker than b's, and its answer is its own."""
    settings = {"memory.block_size": SIZE, "memory.share": True, "batching.instances": 3}
    stages = Stages.of(mix(technique("instances"), memory="paged", attention="paged"), 40, settings)
    beginning = (1, 2, 3, 4, 5, 6)
    requests: list[Request] = [
        asks("a", beginning, 2), asks("b", (*beginning, 7), 1, at=1.5), asks("c", (*beginning, 8), 1, at=2.0)
    ]  # fmt: skip

    def seconds(plan: Plan) -> float:
        return 4.0 if plan.work[0].sequence == "b" else 1.0

    engine = make_engine(
        "instances", model="llama", batching=stages.batching, memory=stages.memory, attention=stages.attention,
        cost=seconds,
    )  # fmt: skip
    run_all(engine, requests)
    answers = {name: tuple(sequence.answer) for name, sequence in engine.finished.items()}
    assert answers == {request.id: expected_answer("llama", request) for request in requests}


def test_sharing_with_one_at_work_whose_own_source_has_left_is_no_false_alarm() -> None:
    """b, at work, shares the whole of a's block; a leaves, and c shares it with b: it was written long ago."""
    row = mix(technique("instances"), memory="paged", attention="paged")
    beginning = (1, 2, 3, 4)
    requests = (
        asks("a", beginning, 2), asks("b", (*beginning, 7), 1, at=0.015), asks("c", (*beginning, 8), 1, at=0.02)
    )  # fmt: skip
    options = (("batching.instances", 3), ("memory.block_size", SIZE), ("memory.share", True))
    seen = observe(TEXTS.case(row, TextScenario(model="llama", requests=requests, capacity=40, options=options)))
    assert [(work.sequence, work.start) for step in seen.steps for work in step.plan.work][2:] == [("b", 4), ("c", 4)]


# --- promises


def test_a_newcomer_without_work_does_not_cost_another_what_it_was_promised() -> None:
    """g/0 shares all that its pre-processing would compute: it is admitted beside g/1's work, and has none.

    So a is the first to write in the block that both hold. Everyone's blocks were set aside, 3 + 1 + 1 of 5; a must get
    its third.
    """
    stages = Stages.of(
        mix(technique("fusion"), memory="paged", attention="paged"),
        5 * SIZE,
        {"memory.block_size": SIZE, "memory.share": True},
    )
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


# --- by hand: six blocks of four


class Served:
    """A memory, and those whom it serves; every iteration is committed and brings each one at work a token."""

    def __init__(self, blocks: int = 6, **options: Any) -> None:
        self.memory = Paged(blocks * SIZE, Paged.Options(SIZE, **{"watermark": 0.0, **options}))
        self.sequences: dict[str, Sequence] = {}

    def ask(self, name: str, prompt: int | tuple[int, ...] = 4, new: int = 9) -> Sequence:
        self.sequences[name] = Sequence(asks(name, prompt, new))
        return self.sequences[name]

    def iterate(self, *at_work: str, admit: str = "", evict: str = "", growing: bool = True) -> Placement:
        memory, every = self.memory, self.sequences
        work = tuple(Work(name, *span) for name in (*admit, *at_work) for span in memory.missing(every[name]))
        proposal = Proposal(
            work, tuple(every[n] for n in admit), evict=tuple(every[n] for n in evict), growing=growing
        )  # fmt: skip
        placement = memory.place(proposal)
        memory.check_integrity()
        admitted, evicted = tuple(admit), tuple(evict)
        plan = Plan(0, 0, work, placement.places, admitted, moves=placement.moves, evicted=evicted)
        memory.commit(plan, {item.sequence for item in work})
        memory.check_integrity()
        for item in work:
            every[item.sequence].tokens.append(0)
        return placement

    def blocks(self, placement: Placement) -> list[tuple[int, ...]]:
        assert all(isinstance(place, Pages) and place.size == SIZE for place in placement.places)
        return [place.blocks for place in placement.places if isinstance(place, Pages)]


def test_a_block_is_taken_when_a_request_grows_into_it() -> None:
    served = Served()
    served.ask("a", 6)
    assert served.blocks(served.iterate(admit="a")) == [(0, 1)]
    assert served.memory.usage() == KVUsage(6, 8, 24, 0)
    served.ask("b", 3)
    assert served.blocks(served.iterate("a", admit="b")) == [(2,), (0, 1)]
    assert served.memory.usage() == KVUsage(7 + 3, 12, 24, 0)
    assert served.blocks(served.iterate("a", "b")) == [(0, 1), (2,)]  # the 8th token and the 4th: both are full
    assert served.blocks(served.iterate("a", "b")) == [(0, 1, 3), (2, 4)]  # the next, anywhere
    served.memory.release(served.sequences["a"])
    served.memory.release(served.sequences["b"])
    assert served.memory.usage() == KVUsage(0, 0, 24, 0)
    served.memory.release(Sequence(asks("never admitted")))


def test_the_watermark_is_kept_for_those_who_run() -> None:
    served = Served(watermark=0.5)
    assert served.memory.room().admit(served.ask("a", 20), growing=True) is None
    served.iterate(admit="a")  # nobody else is here: five of six blocks may be taken
    served.memory.release(served.sequences["a"])
    served.ask("b", 4)
    served.iterate(admit="b")
    room = served.memory.room()
    assert room.admit(served.ask("c", 12), growing=True) == Reason(
        "memory-full", "c", "not admitted: needs 3 blocks of 4 KV tokens, 5 are free, 3 of them kept for those who run"
    )
    assert room.admit(served.ask("d", 8), growing=True) is None
    assert room.extend(served.sequences["b"]) is None  # those who run may have what is kept for them
    assert served.memory.room().admit(served.ask("e", 4, new=17)) is None  # five blocks, for life: it waits for none


def test_a_whole_life_is_set_aside_by_number() -> None:
    served = Served()
    a = served.ask("a", 4, new=9)  # at most 12 tokens of KV
    assert served.blocks(served.iterate(admit="a", growing=False)) == [(0,)]
    assert served.memory.usage() == KVUsage(4, 12, 24, 0)
    room = served.memory.room()
    full = Reason("memory-full", "b", "not admitted: needs 4 blocks of 4 KV tokens, 3 are free")
    assert room.admit(served.ask("b", 4, new=13)) == full
    assert room.admit(served.ask("c", 12), growing=True) is None  # who grows may not have what was promised either
    assert room.admit(served.ask("d", 4), growing=True) == Reason(
        "memory-full", "d", "not admitted: needs 1 blocks of 4 KV tokens, 0 are free"
    )
    served.iterate(admit="c")
    while len(a) < a.request.max_length:
        served.iterate("a")
    assert served.memory.usage() == KVUsage(24, 24, 24, 0)
    assert served.memory.room().extend(served.sequences["c"]) == Reason(
        "memory-full", "c", "has no room for its next token: needs 1 blocks, 0 are free"
    )


def test_what_was_tried_out_in_a_room_has_not_happened() -> None:
    served = Served()
    served.ask("a", 20)
    served.iterate(admit="a")
    before = pickle.dumps(vars(served.memory))
    room = served.memory.room()
    assert room.extend(served.sequences["a"]) is None
    assert room.admit(served.ask("b", 8), growing=True) is not None
    room.evict(served.sequences["a"])
    assert room.admit(served.sequences["b"], growing=True) is None
    assert pickle.dumps(vars(served.memory)) == before


# --- sharing


def test_a_block_shared_in_part_is_copied_and_a_whole_one_is_not() -> None:
    served = Served(share=True)
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
    placement = served.iterate("a")  # a goes on in its own block, which b has copied and no longer holds
    assert (served.blocks(placement), placement.moves) == ([(0, 1)], ())


def test_the_last_token_of_a_prompt_is_computed_even_if_all_of_it_is_there() -> None:
    served = Served(share=True)
    served.ask("a", (1, 2, 3, 4, 5, 6))
    served.iterate(admit="a")
    b = served.ask("b", (1, 2, 3, 4, 5, 6))
    assert served.memory.missing(b) == (Span(5, 6),)
    assert served.iterate(admit="b").moves == (Move("copy", 4, 8, 1),)


def test_without_share_nothing_is_shared() -> None:
    served = Served()
    served.ask("a", (1, 2, 3, 4, 5, 6))
    served.iterate(admit="a")
    b = served.ask("b", (1, 2, 3, 4, 5, 6))
    assert served.memory.missing(b) == (Span(0, 6),)
    assert served.blocks(served.iterate(admit="b")) == [(2, 3)]


def test_the_longest_beginning_is_shared() -> None:
    served = Served(share=True)
    served.ask("a", (1, 2, 3, 8))
    served.ask("b", (1, 2, 3, 4, 5))
    served.iterate(admit="ab")
    assert served.memory.missing(served.ask("c", (1, 2, 3, 4, 9))) == (Span(4, 5),)


# --- eviction


def test_neighbours_that_stay_neighbours_are_swapped_in_one_move() -> None:
    served = Served(preemption="swap")
    served.ask("a", 10)
    served.iterate(admit="a")
    assert served.iterate(evict="a").moves == (Move("swap_out", 0, 0, 10),)
    assert served.memory.usage() == KVUsage(0, 0, 24, 10)
    placement = served.iterate(admit="a")  # the blocks last given back are the first to be handed out
    assert placement.moves == (Move("swap_in", 0, 8, 4), Move("swap_in", 4, 4, 4), Move("swap_in", 8, 0, 2))
    assert served.blocks(placement) == [(2, 1, 0)]
    assert served.memory.usage() == KVUsage(11, 12, 24, 0)


def test_those_who_lie_between_others_are_swapped_block_by_block() -> None:
    served = Served(preemption="swap")
    served.ask("a", 4)
    served.ask("b", 4)
    served.iterate(admit="ab")
    served.iterate("a")
    served.iterate("a")  # blocks 0 and 2
    assert served.iterate(evict="a").moves == (Move("swap_out", 0, 0, 4), Move("swap_out", 8, 4, 2))
    assert served.memory.missing(served.sequences["a"]) == (Span(6, 7),)


def test_an_eviction_makes_room_in_the_same_proposal() -> None:
    served = Served(2, preemption="swap")
    served.ask("a", 8)
    served.iterate(admit="a")
    served.ask("b", 8)
    placement = served.iterate(admit="b", evict="a")
    assert (served.blocks(placement), placement.moves) == ([(1, 0)], (Move("swap_out", 0, 0, 8),))
    assert served.memory.usage() == KVUsage(8, 8, 8, 8)


def test_what_is_dropped_is_missing_from_the_first_token() -> None:
    served = Served(preemption="recompute")
    a = served.ask("a", 6)
    served.iterate(admit="a")
    assert served.iterate(evict="a").moves == ()
    assert served.memory.missing(a) == (Span(0, 7),)
    assert served.memory.usage() == KVUsage(0, 0, 24, 0)


@pytest.mark.parametrize(("host", "kept"), [(None, 6), (8, 6), (7, 0), (4, 0)])
def test_the_host_keeps_what_it_has_blocks_for(host: int | None, kept: int) -> None:
    served = Served(preemption="swap", host=host)
    assert served.memory.host_capacity == (24 if host is None else host // SIZE * SIZE)
    a = served.ask("a", 6)
    served.iterate(admit="a")
    served.iterate(evict="a")
    assert served.memory.usage() == KVUsage(0, 0, 24, kept)
    assert served.memory.missing(a) == (Span(kept, 7),)
    served.memory.release(a)  # given up while it is away
    served.memory.check_integrity()
    assert served.memory.usage() == KVUsage(0, 0, 24, 0)


def test_host_blocks_are_free_when_what_was_in_them_is_back() -> None:
    served = Served(preemption="swap", host=8)
    for name in "ab":
        served.ask(name, 6)
    served.iterate(admit="ab")
    served.iterate(evict="a")
    served.iterate(admit="a")
    assert {move.kind for move in served.iterate(evict="b").moves} == {"swap_out"}


def test_a_shared_block_stays_with_those_who_are_left() -> None:
    served = Served(share=True, preemption="swap")
    served.ask("a", (1, 2, 3, 4, 5))
    served.iterate(admit="a")
    served.ask("b", (1, 2, 3, 4, 6))
    served.iterate(admit="b")
    moves = served.iterate(evict="a").moves
    assert moves == (Move("swap_out", 0, 0, 5),)
    assert served.memory.usage() == KVUsage(5, 8, 24, 5)
    assert served.blocks(served.iterate("b")) == [(0, 2)]


# --- what is refused, and what is broken


def test_memory_smaller_than_a_block_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        Paged(3, Paged.Options(SIZE))
    sentence(error.value, "blocks of 4 tokens, and it holds 3", "memory.block_size", "--kv-memory")


def test_a_host_without_swap_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        Paged(24, Paged.Options(SIZE, host=8))
    sentence(error.value, "memory.host is 8", "memory.preemption=swap", "leave memory.host out")


def test_a_host_smaller_than_a_block_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        Paged(24, Paged.Options(SIZE, preemption="swap", host=3))
    sentence(error.value, "memory.host is 3, less than a block of 4 tokens", "raise it")


def test_a_request_that_never_fits_is_refused() -> None:
    memory = Paged(6 * SIZE + 3, Paged.Options(SIZE))
    memory.check(asks("a", 4, 21))  # 24 tokens: the three slots that make no block do not help
    with pytest.raises(RequestRefused) as error:
        memory.check(asks("a", 4, 22))
    sentence(error.value, "'a' may need 7 blocks of 4 KV tokens and memory has 6", "shorten", "--kv-memory")


def test_prompts_of_a_request_are_refused_together() -> None:
    memory = Paged(24, Paged.Options(SIZE))
    prompts = [asks(f"g/{i}", 4, 10, group="g") for i in range(2)]  # 13 tokens: 4 blocks each
    memory.check(prompts[0])
    with pytest.raises(RequestRefused) as error:
        memory.check(*prompts)
    sentence(error.value, "'g' with its 2 prompts may need 8 blocks", "memory has 6")


@pytest.mark.parametrize(
    ("law", "what", "proposal"),
    [
        ("budget", "what was proposed does not fit", {"admit": "bc"}),
        ("budget", "has no room for its next token: needs 5 blocks", {"admit": "b", "work": ("a", 6, 28)}),
        ("conservation", "a was admitted a second time", {"admit": "ba"}),
        ("conservation", "c was to be evicted, and is not on the device", {"admit": "b", "evict": "c"}),
        ("conservation", "work was proposed for c, which was never admitted", {"admit": "b", "work": ("c", 0, 4)}),
        ("conservation", "work was proposed for a, which was never admitted", {"work": ("a", 6, 7), "evict": "a"}),
    ],
)
def test_a_proposal_that_cannot_be_placed_changes_nothing(law: str, what: str, proposal: dict[str, Any]) -> None:
    served = Served(preemption="swap")
    served.ask("a", 6)
    served.iterate(admit="a")
    served.ask("b", 8)
    served.ask("c", 12)
    before = pickle.dumps(vars(served.memory))
    work = (Work(*proposal["work"]),) if "work" in proposal else ()
    admit, evict = (tuple(served.sequences[n] for n in proposal.get(key, "")) for key in ("admit", "evict"))
    with pytest.raises(LawBroken, match=what) as error:
        served.memory.place(Proposal(work, admit, evict=evict, growing=True))
    assert error.value.law == law
    assert pickle.dumps(vars(served.memory)) == before


@pytest.mark.parametrize(("start", "stop"), [(7, 8), (6, 9)])
def test_work_with_a_gap_before_it_or_beyond_its_blocks_is_not_committed(start: int, stop: int) -> None:
    served = Served()
    served.ask("a", 6)
    served.iterate(admit="a")
    with pytest.raises(LawBroken, match="leaves a gap behind it or exceeds the 8 tokens of its blocks") as error:
        served.memory.commit(Plan(0, 0, (Work("a", start, stop),), (Pages((0, 1), SIZE),)), {"a"})
    assert error.value.law == "ghost"
    assert served.memory.tables.cached["a"] == 6


CORRUPTIONS: dict[str, Callable[[Tables], object]] = {
    "a block lost": lambda tables: tables.blocks["a"].pop(),
    "a block twice in a table": lambda tables: tables.blocks["a"].append(0),
    "two tables, one block": lambda tables: tables.blocks["b"].__setitem__(0, 0),
    "given back and kept": lambda tables: tables.device.give_back(0),
    "held and free": lambda tables: tables.device.free.append(0),
    "neither held nor free": lambda tables: tables.device.free.pop(),
    "a host block lost": lambda tables: tables.away["c"].pop(),
    "a host block free too early": lambda tables: tables.host.give_back(tables.away["c"][0]),
    "promised what is not there": lambda tables: tables.promised.update(a=9),
    "someone on both tiers": lambda tables: (tables.away.update(a=[]), tables.blocks["a"]),
    "someone on no tier": lambda tables: tables.cached.update(d=0),
    "KV of nobody": lambda tables: tables.cached.pop("b"),
    "beyond its blocks": lambda tables: tables.cached.update(a=9),
    "beyond its blocks on the host": lambda tables: tables.cached.update(c=5),
    "a copy that nobody waits for": lambda tables: tables.copied.update(a=[0]),
    "a return that nobody waits for": lambda tables: tables.returned.update(c=[0]),
}


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_corrupt_books_are_noticed(corrupt: Callable[[Tables], object]) -> None:
    served = Served(preemption="swap")
    for name, prompt in (("a", 6), ("b", 4), ("c", 4)):
        served.ask(name, prompt)
    served.iterate(admit="abc")
    served.iterate(evict="c")
    corrupt(served.memory.tables)
    with pytest.raises(LawBroken) as error:
        served.memory.check_integrity()
    assert error.value.law == "conservation"

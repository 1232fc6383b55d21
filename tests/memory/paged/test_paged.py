"""Paged memory by hand: blocks taken as requests grow, blocks set aside, eviction, refusals and broken books."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from helpers import asks, breach, refusal
from memory.paged.scene import SIZE, PagedScene

from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.places import Pages
from minifuse.core.plan import Move, Proposal, Reason, Span, Work
from minifuse.core.report import KVUsage
from minifuse.core.request import Sequence
from minifuse.memory import Paged
from minifuse.memory.paged.tables import Tables


def test_a_block_is_taken_when_a_request_grows_into_it() -> None:
    served = PagedScene()
    served.ask("a", 6)
    assert served.blocks(served.iterate(admit="a")) == [(0, 1)]
    assert served.memory.usage() == KVUsage(6, 8, 24, 0)
    served.ask("b", 3)
    assert served.blocks(served.iterate("a", admit="b")) == [(2,), (0, 1)]
    assert served.memory.usage() == KVUsage(7 + 3, 12, 24, 0)
    assert served.blocks(served.iterate("a", "b")) == [(0, 1), (2,)]  # the 8th token and the 4th: both are full
    assert served.blocks(served.iterate("a", "b")) == [(0, 1, 3), (2, 4)]  # the next, anywhere
    served.memory.release(served.sequences["a"], 0.0)
    served.memory.release(served.sequences["b"], 0.0)
    assert served.memory.usage() == KVUsage(0, 0, 24, 0)
    served.memory.release(Sequence(asks("never admitted")), 0.0)


def test_the_watermark_is_kept_for_running_sequences() -> None:
    served = PagedScene(watermark=0.5)
    assert served.memory.room().admit(served.ask("a", 20), growing=True) is None
    served.iterate(admit="a")  # no other is on the device: five of six blocks may be taken
    served.memory.release(served.sequences["a"], 0.0)
    served.ask("b", 4)
    served.iterate(admit="b")
    room = served.memory.room()
    assert room.admit(served.ask("c", 12), growing=True) == Reason(
        "memory-full",
        "c",
        "not admitted: needs 3 blocks of 4 KV tokens and must leave 3 to running requests, 5 are free",
    )
    assert room.admit(served.ask("d", 8), growing=True) is None
    assert room.extend(served.sequences["b"]) is None  # running sequences may have what is kept for them
    assert served.memory.room().admit(served.ask("e", 4, new=17)) is None  # five blocks set aside: no watermark


def test_the_blocks_of_the_longest_answer_are_set_aside_by_number() -> None:
    served = PagedScene()
    a = served.ask("a", 4, new=9)  # at most 12 tokens of KV
    assert served.blocks(served.iterate(admit="a", growing=False)) == [(0,)]
    assert served.memory.usage() == KVUsage(4, 12, 24, 0)
    room = served.memory.room()
    full = Reason("memory-full", "b", "not admitted: needs 4 blocks of 4 KV tokens, 3 are free")
    assert room.admit(served.ask("b", 4, new=13)) == full
    assert room.admit(served.ask("c", 12), growing=True) is None  # nor may a growing newcomer have it
    assert room.admit(served.ask("d", 4), growing=True) == Reason(
        "memory-full", "d", "not admitted: needs 1 block of 4 KV tokens, 0 are free"
    )
    served.iterate(admit="c")
    while len(a) < a.request.max_length:
        served.iterate("a")
    assert served.memory.usage() == KVUsage(24, 24, 24, 0)
    assert served.memory.room().extend(served.sequences["c"]) == Reason(
        "memory-full", "c", "has no room for its next token: needs 1 block, 0 are free"
    )


# --- eviction


def test_adjacent_blocks_that_stay_adjacent_are_swapped_in_one_move() -> None:
    served = PagedScene(preemption="swap")
    served.ask("a", 10)
    served.iterate(admit="a")
    assert served.iterate(evict="a").moves == (Move("swap_out", 0, 0, 10, target_tier="host"),)
    assert served.memory.usage() == KVUsage(0, 0, 24, 10)
    placement = served.iterate(admit="a")  # the blocks last given back are the first to be handed out
    assert placement.moves == (
        Move("swap_in", 0, 8, 4, "host"),
        Move("swap_in", 4, 4, 4, "host"),
        Move("swap_in", 8, 0, 2, "host"),
    )
    assert served.blocks(placement) == [(2, 1, 0)]
    assert served.memory.usage() == KVUsage(11, 12, 24, 0)


def test_an_eviction_makes_room_in_the_same_proposal() -> None:
    served = PagedScene(2, preemption="swap")
    served.ask("a", 8)
    served.iterate(admit="a")
    served.ask("b", 8)
    placement = served.iterate(admit="b", evict="a")
    assert (served.blocks(placement), placement.moves) == ([(1, 0)], (Move("swap_out", 0, 0, 8, target_tier="host"),))
    assert served.memory.usage() == KVUsage(8, 8, 8, 8)


@pytest.mark.parametrize(("host", "kept"), [(None, 6), (8, 6), (7, 0), (4, 0)])
def test_the_host_keeps_what_it_has_blocks_for(host: int | None, kept: int) -> None:
    served = PagedScene(preemption="swap", host=host)
    assert served.memory.host_capacity == (24 if host is None else host // SIZE * SIZE)
    a = served.ask("a", 6)
    served.iterate(admit="a")
    served.iterate(evict="a")
    assert served.memory.usage() == KVUsage(0, 0, 24, kept)
    assert served.memory.missing(a) == (Span(kept, 7),)
    served.memory.release(a, 0.0)  # abandoned while its KV is on the host
    served.memory.check_integrity()
    assert served.memory.usage() == KVUsage(0, 0, 24, 0)


# --- refusals and broken books


@pytest.mark.parametrize(
    ("capacity", "options", "parts"),
    [
        (3, {}, ("blocks of 4 tokens, and it holds 3", "memory.block_size", "--kv-memory")),
        (24, {"transfer": "overlapped"}, ("memory.transfer is overlapped", "memory.preemption=swap", "leave memory.t")),
        (24, {"host": 8}, ("memory.host is 8", "memory.preemption=swap", "leave memory.host out")),
        (24, {"preemption": "swap", "host": 3}, ("memory.host is 3, less than a block of 4 tokens", "raise it")),
    ],
)
def test_options_that_cannot_be_had_are_refused(capacity: int, options: dict[str, Any], parts: tuple[str, ...]) -> None:
    with refusal(UsageError, *parts):
        Paged(capacity, Paged.Options(SIZE, **options))


def test_overlapped_swaps_are_made_layer_by_layer_before_the_first_wave_in_plan_order() -> None:
    """Block 1 is b's and becomes a's in the same plan: out comes before in, and before a's token is written."""
    served = PagedScene(3, preemption="swap", transfer="overlapped")
    served.ask("a", 4), served.ask("b", 8)
    served.iterate(admit="a")
    assert served.iterate(evict="a", admit="b").moves == (
        Move("swap_out", 0, 0, 4, target_tier="host", moment="before"),
    )
    placement = served.iterate(evict="b", admit="a")
    assert placement.moves == (
        Move("swap_out", 0, 4, 8, target_tier="host", moment="before"),
        Move("swap_in", 0, 4, 4, "host", moment="before"),
    )
    assert served.blocks(placement) == [(1, 0)]


def test_a_copy_of_a_shared_block_keeps_its_turn_among_overlapped_swaps_and_is_made_first_without_them() -> None:
    """The block that the copy goes to is the one that is swapped out."""
    served = PagedScene(8, share=True, preemption="swap", transfer="overlapped")
    served.ask("a", (1, 2, 3, 4, 5, 6)), served.ask("b", (1, 2, 3, 4, 5, 6)), served.ask("c", 4)
    served.ask("d", (1, 2, 3, 4, 5, 6))
    served.iterate(admit="ac")
    assert served.iterate(admit="b", evict="c").moves == (
        Move("swap_out", 8, 0, 4, target_tier="host", moment="before"),
        Move("copy", 4, 8, 1, moment="before"),
    )
    assert [(move.kind, move.moment) for move in served.iterate(admit="d").moves] == [("copy", "first")]


def test_a_request_that_never_fits_is_refused() -> None:
    memory = Paged(6 * SIZE + 3, Paged.Options(SIZE))
    memory.check(asks("a", 4, 21))  # 24 tokens: the three slots that make no block do not help
    with refusal(RequestRefused, "'a' may need 7 blocks of 4 KV tokens and memory has 6", "shorten", "--kv-memory"):
        memory.check(asks("a", 4, 22))


def test_prompts_of_a_request_are_refused_together() -> None:
    memory = Paged(24, Paged.Options(SIZE))
    prompts = [asks(f"g/{i}", 4, 10, group="g") for i in range(2)]  # 13 tokens: 4 blocks each
    memory.check(prompts[0])
    with refusal(RequestRefused, "'g' with its 2 prompts may need 8 blocks", "memory has 6"):
        memory.check(*prompts)


@pytest.mark.parametrize(
    ("law", "what", "proposal"),
    [
        ("budget", "the proposal does not fit", {"admit": "bc"}),
        ("budget", "has no room for its next token: needs 5 blocks", {"admit": "b", "work": ("a", 6, 28)}),
    ],
)
def test_a_proposal_that_cannot_be_placed_changes_nothing(law: str, what: str, proposal: dict[str, Any]) -> None:
    served = PagedScene(preemption="swap")
    served.ask("a", 6)
    served.iterate(admit="a")
    served.ask("b", 8)
    served.ask("c", 12)
    before = pickle.dumps(vars(served.memory))
    work = (Work(*proposal["work"]),) if "work" in proposal else ()
    admit, evict = (tuple(served.sequences[n] for n in proposal.get(key, "")) for key in ("admit", "evict"))
    with breach(law, what):
        served.memory.place(Proposal(work, admit, evict=evict, growing=True), 0.0)
    assert pickle.dumps(vars(served.memory)) == before


def table(tables: Tables, name: str, *blocks: int) -> None:
    tables.blocks.pages[name] = Pages(blocks, SIZE)


# a has blocks (0, 1), b has (2,), and c has (0,) on the host.
CORRUPTIONS: dict[str, Callable[[Tables], object]] = {
    "a block lost": lambda tables: table(tables, "a", 0),
    "a block twice in a table": lambda tables: table(tables, "a", 0, 1, 0),
    "two tables, one block": lambda tables: table(tables, "b", 0),
    "given back and kept": lambda tables: tables.device.give_back(0),
    "held and free": lambda tables: tables.device.free.append(0),
    "neither held nor free": lambda tables: tables.device.free.pop(),
    "a host block lost": lambda tables: tables.away.update(c=()),
    "a host block free too early": lambda tables: tables.host.give_back(tables.away["c"][0]),
    "promised what is not there": lambda tables: tables.blocks.promise("a", 9),
    "a sum of promises that is not theirs": lambda tables: tables.blocks.promised.update(a=1),
    "a sequence on both tiers": lambda tables: tables.away.update(a=()),
    "a sequence on no tier": lambda tables: tables.cached.update(d=0),
    "KV without an owner": lambda tables: tables.cached.pop("b"),
    "beyond its blocks": lambda tables: tables.cached.update(a=9),
    "beyond its blocks on the host": lambda tables: tables.cached.update(c=5),
    "less than was written": lambda tables: tables.cached.update(a=5),
    "less than was swapped out": lambda tables: tables.cached.update(c=3),
    "a copy that no plan waits for": lambda tables: tables.sources.update(a=[(tables.device, 0)]),
    "a return that no plan waits for": lambda tables: tables.sources.update(c=[(tables.host, 0)]),
    "written slots miscounted": lambda tables: setattr(tables, "num_written", 1),
}


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_corrupt_books_are_noticed(corrupt: Callable[[Tables], object]) -> None:
    served = PagedScene(preemption="swap")
    for name, prompt in (("a", 6), ("b", 4), ("c", 4)):
        served.ask(name, prompt)
    served.iterate(admit="abc")
    served.iterate(evict="c")
    corrupt(served.memory.tables)
    with breach("conservation"):
        served.memory.check_integrity()

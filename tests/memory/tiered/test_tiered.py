"""Tiered memory by hand: KV that outlives requests, on two tiers (thesis, 3.4.3)."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import asks, breach, refusal
from memory.tiered.scene import SIZE, TieredScene

from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.places import Pages, Reuse
from minifuse.core.plan import Move, Proposal, Span, Work
from minifuse.core.report import KVUsage
from minifuse.core.request import Sequence
from minifuse.memory import Tiered


def _swap_out(device: int, host: int, moment: Any = "behind", tokens: int = SIZE) -> Move:
    return Move("swap_out", device * SIZE, host * SIZE, tokens, target_tier="host", moment=moment)


def _swap_in(host: int, device: int, moment: Any = "before", tokens: int = SIZE) -> Move:
    return Move("swap_in", host * SIZE, device * SIZE, tokens, source_tier="host", moment=moment)


def test_a_conversation_keeps_its_kv_and_the_next_request_uses_it() -> None:
    scene = TieredScene()
    scene.ask("a", 6, conversation="c")
    _, work = scene.iterate(admit="a")
    assert work == (Work("a", 0, 6),)
    scene.iterate("a")
    scene.end("a", 1.0)  # 8 tokens, of which the last has not been computed
    assert scene.memory.usage() == KVUsage(0, 0, 24, kept=7)
    scene.ask("b", 3, conversation="c")
    assert scene.memory.missing(scene.sequences["b"]) == (Span(7, 11),)
    placement, work = scene.iterate(admit="b", now=2.0)
    assert work == (Work("b", 7, 11),)
    assert placement.reused == (Reuse("b", 7, 0),)
    assert placement.places == (Pages((0, 1, 2), SIZE),)
    assert scene.memory.usage() == KVUsage(11, 12, 24)


def test_chunks_are_copied_ahead_from_the_leading_end_when_few_blocks_are_available() -> None:
    """Eight blocks: below two available, copies begin, with the conversation that has been idle for longest."""
    scene = TieredScene(8, ahead=0.25)
    scene.turn("a", "old", 12, 0.0)
    assert scene.ahead(1.0) == ()  # five are free
    scene.turn("b", "new", 16, 10.0)
    assert scene.ahead(20.0) == (_swap_out(0, 0),)  # one is free: one more is to be available
    assert (scene.tiers("old"), scene.tiers("new")) == ("bdd", "dddd")
    assert scene.memory.usage() == KVUsage(0, 0, 32, kept=28)  # what is on both tiers counts on the device
    assert scene.ahead(20.0) == ()


def test_a_copy_on_the_host_leaves_the_block_usable_until_it_is_overwritten() -> None:
    scene = TieredScene(4, ahead=1.0)
    scene.turn("a", "c", 8, 0.0)
    scene.ahead(1.0)
    assert scene.tiers("c") == "bb"
    scene.ask("b", 1, conversation="c")
    placement, _ = scene.iterate(admit="b", now=2.0)
    assert (placement.moves, placement.reused) == ((), (Reuse("b", 8, 0),))  # nothing is swapped in
    scene.end("b", 3.0)
    assert scene.memory.tiers.host.num_free == 16  # it may have grown: its copies are gone
    scene.ahead(4.0)
    scene.ask("other", 8)
    placement, _ = scene.iterate(admit=["other"], now=5.0)  # type: ignore[arg-type]
    assert placement.moves == ()  # a block was free, and another had a copy: no copy is waited for
    assert placement.places == (Pages((3, 0), SIZE),)
    assert scene.tiers("c") == "hbb"


def test_what_is_on_the_host_is_swapped_in_layer_by_layer_and_what_was_dropped_is_computed() -> None:
    """The most general case of 3.4.3.4: a dropped head, a middle on the host, a tail on the device, and a new prompt.

    Two spans of queries, one block table.
    """
    scene = TieredScene(4, host=1, ahead=0.0)
    scene.turn("a", "c", 14, 0.0)
    scene.ask("x", 8)
    placement, _ = scene.iterate(admit="x", now=1.0)
    assert placement.moves == (_swap_out(1, 0, "before"),)  # the host has room for one, and chunk 0 is worth less
    assert scene.tiers("c") == "-hdd"
    scene.end("x", 2.0)
    scene.ask("b", 2, conversation="c")
    assert scene.memory.missing(scene.sequences["b"]) == (Span(0, 4), Span(14, 16))
    placement, work = scene.iterate(admit="b", now=3.0)
    assert work == (Work("b", 0, 4), Work("b", 14, 16))
    assert placement.places[0] is placement.places[1]
    blocks = placement.places[0].blocks  # type: ignore[union-attr]
    assert blocks[2:] == (2, 3)
    assert placement.moves == (_swap_in(0, blocks[1]),)
    assert placement.reused == (Reuse("b", 6, 4),)
    assert scene.memory.usage() == KVUsage(16, 16, 16)
    assert scene.memory.tiers.host.num_free == 1  # what is swapped in leaves the host


def test_when_the_host_is_full_the_same_value_decides_what_is_dropped() -> None:
    """c was idle ten times as long as d: its first chunk is worth least, then its second, then the first of d."""
    scene = TieredScene(6, host=2, ahead=1.0)
    scene.turn("a", "c", 8, 0.0)
    scene.ahead(1.0)
    assert scene.tiers("c") == "bb"
    scene.ask("x", 16)
    scene.iterate(admit="x", now=2.0)
    assert scene.tiers("c") == "bb"
    scene.end("x", 3.0)
    scene.turn("b", "d", 24, 90.0)  # overwrites both blocks of c
    assert (scene.tiers("c"), scene.tiers("d")) == ("hh", "dddddd")
    moves = scene.ahead(100.0)
    assert len(moves) == 2  # both chunks of c are dropped for the first two of d
    assert (scene.tiers("c"), scene.tiers("d")) == ("", "bbdddd")
    scene.turn("y", "e", 4, 101.0)
    # The first chunk of d is on the host alone. Nothing on the device is worth more than that.
    assert (scene.tiers("d"), scene.tiers("e")) == ("hbdddd", "d")


def test_a_chunk_on_its_way_is_neither_given_out_nor_copied_again() -> None:
    scene = TieredScene(2, ahead=1.0)
    scene.turn("a", "c", 8, 0.0)
    moves = scene.ahead(1.0, land=False)
    assert scene.tiers("c") == ">d"  # one at a time, of so few
    assert scene.ahead(1.0, land=False) == ()
    scene.ask("x", 8)
    full = scene.memory.room().admit(scene.sequences["x"], growing=True)
    assert full is not None
    assert full.text == "not admitted: needs 2 chunks of 4 KV tokens, 1 is free"
    scene.memory.landed(moves, 2.0)
    assert scene.memory.room().admit(scene.sequences["x"], growing=True) is None


def test_a_conversation_goes_on_while_its_chunks_are_on_their_way() -> None:
    """It reads them where they are. It may have written more since: the copies are thrown away."""
    scene = TieredScene(4, ahead=1.0)
    scene.turn("a", "c", 6, 0.0)
    moves = scene.ahead(1.0, land=False)
    scene.ask("b", 1, conversation="c")
    placement, _ = scene.iterate(admit="b", now=1.5)
    assert placement.reused == (Reuse("b", 6, 0),)
    scene.end("b", 1.6)
    scene.memory.landed(moves, 2.0)
    scene.memory.check_integrity()
    assert scene.tiers("c") == "bd"  # the first has not changed; the second has grown since
    assert scene.memory.tiers.host.num_free == 15


def test_blocks_are_kept_for_running_sequences() -> None:
    """A newcomer must leave a tenth of the device, unless it is alone."""
    scene = TieredScene(10, reserve=0.1)
    scene.ask("a", 40, 1)
    assert scene.memory.room().admit(scene.sequences["a"], growing=True) is None
    scene.ask("b", 4)
    scene.iterate(admit="b")
    scene.ask("c", 36)
    full = scene.memory.room().admit(scene.sequences["c"], growing=True)
    assert full is not None
    assert full.text == "not admitted: needs 9 chunks of 4 KV tokens and must leave 1 to running requests, 9 are free"
    scene.ask("d", 32)
    assert scene.memory.room().admit(scene.sequences["d"], growing=True) is None


def test_newcomers_of_one_iteration_leave_the_reserve_as_well() -> None:
    scene = TieredScene(10, reserve=0.3)
    scene.ask("a", 20)
    scene.ask("b", 20)
    room = scene.memory.room()
    assert room.admit(scene.sequences["a"], growing=True) is None
    assert room.admit(scene.sequences["b"], growing=True) is not None


def test_what_is_promised_is_not_copied_ahead() -> None:
    """While it is being copied it could not be given out."""
    scene = TieredScene(4, ahead=1.0)
    scene.turn("a", "c", 8, 0.0)
    scene.ask("x", 8, new=9)
    scene.iterate(admit="x", now=1.0, growing=False)  # two blocks, and two promised
    assert scene.ahead(2.0) == ()


def test_a_partial_chunk_that_was_dropped_is_found_whole_with_another() -> None:
    """d goes on as c has, and further; what c has of the same text counts to its end."""
    scene = TieredScene(8, share=True, host=0, ahead=0.0)
    scene.turn("a", "c", 6, 0.0)
    scene.turn("b", "d", 12, 1.0)
    owner = scene.memory.books.owners["conversation c"]
    scene.memory.tiers.drop(owner.chunks[1])
    scene.ask("e", tuple(range(6, 14)), conversation="c")
    assert scene.memory.missing(scene.sequences["e"]) == (Span(12, 14),)
    placement, _ = scene.iterate(admit="e", now=2.0)
    assert placement.reused == (Reuse("e", 12, 0),)


def test_texts_that_begin_alike_share_chunks() -> None:
    scene = TieredScene(8, share=True)
    scene.turn("a", "c", 10, 0.0)
    scene.ask("b", (*range(8), 99, 98), conversation="d")
    assert scene.memory.missing(scene.sequences["b"]) == (Span(8, 10),)
    placement, _ = scene.iterate(admit="b", now=1.0)
    assert placement.reused == (Reuse("b", 8, 0),)
    assert placement.places[0].blocks[:2] == (0, 1)  # type: ignore[union-attr]
    scene.end("b", 2.0)
    assert scene.memory.usage().kept == 10 + 2


def test_the_last_token_is_never_shared() -> None:
    scene = TieredScene(8, share=True)
    scene.turn("a", "c", 8, 0.0)
    scene.ask("b", tuple(range(8)), conversation="d")
    assert scene.memory.missing(scene.sequences["b"]) == (Span(4, 8),)


def test_a_shared_chunk_stays_while_any_of_its_owners_uses_it() -> None:
    scene = TieredScene(3, share=True, ahead=0.0, host=0)
    scene.turn("a", "c", 8, 0.0)
    scene.ask("b", (*range(8), 99), conversation="d")
    scene.iterate(admit="b", now=1.0)
    scene.ask("x", 4)
    full = scene.memory.room().admit(scene.sequences["x"], growing=True)
    assert full is not None
    assert "0 are free" in full.text
    scene.end("b", 2.0)
    assert (scene.tiers("c"), scene.tiers("d")) == ("dd", "ddd")
    scene.iterate(admit="x", now=3.0)
    assert (scene.tiers("c"), scene.tiers("d")) == ("", "-dd")  # both have lost it; c has nothing of its own left
    scene.ask("e", 1, conversation="c")
    assert scene.memory.missing(scene.sequences["e"]) == (Span(0, 4), Span(8, 9))  # and finds what d has


@pytest.mark.parametrize(
    ("slots", "options", "part"),
    [(3, {"chunk": 4}, "memory.chunk"), (8, {"chunk": 4, "host": 3}, "memory.host is 3")],
)
def test_memory_that_can_hold_nothing_is_refused(slots: int, options: dict[str, int], part: str) -> None:
    with refusal(UsageError, part):
        Tiered(slots, Tiered.Options(**options))


def test_what_never_fits_is_refused() -> None:
    memory = Tiered(12, Tiered.Options(chunk=4))
    memory.check(asks("a", 8, 5))
    with refusal(RequestRefused, "'a'", "4 chunks", "has 3"):
        memory.check(asks("a", 8, 6))


def test_what_cannot_be_placed_breaks_a_law_and_changes_nothing() -> None:
    scene = TieredScene(2)
    scene.ask("a", 8)
    scene.iterate(admit="a")
    scene.ask("b", 4)
    before = scene.memory.usage()
    b = scene.sequences["b"]
    for proposal, law in (
        (Proposal((Work("b", 0, 4),), (b,), growing=True), "budget"),
        (Proposal((Work("a", 8, 9),)), "budget"),
    ):
        with breach(law):
            scene.memory.place(proposal, 0.0)
        scene.memory.check_integrity()
        assert scene.memory.usage() == before
    scene.memory.release(Sequence(asks("never admitted")), 0.0)


def test_what_a_plan_that_is_given_up_was_to_swap_in_is_dropped() -> None:
    """An interrupted run releases b while its two chunks are still on their way to the device."""
    scene = TieredScene(3)
    scene.turn("a", "c", 2 * SIZE, 0.0)
    scene.turn("x", "d", 2 * SIZE, 1.0)
    assert scene.tiers("c") == "hd"
    scene.ask("b", 3, conversation="c")
    b = scene.sequences["b"]
    work = tuple(Work("b", *span) for span in scene.memory.missing(b))
    placement = scene.memory.place(Proposal(work, (b,), growing=True), 2.0)
    assert [move.kind for move in placement.moves] == ["swap_out", "swap_in", "swap_out"]
    scene.memory.release(b, 3.0)
    scene.memory.check_integrity()
    assert scene.memory.usage().reserved == 0
    assert scene.tiers("c") == "-d"
    assert scene.memory.books.num_available == 3

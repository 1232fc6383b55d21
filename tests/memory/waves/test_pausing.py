"""Back-pressure: which sequences stay, go beyond the device, pause and come back (`overflow=pause`)."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import CROWD, answers_of, asks, expected_answers, make_engine, refusal, run_all

from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.places import Pages
from minifuse.core.plan import Move, Plan, Proposal, Span, Work
from minifuse.core.report import KVUsage, StepReport
from minifuse.core.request import Request, Sequence
from minifuse.memory.waves.waves import Waves

LONGEST = max(request.max_cached for request in CROWD)


class Grown:
    """A memory whose sequences are admitted with what they need now; none is evicted unless a test says so."""

    def __init__(self, capacity: int, **options: Any) -> None:
        self.memory = Waves(capacity, Waves.Options(**{"block_size": 1, **options}))
        self.running: list[Sequence] = []

    def round(self, *newcomers: Request, evict: tuple[str, ...] = (), back: tuple[Sequence, ...] = ()) -> Plan:
        """Compute what every running sequence misses, in order, as `GrowingFill` does."""
        leaving = tuple(one for one in self.running if one.id in evict)
        self.running = [one for one in self.running if one.id not in evict]
        room = self.memory.room()
        for one in leaving:
            room.evict(one)
        assert [room.extend(one) for one in self.running] == [None] * len(self.running)
        admit = (*back, *[Sequence(request) for request in newcomers])
        assert [room.admit(one, growing=True) for one in admit] == [None] * len(admit)
        self.running += admit
        work = tuple(Work(one.id, *span) for one in self.running for span in self.memory.missing(one))
        proposal = Proposal(work, admit, evict=leaving, growing=True, room=room)
        placed = self.memory.place(proposal, 0.0)
        plan = Plan(0, 0, work, placed.places, moves=placed.moves, reused=placed.reused)
        self.placed = placed
        self.memory.commit(plan, [one.id for one in self.running], 0.0)
        for one in self.running:
            one.tokens.append(0)
        self.memory.check_integrity()
        return plan

    def full(self) -> str:
        """Return why the next tokens of all running sequences do not fit together."""
        room = self.memory.room()
        return next(filter(None, [room.extend(one) for one in self.running])).text


def test_the_newest_pauses_and_returns_with_one_token() -> None:
    """6 slots: a and b have 3 each. b pauses, its 3 tokens go to the host; they are uploaded when it returns."""
    rounds = Grown(6)
    rounds.round(asks("a", 2, 5), asks("b", 2, 5))
    rounds.round()
    assert "needs 1 block, 0 are free" in rounds.full()
    b = rounds.running[1]
    plan = rounds.round(evict=("b",))
    home = rounds.memory.books.homes.places["b"].offset
    out = {"target_tier": "host", "moment": "before"}  # its slots are 2 and 3, from its prompt, and 5
    assert plan.moves == (Move("offload", 2, home, 2, **out), Move("offload", 5, home + 2, 1, **out))
    assert rounds.memory.usage() == KVUsage(4, 4, 6, host=3)
    rounds.memory.release(rounds.running.pop(0), 0.0)
    plan = rounds.round(back=(b,))
    assert [*plan.work] == [Work("b", 3, 4)]
    assert plan.reused == (("b", 0, 3),)
    assert sum(move.num_tokens for move in plan.moves if move.kind == "upload") == 3
    assert rounds.memory.usage() == KVUsage(4, 4, 6, host=0)


def test_kv_that_is_on_the_host_is_not_offloaded_again() -> None:
    rounds = Grown(6)
    rounds.round(asks("a", 2, 8), asks("b", 2, 8))
    rounds.round()
    b = rounds.running[1]
    rounds.round(evict=("b",))
    rounds.memory.release(rounds.running.pop(0), 0.0)
    rounds.round(back=(b,))
    rounds.round(asks("c", 1, 3))
    plan = rounds.round(evict=("b",))
    assert sum(move.num_tokens for move in plan.moves) == 2  # the two tokens since it came back


def test_the_host_attends_the_newest_that_decode() -> None:
    """6 slots, and 4 tokens of the host: b goes down with 3, and is attended where it lies, from its first block on."""
    rounds = Grown(6, turns="host", beyond=4, passes=1)
    rounds.round(asks("a", 2, 9), asks("b", 2, 9))
    rounds.round()
    plan = rounds.round()
    home = rounds.memory.books.homes.places["b"]
    assert plan.places[1] == Pages(tuple(range(home.offset, home.offset + home.capacity)), 1, "host")
    assert [place.tier for place in plan.places] == ["device", "host"]
    assert rounds.placed.waves == (Span(0, 1), Span(1, 2))
    assert {(move.kind, move.moment, move.wave) for move in plan.moves} == {("offload", "before", 0)}
    assert rounds.memory.usage() == KVUsage(4, 4, 6, host=4)
    assert rounds.full().endswith(
        "the host attends 4 KV tokens at most, of answers alone, 0 are left"
    )  # and a, with b, exceeds 6 slots
    plan = rounds.round(evict=("b",))
    assert not plan.moves  # its KV is there already


def test_prompts_are_computed_on_the_device() -> None:
    """6 slots: a and b have 3 each. The newcomer's prompt takes those of b, which decodes."""
    rounds = Grown(6, turns="host", passes=1)
    rounds.round(asks("a", 2, 9), asks("b", 2, 9))
    rounds.round()
    plan = rounds.round(asks("c", 2, 9))
    assert [(work.sequence, place.tier) for work, place in zip(plan.work, plan.places, strict=True)] == [
        ("a", "device"),
        ("b", "host"),
        ("c", "device"),
    ]
    assert rounds.placed.waves == (Span(0, 1), Span(1, 2), Span(2, 3))


def test_the_oldest_come_up_when_the_device_has_room() -> None:
    rounds = Grown(6, turns="host", passes=1)
    rounds.round(asks("a", 2, 9), asks("b", 2, 9))
    for _ in range(2):
        rounds.round()
    assert rounds.memory.way.beyond == {"b": 4}
    rounds.memory.release(rounds.running.pop(0), 0.0)
    plan = rounds.round()
    assert [place.tier for place in plan.places] == ["device"]
    assert sum(move.num_tokens for move in plan.moves if move.kind == "upload") == 4
    assert not rounds.memory.way.beyond


def test_two_passes_have_half_of_the_hosts_tokens_each() -> None:
    """Work a | b c d e, of which the host attends the last four, of 4 tokens each: the second pass begins with d."""
    rounds = Grown(10, turns="host", passes=2)
    rounds.round(asks("a", 2, 9), *[asks(name, 2, 9) for name in "bcde"])
    rounds.round()
    rounds.round()
    tiers = [place.tier for place in rounds.placed.places]
    first = tiers.index("host")
    count = len(tiers) - first
    assert tiers == ["device"] * first + ["host"] * count
    cut = first + count // 2
    assert rounds.placed.passes == (Span(0, cut), Span(cut, 5))
    assert rounds.placed.waves == (Span(0, first), Span(first, cut), Span(cut, 5))


@pytest.mark.parametrize(("split", "passes"), [(10, 2), (11, 0)])
def test_two_passes_from_so_many_tokens_on_the_host_on(split: int, passes: int) -> None:
    """In the fourth round b and c have 5 tokens each there."""
    rounds = Grown(9, turns="host", split=split)
    rounds.round(*[asks(name, 2, 9) for name in "abc"])
    for _ in range(3):
        rounds.round()
    assert rounds.memory.way.beyond == {"b": 5, "c": 5}
    assert len(rounds.placed.passes) == passes


def test_what_passes_through_shared_slots() -> None:
    """12 slots of 2 layers, half of them shared: 6 that stay, and 12 of one layer. b and c pass in two waves."""
    rounds = Grown(12, turns="layers", layers=2, buffer=0.5)
    assert (rounds.memory.capacity, rounds.memory.shared_capacity) == (6, 12)
    rounds.round(asks("a", 1, 9), asks("b", 1, 9), asks("c", 1, 9))
    rounds.round()
    plan = rounds.round()
    assert [place.tier for place in plan.places] == ["device", "device", "shared"]
    plan = rounds.round()
    assert [place.tier for place in plan.places] == ["device", "shared", "shared"]
    assert plan.places[1:] == (Pages((0, 1, 2, 3), 1, "shared"), Pages((8, 9, 10, 11), 1, "shared"))
    assert rounds.placed.waves == (Span(0, 1), Span(1, 2), Span(2, 3))
    assert [(m.kind, m.source_tier, m.target_tier, m.num_tokens, m.moment, m.wave) for m in plan.moves] == [
        ("offload", "device", "host", 1, "before", 0),  # b leaves the slots 1, and 4 and 5
        ("offload", "device", "host", 2, "before", 0),
        ("upload", "host", "shared", 3, "before", 1),
        ("offload", "shared", "host", 1, "after", 1),
        ("upload", "host", "shared", 3, "before", 2),
        ("offload", "shared", "host", 1, "after", 2),
    ]


def test_one_that_a_trial_brings_up_may_be_evicted_in_it() -> None:
    """c outgrows the shared slots, and comes up to the device; a newcomer of a higher level then displaces it."""
    rounds = Grown(10, turns="layers", layers=2, buffer=0.3)
    rounds.round(asks("a", 1, 9), asks("c", 5, 9))
    rounds.round()
    rounds.memory.release(rounds.running.pop(0), 0.0)
    c = rounds.running[0]
    room = rounds.memory.room()
    assert room.extend(c) is None
    assert room.beyond == {}
    free = room.count.free
    room.evict(c)
    assert room.count.free == free + 7


def test_one_without_work_in_the_last_plan_may_go_beyond_the_device() -> None:
    """A policy may compute prompts alone: a and b decode, and have no work in the plan of c's prompt."""
    rounds = Grown(6, turns="host", passes=1)
    rounds.round(asks("a", 1, 9), asks("b", 1, 9))
    rounds.round()
    running, rounds.running = rounds.running, []
    rounds.round(asks("c", 2, 9))
    rounds.running = [*running, *rounds.running]
    assert [*rounds.memory.way.newest()] == ["c", "b", "a"]
    rounds.round()
    assert rounds.memory.way.beyond.keys() == {"c"}


def test_a_newcomer_without_room_sends_nobody_beyond_the_device() -> None:
    """8 slots hold a with 3 and b with 4 tokens. The host may have those of b, and c needs 6: one too many."""
    rounds = Grown(8, turns="host", beyond=4, passes=1)
    rounds.round(asks("a", 1, 9), asks("b", 2, 9))
    rounds.round()
    room = rounds.memory.room()
    assert [room.extend(one) for one in rounds.running] == [None, None]
    before = dict(room.beyond), room.left, room.count.free
    assert room.admit(Sequence(asks("c", 6, 3)), growing=True) is not None
    assert (dict(room.beyond), room.left, room.count.free) == before


def test_a_sequence_that_outgrows_the_shared_slots_leaves_them() -> None:
    """10 slots of 2 layers: 7 that stay, and 6 of one layer. c grows to 7 tokens, and comes up when a has ended."""
    rounds = Grown(10, turns="layers", layers=2, buffer=0.3)
    rounds.round(asks("a", 1, 9), asks("c", 5, 9))
    rounds.round()
    assert rounds.memory.way.beyond == {"c": 6}
    told = rounds.full()
    assert "needs 7 blocks on the device, 4 are free" in told
    assert "layers share slots for 6 tokens of each sequence, and take 80 in an iteration at most, 74 are left" in told
    rounds.memory.release(rounds.running.pop(0), 0.0)
    plan = rounds.round()
    assert [(place.tier, place.capacity) for place in plan.places] == [("device", 7)]


# --- in the engine


def _run(requests: list[Request], **options: Any) -> tuple[Any, list[StepReport]]:
    memory = Waves(2 * LONGEST, Waves.Options(block_size=2, **options))
    engine = make_engine("fluid", memory=memory, model="llama")
    return engine, run_all(engine, requests)


@pytest.mark.parametrize(
    ("options", "tiers"),
    [
        ({}, {"device"}),
        ({"turns": "host"}, {"device", "host"}),
        ({"turns": "host", "passes": 2}, {"device", "host"}),
        ({"turns": "host", "beyond": LONGEST}, {"device", "host"}),
        ({"turns": "layers", "layers": 2, "buffer": 0.5}, {"device", "shared"}),
    ],
)
def test_answers_are_exact(options: dict[str, Any], tiers: set[str]) -> None:
    engine, steps = _run(CROWD, **options)
    assert answers_of(engine) == expected_answers("llama", CROWD)
    assert {tier for step in steps for tier in step.plan.tiers} == tiers
    assert bool(options.get("passes")) == any(step.plan.layout.passes for step in steps)


def test_what_the_host_cannot_attend_pauses() -> None:
    _, alone = _run(CROWD)
    _, few = _run(CROWD, turns="host", beyond=LONGEST)
    _, all_of_them = _run(CROWD, turns="host")
    evicted = [sum(len(step.plan.evicted) for step in steps) for steps in (alone, few, all_of_them)]
    assert evicted[0] > 0 == evicted[2]
    assert len(alone) > len(few) > len(all_of_them)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"turns": "rest"}, ("memory.turns is rest and memory.overflow is pause", "memory.overflow=rotate")),
        ({"turns": "host", "overflow": "rotate"}, ("memory.overflow is rotate", "memory.overflow=pause")),
        ({"beyond": 5}, ("memory.beyond is 5 and memory.turns is none", "memory.turns=host or memory.turns=layers")),
        ({"passes": 2, "turns": "layers"}, ("memory.passes is 2 and memory.turns is layers", "memory.turns=host")),
        ({"buffer": 0.2}, ("memory.buffer is 0.2 and memory.turns is none", "=layers or memory.overflow=rotate")),
        ({"buffer": 0.7, "overflow": "rotate"}, ("memory.buffer is 0.7", "at most 0.5")),
        ({"layers": 2}, ("memory.layers is 2", "memory.turns=layers")),
        ({"beyond": 5, "overflow": "rotate"}, ("memory.beyond is 5 and memory.overflow is rotate", "leave it out.")),
        ({"passes": 2, "split": 9, "turns": "host"}, ("memory.passes is 2", "memory.split is 9", "leave one")),
        ({"host_dtype": "int8", "turns": "host"}, ("memory.host_dtype is int8", "attends KV as it was written")),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], words: tuple[str, ...]) -> None:
    with refusal(UsageError, *words):
        Waves.Options(**options)


def test_a_request_longer_than_what_takes_turns() -> None:
    """8 slots stay, 16 of one layer are shared; of what exceeds the device, 10 tokens are attended at most."""
    memory = Waves(16, Waves.Options(block_size=1, turns="layers", layers=2, buffer=0.5, beyond=10))
    memory.check(asks("a", 5, 6))
    with refusal(
        RequestRefused, "'b' may need 11 blocks", "it has 8, and 16 of one layer for 10 tokens", "give memory.beyond=11"
    ):
        memory.check(asks("b", 5, 7))

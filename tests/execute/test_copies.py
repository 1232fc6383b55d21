"""What copies beside the waves wait for: by hand, and against the order in which they would be made one by one."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from helpers import breach

from minifuse.contracts.lawful import Lawful
from minifuse.core.places import Pages, Runs
from minifuse.core.plan import Extent, Layout, Move, Placement, Plan, Span, Tier, Work
from minifuse.execute.copies import Copy, copies, timetable


def plan_of(*extents: tuple[int, int], moves: tuple[Move, ...]) -> Plan:
    """A wave for each sequence, whose last token is computed: KV of [first slot, number of tokens]."""
    work = tuple(Work(f"s{i}", tokens - 1, tokens) for i, (_, tokens) in enumerate(extents))
    places = tuple(Extent(offset, tokens) for offset, tokens in extents)
    return Plan(0, 0, work, places, layout=Layout(tuple(Span(i, i + 1) for i in range(len(work)))), moves=moves)


def out(source: int, target: int, tokens: int, **when: Any) -> Move:
    return Move("swap_out", source, target, tokens, target_tier="host", **when)


def into(source: int, target: int, tokens: int, **when: Any) -> Move:
    return Move("swap_in", source, target, tokens, "host", **when)


def test_offload_and_upload_run_beside_the_wave_between_them() -> None:
    """The example of the docstring: a and c in slots 0..4 one after the other, b in 8..12 between them."""
    moves = (
        out(0, 0, 4, moment="after", wave=0),
        into(20, 8, 3, moment="before", wave=1),
        into(10, 0, 3, moment="before", wave=2),
    )
    assert copies(plan_of((0, 4), (8, 4), (0, 4), moves=moves), 1) == [
        Copy(moves[:1], 0, begins=0, needed=2, follows=()),
        Copy(moves[1:2], 0, begins=-1, needed=1, follows=()),
        Copy(moves[2:], 0, begins=0, needed=2, follows=(0,)),
    ]


def test_moves_before_the_first_wave_begin_at_once_in_their_order() -> None:
    """Blocks that are swapped out and given away at once: out before in, in every layer."""
    moves = (out(4, 0, 4, moment="before"), into(8, 4, 4, moment="before"), Move("copy", 0, 12, 2, moment="before"))
    assert copies(plan_of((4, 5), moves=moves), 2) == [
        *(Copy(moves[:1], 0, -1, 0, ()), Copy(moves[1:2], 0, -1, 0, (0,)), Copy(moves[2:], 0, -1, 0, (1,))),
        *(Copy(moves[:1], 1, -1, 1, ()), Copy(moves[1:2], 1, -1, 1, (3,)), Copy(moves[2:], 1, -1, 1, (4,))),
    ]


def test_the_others_are_not_among_them() -> None:
    assert copies(plan_of((0, 4), moves=(into(0, 0, 3), Move("shuffle", 9, 8, 1))), 2) == []


@pytest.mark.parametrize("seed", range(60))
def test_whatever_overtakes_touches_other_slots(seed: int) -> None:
    """A copy begins as early, and is needed as late, as no slot forbids; the order of conflicting ones is kept."""
    plan = _any_plan(random.Random(seed))
    moves, waves, found = plan.moves, plan.waves, copies(plan, 1)
    assert sorted(move for copy in found for move in copy.moves) == sorted(moves)
    touched = [_touched_by_wave(plan, wave) for wave in range(len(waves))]
    for number, copy in enumerate(found):
        moment, wave = copy.moves[0].moment, copy.moves[0].wave
        earlier = [w for w in range(len(waves)) if w < wave or (w == wave and moment == "after")]
        mine = _touched_by_copy(copy)
        if any(move.wave or move.moment == "after" for move in moves):  # otherwise they are simply kept in order
            hindering = [w for w in earlier if _clash(touched[w], mine)]
            before = [i for i, other in enumerate(found[:number]) if _clash(_touched_by_copy(other), mine)]
            assert copy.follows == tuple(before)
            least = max([-1, *hindering, *(found[i].begins for i in before)])
            assert copy.begins == (max(least, wave) if moment == "after" else least)
        later = [w for w in range(len(waves)) if w not in earlier and _clash(touched[w], mine)]
        assert copy.needed == min([wave] if moment == "before" else later, default=len(waves))


@pytest.mark.parametrize("num_layers", [1, 2, 3, 4])
@pytest.mark.parametrize("tier", ["device", "shared"])
def test_what_touches_the_same_slots_keeps_its_order_in_all_layers(tier: Tier, num_layers: int) -> None:
    """Waves in their order, copies by nothing but what the timetable says: streams of a GPU know nothing else."""
    for seed in range(60):
        rng = random.Random(seed)
        plan = _any_plan(rng, tier)
        num_waves, found = len(plan.waves), copies(plan, num_layers)
        begun, needed = timetable(found)
        before: dict[Any, set[Any]] = {}  # what has ended when a copy (a pair) or a wave (its number) begins
        ended: set[Any] = set()  # before what the device computes next
        for turn in range(-1, num_layers * num_waves):
            if turn >= 0:
                for number in needed.get(turn, ()):
                    ended |= {("copy", number), *before["copy", number]}
                before[turn] = set(ended)
                ended.add(turn)
            for number in begun.get(turn, ()):
                followed = [("copy", other) for other in found[number].follows]
                before["copy", number] = ended.union(*({other, *before[other]} for other in followed))
        assert len(before) == num_layers * num_waves + len(found)
        actors = _in_program_order(plan, found, num_layers)
        for place, (second, touched) in enumerate(actors):
            for first, earlier in actors[:place]:
                assert not _clash(earlier, touched) or first in before[second], (seed, first, second)


def _in_program_order(plan: Plan, found: list[Copy], num_layers: int) -> list[tuple[Any, Any]]:
    """All copies and waves, as they would be made one after the other, and the slots that each touches."""
    num_waves = len(plan.waves)
    actors = []
    for layer in range(num_layers):

        def here(slots: tuple[set[Any], set[Any]], layer: int = layer) -> tuple[set[Any], set[Any]]:
            reads, writes = (
                {(tier, slot) if tier == "shared" else (tier, slot, layer) for tier, slot in some} for some in slots
            )
            return reads, writes

        timed: list[tuple[float, Any, Any]] = [
            (2 * wave + 0.5, layer * num_waves + wave, _touched_by_wave(plan, wave)) for wave in range(num_waves)
        ]
        for number, copy in enumerate(found):
            moment = 2 * copy.moves[0].wave + (copy.moves[0].moment == "after")
            if copy.layer == layer:
                timed.append((moment, ("copy", number), _touched_by_copy(copy)))
        actors += [(actor, here(touched)) for _, actor, touched in sorted(timed, key=lambda one: one[0])]
    return actors


def _any_plan(rng: random.Random, tier: Tier = "device") -> Plan:
    """A plan whose KV lies in a tier of the device, in blocks of one slot."""
    waves = [(rng.randrange(8), rng.randint(1, 4)) for _ in range(rng.randint(1, 4))]
    moves = []
    for _ in range(rng.randint(1, 6)):
        when = {"moment": rng.choice(["before", "after"]), "wave": rng.randrange(len(waves))}
        ends = rng.randrange(10), rng.randrange(10), rng.randint(1, 3)
        moves.append(rng.choice([out, into, lambda *e, **w: Move("embed", *e, **w)])(*ends, **when))
    plan = plan_of(*waves, moves=tuple(moves))
    if tier == "device":
        return plan
    places = tuple(Pages(tuple(place.slots(0, place.capacity)), 1, tier) for place in plan.places)
    there = [{"source_tier": move.source_tier, "target_tier": move.target_tier} for move in moves]
    tiers = [{name: tier if one == "device" else one for name, one in each.items()} for each in there]
    return replace(
        plan, places=places, moves=tuple(move._replace(**one) for move, one in zip(moves, tiers, strict=True))
    )


@pytest.mark.parametrize("seed", range(30))
def test_kv_in_blocks_is_compared_by_blocks(seed: int) -> None:
    """Where moves are of whole blocks, the same comes of it as if every slot were compared."""
    rng, size = random.Random(seed), 4
    tables = [tuple(rng.sample(range(5), rng.randint(1, 3))) for _ in range(rng.randint(2, 4))]
    work = tuple(Work(f"s{i}", size * len(t) - rng.randint(1, 3), size * len(t)) for i, t in enumerate(tables))
    moves = []
    for _ in range(rng.randint(1, 6)):
        when = {"moment": rng.choice(["before", "after"]), "wave": rng.randrange(len(work))}
        first, second = size * rng.randrange(5), size * rng.randrange(5)
        moves.append(rng.choice([out, into])(first, second, size * rng.randint(1, 2), **when))
    layout = Layout(tuple(Span(i, i + 1) for i in range(len(work))))
    in_blocks, in_slots = (
        Plan(0, 0, work, tuple(place(table) for table in tables), layout=layout, moves=tuple(moves))
        for place in (
            lambda table: Pages(table, size),
            lambda table: Runs(tuple((size * block, size) for block in table)),
        )
    )
    assert copies(in_blocks, 2) == copies(in_slots, 2)


def _touched_by_wave(plan: Plan, wave: int) -> tuple[set[Any], set[Any]]:
    work, place = plan.work[wave], plan.places[wave]
    return (
        {(place.tier, slot) for slot in place.slots(0, work.start)},
        {(place.tier, slot) for slot in place.slots(work.start, work.stop)},
    )


def _touched_by_copy(copy: Copy) -> tuple[set[Any], set[Any]]:
    """What it reads, and what it writes."""
    reads = {(move.source_tier, move.source + i) for move in copy.moves for i in range(move.num_tokens)}
    return reads, {(move.target_tier, move.target + i) for move in copy.moves for i in range(move.num_tokens)}


def _clash(one: tuple[set[Any], set[Any]], two: tuple[set[Any], set[Any]]) -> bool:
    return bool(one[1] & (two[0] | two[1]) or one[0] & two[1])


IMPOSSIBLE = [
    Move("copy", 0, 4, 1, "host", "host"),
    into(0, 4, 1, moment="behind"),  # beside work
    into(0, 4, 1, moment="before", wave=1),  # there is one wave
    into(0, 4, 1, moment="after", wave=-1),
    into(0, 4, 0),
    into(-1, 4, 1),
]


@pytest.mark.parametrize("move", IMPOSSIBLE)
def test_impossible_moves_are_refused(move: Move) -> None:
    with breach("layout"):
        Lawful().planned(plan_of((0, 4), moves=(move,)), Placement(()))


@pytest.mark.parametrize("move", [into(0, 4, 1), Move("copy", 0, 4, 1, moment="behind")])
def test_a_plan_without_work_has_transfers_behind_everything_and_nothing_else(move: Move) -> None:
    moves = (out(0, 4, 1, moment="behind"), into(9, 4, 1, moment="behind"))
    Lawful().planned(Plan(0, 1, (), (), moves=moves), Placement(()))
    with breach("layout"):
        Lawful().planned(Plan(0, 1, (), (), moves=(move,)), Placement(()))

"""More KV than the device holds: the waves of Fig. 8, what stays, what is copied, and what is refused (FluidInfer)."""

from __future__ import annotations

from itertools import count, pairwise
from random import Random
from typing import Any

import pytest
from helpers import (
    CROWD,
    answers_of,
    asks,
    breach,
    expected_answers,
    make_engine,
    make_real_engine,
    refusal,
    run_all,
)

from minifuse.core.errors import RequestRefused, UsageError
from minifuse.core.measured import measured_of
from minifuse.core.places import Pages
from minifuse.core.plan import Layout, Move, Plan, Proposal, Span, Work
from minifuse.core.report import KVUsage, StepReport
from minifuse.core.request import Phase, Request, Sequence
from minifuse.execute.copies import copies, timetable
from minifuse.execute.link import Link, LinkRates
from minifuse.memory.waves.division import even_waves
from minifuse.memory.waves.waves import Waves
from minifuse.techniques import TECHNIQUES

ROTATE: dict[str, Any] = {"overflow": "rotate"}
BEFORE: dict[str, Any] = {"source_tier": "host", "moment": "before"}
AFTER: dict[str, Any] = {"target_tier": "host", "moment": "after"}
LONGEST = max(request.max_cached for request in CROWD)


class Rounds:
    """A memory whose sequences all compute what they miss, in every round, in the order in which they came."""

    def __init__(self, capacity: int, **options: Any) -> None:
        self.memory = Waves(capacity, Waves.Options(**{"block_size": 1, "buffer": 0.0, **ROTATE, **options}))
        self.running: list[Sequence] = []
        self.plan = Plan(0, 0, (), ())

    def round(self, *newcomers: Request) -> Plan:
        admit = tuple(Sequence(request) for request in newcomers)
        self.running += admit
        work = tuple(Work(one.id, *span) for one in self.running for span in self.memory.missing(one))
        proposal = Proposal(work, admit)
        placement = self.memory.place(proposal, 0.0)
        plan = Plan(0, 0, work, placement.places, layout=Layout(placement.waves), moves=placement.moves)
        self.memory.commit(plan, [item.sequence for item in work], 0.0)
        for one in self.running:
            one.tokens.append(0)
        self.memory.check_integrity()
        self.plan, self.waves = plan, placement.waves
        return plan


def test_the_example_of_the_class() -> None:
    """a, b, c, d with 3, 2, 4 and 3 tokens take turns in 8 blocks, two waves of which fit beside each other."""
    rounds = Rounds(8, turns="sequences")
    rounds.round(asks("a", 2, 6), asks("b", 1, 6), asks("c", 3, 6), asks("d", 2, 6))
    assert rounds.memory.usage() == KVUsage(0, 0, 8, host=8)
    rounds.memory.books.free.rotate(-rounds.memory.books.free.index(0))
    assert list(rounds.memory.books.free) == list(range(8))
    plan = rounds.round()
    homes = {name: home.offset for name, home in rounds.memory.books.homes.places.items()}
    assert rounds.waves == (Span(0, 1), Span(1, 2), Span(2, 3), Span(3, 4))
    assert plan.places == tuple(Pages(blocks, 1) for blocks in ((0, 1, 2), (3, 4), (5, 6, 7, 0), (1, 2, 3)))
    assert plan.moves == (
        Move("upload", homes["a"], 0, 2, **BEFORE, wave=0),
        Move("offload", 2, homes["a"] + 2, 1, **AFTER, wave=0),
        Move("upload", homes["b"], 3, 1, **BEFORE, wave=1),
        Move("offload", 4, homes["b"] + 1, 1, **AFTER, wave=1),
        Move("upload", homes["c"], 5, 3, **BEFORE, wave=2),
        Move("offload", 0, homes["c"] + 3, 1, **AFTER, wave=2),
        Move("upload", homes["d"], 1, 2, **BEFORE, wave=3),
        Move("offload", 3, homes["d"] + 2, 1, **AFTER, wave=3),
    )
    assert rounds.memory.usage() == KVUsage(0, 0, 8, host=12)


def test_what_fits_is_not_moved() -> None:
    rounds = Rounds(12)
    for newcomers in ([asks("a", 2, 4), asks("b", 3, 4)], [], [asks("c", 1, 2)]):
        plan = rounds.round(*newcomers)
        assert not plan.moves
        assert not rounds.waves
    assert rounds.memory.usage() == KVUsage(4 + 5 + 1, 10, 12)


def test_the_first_stay_and_the_others_take_turns() -> None:
    """16 blocks: with needs 3, 3, 3, 3, 3 and 3, two sequences stay beside two waves of 3; nothing of theirs moves."""
    rounds = Rounds(16)
    rounds.round(*[asks(f"r{i}", 2, 9) for i in range(6)])
    plan = rounds.round()  # 6 x 3 = 18 blocks do not fit
    assert [move.kind for move in plan.moves if move.wave == 0 and move.moment == "before"] == ["offload"] * 3
    plan = rounds.round()  # 6 x 4: 2 x 4 stay beside two waves of 4
    assert rounds.waves == (Span(0, 2), Span(2, 3), Span(3, 4), Span(4, 5), Span(5, 6))
    assert set(rounds.memory.books.blocks.pages) == {"r0", "r1"}
    assert {move.wave for move in plan.moves if move.kind == "upload"} == {1, 2, 3, 4}
    assert sum(move.num_tokens for move in plan.moves if move.kind == "offload" and move.moment == "after") == 4
    for earlier, later in pairwise(rounds.plan.places[2:]):
        assert not set(earlier.slots(0, 4)) & set(later.slots(0, 4))  # uploaded while the one before is attended


def test_kv_goes_to_the_host_once() -> None:
    """However long it takes turns: each token is offloaded when its sequence leaves the device, or when it is new."""
    rounds = Rounds(9)
    moved = []
    for i in range(8):
        plan = rounds.round(*([asks(f"r{i}", 2, 9)] if i < 4 else []))
        moved += [
            token
            for move in plan.moves
            if move.kind == "offload"
            for token in range(move.target, move.target + move.num_tokens)
        ]
    assert moved
    assert len(moved) == len(set(moved))


def test_a_sequence_longer_than_half_the_device() -> None:
    """There is no room for two waves of it: the second waits for the first. All the device will do for one."""
    rounds = Rounds(6)
    rounds.round(asks("a", 4, 3))
    plan = rounds.round(asks("b", 4, 3))
    assert rounds.waves == (Span(0, 1), Span(1, 2))
    first, second = (set(place.slots(0, 4)) for place in plan.places)
    assert (len(first), len(second)) == (4, 4)
    assert first & second  # what the second takes is free when the first has left
    rounds.round()
    assert rounds.memory.usage().used + rounds.memory.usage().host == 11


def test_what_has_no_work_makes_room() -> None:
    memory = Waves(4, Waves.Options(block_size=1, **ROTATE))
    for name, length in (("a", 2), ("b", 3)):
        sequence = Sequence(asks(name, length, 2))
        work = (Work(name, 0, length),)
        placement = memory.place(Proposal(work, (sequence,)), 0.0)
        memory.commit(Plan(0, 0, work, placement.places, moves=placement.moves), (name,), 0.0)
        memory.check_integrity()
    assert placement.moves == (Move("offload", 0, 0, 2, target_tier="host", moment="before"),)
    assert memory.usage() == KVUsage(3, 3, 4, host=2)


# --- in the engine


def _starved(memory: Waves, **more: Any) -> Any:
    return make_engine("fluid", memory=memory, model="llama", **more)


def test_fifty_on_a_device_for_two_or_three() -> None:
    """The headline: fifty requests at once, where no other technique could run more than four, and all tokens exact."""
    requests = [asks(f"r{i}", 3 + i % 5, 4 + i % 3) for i in range(50)]
    longest = max(request.max_cached for request in requests)
    memory = Waves(3 * longest, Waves.Options(block_size=2, host=50 * longest, **ROTATE))
    engine = _starved(memory)
    steps = run_all(engine, requests)
    assert answers_of(engine) == expected_answers("llama", requests)
    assert max(len(step.plan.sequences) for step in steps) == 50
    assert len(steps) == max(request.max_new_tokens for request in requests)  # one iteration for each token
    for name in ("orca", "vllm", "fastserve", "pensieve"):
        given = {"batching.max_batch": 50, "memory.block_size": 2, "memory.chunk": 2, "memory.host": 50 * longest}
        known = {key: value for key, value in given.items() if key in TECHNIQUES[name].option_names}
        known |= {"memory.preemption": "swap"} if name == "vllm" else {}
        others = run_all(make_engine(name, capacity=3 * longest, settings=known), requests)
        assert max(len(step.plan.sequences) for step in others if step.plan.work) <= 8, name
        assert len([step for step in others if step.plan.work]) >= 10 * len(steps), name  # for the same answers


def test_a_device_that_holds_no_request_but_in_turns_of_layers() -> None:
    """Two layers share a device that has three slots fewer than the longest request needs of each layer."""
    requests = [asks(f"r{i}", 3 + i % 3, 4) for i in range(9)]
    longest = max(request.max_cached for request in requests)
    small = longest - 3
    options: dict[str, Any] = {"turns": "layers", "layers": 2, "buffer": 1.0, "host": 50 * longest}
    memory = Waves(small, Waves.Options(block_size=1, **options))
    engine = _starved(memory)
    steps = run_all(engine, requests)
    assert answers_of(engine) == expected_answers("llama", requests)
    assert max(len(step.plan.sequences) for step in steps) == 9
    assert not any(step.usage.reserved for step in steps)  # nothing stays between two plans
    alone = make_engine("fluid", memory=Waves(small, Waves.Options(block_size=1, host=50 * longest)))
    with pytest.raises(RequestRefused, match=rf"has {small}:.*to hold \d+ tokens, or give memory.turns=layers"):
        alone.submit(max(requests, key=lambda request: request.max_cached))


def test_the_first_wave_of_a_layer_is_uploaded_beside_the_last_of_the_one_before() -> None:
    """Two sequences of 4 of which each takes half of the device: layer by layer, two waves in turn.

    With computing of 10 ms an iteration, a wave of a layer takes 2.5 ms; an upload of three tokens of a layer takes as
    long. Only the very first is waited for; and the last token of the second is copied when all is computed.
    """
    memory = Waves(5, Waves.Options(block_size=1, turns="layers", layers=2, buffer=0.8, host=100))
    engine = make_engine("fluid", memory=memory, link=Link(256, LinkRates.alike(256 / (0.005 / 3)), num_layers=2))
    steps = run_all(engine, [asks("a", 2, 3), asks("b", 2, 3)])
    plan = steps[-1].plan
    assert [work.start for work in plan.work] == [3, 3]
    assert [place.blocks for place in plan.places] == [(0, 1, 2, 3), (4, 5, 6, 7)]  # type: ignore[union-attr]
    assert measured_of(steps[-1]).exposed_s == pytest.approx(0.0025 + 0.005 / 6)


@pytest.mark.parametrize("seed", range(40))
def test_waves_of_layers_are_in_the_two_halves_in_turn(seed: int) -> None:
    """An even number of them, if no piece needs more than a quarter: the last and the next first do not touch."""
    rng = Random(seed)
    num_blocks = rng.randint(16, 60)
    needs = [rng.randint(1, num_blocks // 4) for _ in range(rng.randint(8, 40))]
    limit = even_waves(needs, num_blocks)
    assert max(needs) <= limit <= num_blocks // 2
    taken, waves = 0, [0]
    for blocks in needs:
        if waves[-1] + blocks > limit:
            waves.append(0)
        waves[-1] += blocks
        taken += blocks
    assert len(waves) % 2 == 0
    assert len(waves) <= 2 * -(-taken // (2 * (num_blocks // 2))) + 4


@pytest.mark.parametrize("seed", range(20))
def test_copies_and_waves_that_share_a_device_compute_what_they_would_one_after_the_other(seed: int) -> None:
    """Every copy of every layer as late, or as early, as its timetable allows, at random: no slot is read too late."""
    rng = Random(seed)
    layers = rng.randint(2, 4)
    size, buffer = rng.randint(1, 2), rng.choice([0.5, 0.8, 1.0])
    options: dict[str, Any] = {"block_size": size, "turns": "layers", "layers": layers, "buffer": buffer}
    memory = Waves(rng.randint(5, 9), Waves.Options(**options, host=400))
    most = memory.shared_capacity
    requests = [asks(f"r{i}", rng.randint(1, min(9, most - 4)), 3) for i in range(rng.randint(2, 6))]
    steps = run_all(make_engine("fluid", memory=memory), requests)
    assert any("shared" in step.plan.tiers for step in steps)
    for step in steps:
        _play(step.plan, layers, rng)


def _play(plan: Plan, num_layers: int, rng: Random) -> None:
    """Check a plan in any order that its timetable allows. A shared slot holds a layer, and the token's host slot."""
    found, num_waves = copies(plan, num_layers), len(plan.waves)
    begun, needed = timetable(found)
    offloads = {(move.wave, move.source): move.target for move in plan.moves if move.source_tier == "shared"}
    device: dict[int, tuple[int, int]] = {}
    waiting: list[int] = []
    done: set[int] = set()

    def make(key: int) -> None:
        if key in done:
            return
        assert key in waiting
        done.add(key)
        for before in found[key].follows:
            make(before)
        for move in [move for move in found[key].moves if "shared" in (move.source_tier, move.target_tier)]:
            for source, target in zip(range(move.source, move.source + move.num_tokens), count(move.target)):
                if move.kind == "upload":
                    device[target] = (found[key].layer, source)
                assert device[source if move.kind == "offload" else target] == (
                    found[key].layer,
                    target if move.kind == "offload" else source,
                )

    for turn in range(-1, num_layers * num_waves):
        if turn >= 0:
            layer, wave = divmod(turn, num_waves)
            for key in needed.get(turn, ()):
                make(key)
            for index in range(*plan.waves[wave]) if plan.tiers[wave] == "shared" else ():
                work, slots = plan.work[index], plan.places[index].slots(0, plan.work[index].stop)
                home = offloads[wave, slots[work.start]] - work.start
                assert all(device[slots[token]] == (layer, home + token) for token in range(work.start))
                device |= {slots[token]: (layer, home + token) for token in range(work.start, work.stop)}
        waiting += begun.get(turn, ())
        for key in rng.sample(waiting, rng.randint(0, len(waiting))):
            make(key)
    for key in waiting:
        make(key)


def test_uploads_run_beside_the_waves_before_them() -> None:
    """Nothing waits for what is hidden: with a fast link only the first upload of a plan and its last offload do."""
    requests = [asks(f"r{i}", 3, 4) for i in range(6)]
    steps = _timed(requests, Link(256, LinkRates.alike(256 / 0.004), num_layers=2), turns="sequences")
    carried = steps[-1].measured
    assert carried.to_device_s == pytest.approx(6 * 5 * 0.004)
    assert carried.exposed_s == pytest.approx(5 * 0.002 + 0.002)  # one layer of the first sequence, of the last token
    staying = _timed(requests, Link(256, LinkRates.alike(256 / 0.004), num_layers=2))[-1].measured
    assert staying.to_device_s < carried.to_device_s
    assert staying.exposed_s == pytest.approx(0.002)  # no wave waits; the last token is copied when all is computed


def _timed(requests: list[Request], link: Link, **options: Any) -> list[StepReport]:
    memory = Waves(18, Waves.Options(block_size=1, buffer=0.0, **ROTATE, **options))
    return run_all(make_engine("fluid", memory=memory, link=link), requests)


@pytest.mark.parametrize(
    "options", [{}, ROTATE, {"turns": "host"}, {"turns": "host", "passes": 2}, {"turns": "layers", "layers": 2}]
)
def test_in_real_time(options: dict[str, Any]) -> None:
    memory = Waves(2 * LONGEST, Waves.Options(block_size=1, **options))
    engine = make_real_engine("fluid", model="llama", memory=memory)
    run_all(engine, CROWD)
    engine.executor.close()
    assert answers_of(engine) == expected_answers("llama", CROWD)
    memory.check_integrity()
    assert memory.usage() == KVUsage(0, 0, memory.capacity)


# --- what is refused, and what waits


def test_a_request_that_the_device_cannot_attend() -> None:
    """Refused with the figure that would do."""
    memory = Waves(20, Waves.Options(block_size=4))
    with refusal(
        RequestRefused, "'long' may need 6 blocks of 4 KV tokens on the device", "it has 5", "to hold 24 tokens"
    ):
        memory.check(asks("long", 18, 4))
    memory.check(asks("fits", 16, 5))


def test_a_request_that_the_host_cannot_hold() -> None:
    memory = Waves(20, Waves.Options(block_size=4, host=15))
    with refusal(RequestRefused, "'long' may need KV for 16 tokens on the host", "holds 12", "raise memory.host"):
        memory.check(asks("long", 12, 5))


def test_a_full_host_holds_newcomers_back() -> None:
    """Nothing is lost: they wait, with a reason, until another has finished."""
    memory = Waves(14, Waves.Options(block_size=1, host=16))
    engine = _starved(memory)
    requests = [asks(f"r{i}", 4, 4) for i in range(4)]
    steps = run_all(engine, requests)
    assert answers_of(engine) == expected_answers("llama", requests)
    assert [len(step.plan.sequences) for step in steps] == [2] * 8
    (reason,) = steps[0].plan.reasons
    assert (reason.code, reason.sequence) == ("memory-full", "r2")
    assert "7 KV tokens in a row on the host" in reason.text
    assert all(sequence.phase is Phase.FINISHED for sequence in engine.finished.values())


def test_what_cannot_be_placed_changes_nothing() -> None:
    memory = Waves(12, Waves.Options(block_size=1, host=16))
    sequence = Sequence(asks("a", 1, 3))
    memory.place(Proposal((Work("a", 0, 1),), (sequence,)), 0.0)
    before = list(memory.books.free), dict(memory.books.homes.places), list(memory.books.host.runs)
    with breach("budget"):
        memory.place(Proposal((Work("b", 0, 12),), (Sequence(asks("b", 12, 9)),)), 0.0)
    assert (list(memory.books.free), dict(memory.books.homes.places), list(memory.books.host.runs)) == before


def test_blocks_longer_than_the_device() -> None:
    with refusal(UsageError, "blocks of 4 tokens, and it holds 3", "memory.block_size"):
        Waves(3, Waves.Options(block_size=4))

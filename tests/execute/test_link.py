"""The link of virtual time, worked out by hand and against a count in small steps."""

from __future__ import annotations

import math

import pytest
from execute.test_copies import into, out, plan_of
from helpers import asks, seven
from hypothesis import given
from hypothesis import strategies as st

from minifuse.core.clock import VirtualClock
from minifuse.core.measured import Measured, measured_of
from minifuse.core.plan import Move, Plan
from minifuse.core.request import Sequence
from minifuse.execute import VirtualExecutor
from minifuse.execute.copies import Copy
from minifuse.execute.layers import Carrying, PlanTimes
from minifuse.execute.link import Direction, Link, LinkRates


def link(layers: int = 4) -> Link:
    """A byte and a second for each token."""
    return Link(1, LinkRates.alike(1.0), layers)


def swap(tokens: int, moment: str = "before") -> Plan:
    return plan_of((0, 40), moves=(into(50, 0, tokens, moment=moment),))


def alone(*moves: Move, step: int = 9) -> Plan:
    return Plan(step, 1, (), (), moves=moves)


@pytest.mark.parametrize(("tokens", "computing", "exposed"), [(4, 8.0, 1.0), (12, 8.0, 6.0), (8, 8.0, 2.0)])
def test_layer_by_layer(tokens: int, computing: float, exposed: float) -> None:
    """With 4 layers: max(T/4, T + C/4 - C)."""
    found = link().run(swap(tokens), computing, 100.0)
    assert found[-7:-2] == (0, 0.0, tokens, float(tokens), exposed)
    assert found.hidden_s == tokens - exposed


@given(st.integers(1, 6), st.integers(1, 30), st.floats(0.1, 30), st.floats(0, 20))
def test_the_formula(layers: int, tokens: int, computing: float, backlog: float) -> None:
    resource = link(layers)
    resource.run(swap(1, "first"), 0.0, 99 + backlog)
    found = resource.run(swap(tokens), computing, 100.0)
    exposed = max(tokens / layers, tokens + computing / layers - computing) + backlog
    assert found.exposed_s == pytest.approx(exposed)


def test_what_comes_first_is_exposed_whole() -> None:
    resource = link()
    assert resource.run(swap(5, "first"), 8.0, 0.0).exposed_s == 5.0
    plan = plan_of((0, 40), moves=(out(0, 50, 2), into(60, 0, 4, moment="before")))
    assert resource.run(plan, 8.0, 10.0).exposed_s == 2.0 + 1.0


def test_moves_within_the_device_are_not_the_links() -> None:
    moves = (Move("copy", 9, 8, 1), Move("embed", 9, 8, 1, moment="before"))
    found = link().run(plan_of((0, 4), moves=moves), 3.0, 0.0)
    assert found[-7:-2] == (0, 0.0, 0, 0.0, 0.0)


def test_each_way_is_counted_for_itself() -> None:
    found = link().run(plan_of((0, 40), moves=(out(0, 50, 2), into(60, 0, 5))), 8.0, 0.0)
    assert found[-7:-2] == (2, 2.0, 5, 5.0, 7.0)


def test_offload_and_upload_beside_the_wave_between_them() -> None:
    """Two layers, three waves of 1 s in each; 1 s up for the second wave, and for the third 1 s out and 1 s in.

    The upload for the second is there in both layers when the first wave has been attended, at 1 s; what the third
    needs is copied from 2 s (the link carries the second layer's upload first) to 4 s, and the wave waits from 2 to 3.
    """
    moves = (
        out(0, 0, 2, moment="after", wave=0),
        into(20, 8, 2, moment="before", wave=1),
        into(10, 0, 2, moment="before", wave=2),
    )
    found = link(2).run(plan_of((0, 4), (8, 4), (0, 4), moves=moves), 6.0, 0.0)
    # layer 0: waves at 0..1, 1..2, and from 4 on (out 2..3, in 3..4); layer 1: 5..6, 6..7, and out 6..7, in 7..8: 8..9
    assert found.exposed_s == 9.0 - 6.0


def test_the_first_wave_takes_what_is_not_attention() -> None:
    """One layer of 10 s, whose waves attend for 2, 3 and 1 s: the second may begin at 6 s, the third at 9 s.

    What the second uploads, in 4 s, is hidden; what the third uploads to where the first was, from 6 s on and in 7 s,
    is there at 13 s.
    """
    moves = (into(20, 8, 4, moment="before", wave=1), into(10, 0, 7, moment="before", wave=2))
    found = Link(1, LinkRates.alike(1.0), 1, lambda plan: PlanTimes([4.0], [2.0, 3.0, 1.0])).run(
        plan_of((0, 8), (8, 8), (0, 8), moves=moves), 10.0, 0.0
    )
    assert found.exposed_s == 13.0 - 9.0


def test_the_first_wave_of_a_layer_waits_after_what_comes_before_attention() -> None:
    """Two layers of 8 s, of which two waves attend for 1 s each; what the first uploads takes 4 s in each layer."""
    moves = (into(20, 0, 8, moment="before", wave=0),)
    found = Link(1, LinkRates.alike(1.0), 2, lambda plan: PlanTimes([12.0], [2.0, 2.0])).run(
        plan_of((0, 8), (8, 8), moves=moves), 16.0, 0.0
    )
    assert found.exposed_s == 0.0  # there at 4 s and at 8 s, and needed at 6 s and at 14 s


def test_behind_everything_exposes_nothing_but_the_rest_of_a_move_that_has_begun() -> None:
    resource = link()
    resource.behind(alone(out(0, 0, 3, moment="behind"), out(3, 3, 3, moment="behind")), 0.0)
    assert resource.run(plan_of((0, 40), moves=()), 8.0, 0.0).exposed_s == 0.0
    assert resource.next_landing() == 6.0
    assert resource.run(swap(4), 8.0, 1.0).exposed_s == 1.0 + 2.0  # the first move ends at 3; the second waits
    assert resource.next_landing() == 3.0 + 4.0 + 3.0
    assert resource.landed(9.9) == []
    assert [plan.step for plan in resource.landed(10.0)] == [9]
    assert resource.next_landing() == math.inf


def test_what_is_fetched_goes_before_what_is_stored() -> None:
    """Retrieval before eviction: of two plans behind everything, the later one's swap-in is carried first."""
    resource = link()
    resource.behind(alone(out(0, 0, 3, moment="behind"), out(9, 9, 3, moment="behind"), step=1), 0.0)
    resource.behind(alone(into(6, 6, 5, moment="behind"), step=2), 1.0)
    assert resource.next_landing() == 8.0
    assert [plan.step for plan in resource.landed(8.0)] == [2]
    assert resource.next_landing() == 11.0


def test_a_plan_that_begins_as_the_link_is_free_goes_before_what_is_behind() -> None:
    resource = link()
    resource.behind(alone(out(0, 0, 3, moment="behind")), 5.0)
    assert resource.run(swap(4), 8.0, 5.0).exposed_s == 1.0
    assert resource.next_landing() == 5.0 + 4.0 + 3.0


def test_the_executor_lands_plans_between_the_ends_of_others() -> None:
    clock = VirtualClock()
    executor = VirtualExecutor(clock, lambda plan: 10.0, seven, link=link())
    sequences = {"s0": Sequence(asks("s0", 3, 2))}
    executor.submit(plan_of((0, 40), moves=(into(60, 0, 4),)), sequences, 0.0)
    executor.submit(alone(out(0, 0, 3, moment="behind"), step=1), {}, 0.0)
    assert executor.wait(6.9) == []
    (landed,) = executor.wait(None)
    assert (landed.plan.step, landed.ended_s, landed.ran.measured) == (1, 7.0, Measured(to_host_bytes=3, to_host_s=3.0))
    (ended,) = executor.wait(None)
    assert (ended.ended_s, measured_of(ended.ran).exposed_s, measured_of(ended.ran).moving_s) == (14.0, 4.0, 4.0)


FETCHED = into(10, 16, 4, moment="before", wave=2)  # these two begin together
STORED = out(0, 50, 4, moment="after", wave=0)


@pytest.mark.parametrize(("rate", "exposed"), [(None, 8.0), (0.5, 8.0), (0.8, 5.0), (1.0, 4.0)])
def test_both_ways_at_once(rate: float | None, exposed: float) -> None:
    """Copies of 4 s to the host and to the device: in turn, each at a part of its rate, or side by side."""
    resource = Link(1, LinkRates.alike(1.0, both_ways=rate))
    plan = plan_of((0, 8), (8, 8), (16, 8), moves=(FETCHED, STORED))
    assert resource.run(plan, 0.0, 0.0).exposed_s == exposed


def test_a_wave_waits_for_a_copy_that_another_slows() -> None:
    """At half of its rate the fetch ends at 8 s, not at 4: then wave 2 attends for 1 s, and the next fetch takes 3 s.

    That fetch was begun after wave 1, at 0 s, and is carried from 8 s on, alone: the store has ended, too.
    """
    moves = (FETCHED, STORED, into(30, 8, 3, moment="before", wave=3))
    resource = Link(1, LinkRates.alike(1.0, both_ways=0.5), 1, lambda plan: PlanTimes([0.0], [0.0, 0.0, 1.0, 0.0]))
    plan = plan_of((0, 8), (8, 8), (16, 8), (8, 8), moves=moves)
    assert resource.run(plan, 1.0, 0.0).exposed_s == 8.0 + 3.0 - 1.0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), min_size=1, max_size=8), st.sampled_from([0.5, 0.75]))
def test_both_ways_in_small_steps(copies: list[tuple[bool, int]], rate: float) -> None:
    """All copies are begun at 0 s: each direction carries its own in order, slower while the other is busy."""
    carrying = Carrying(rate, 0.0)
    for number, (goes_out, seconds) in enumerate(copies):
        move = out(0, 0, 1) if goes_out else into(0, 0, 1)
        carrying.begin(number, Copy((move,), 0, -1, 0, ()), 0.0, float(seconds))
    step = 1 / 64
    left = {way: sum(seconds for goes_out, seconds in copies if goes_out is way) for way in (False, True)}
    ended = 0.0
    while any(left.values()):
        busy = [way for way in left if left[way] > 0]
        for way in busy:
            left[way] = max(0.0, left[way] - step * (rate if len(busy) > 1 else 1.0))
        ended += step
    assert max(map(carrying.end_of, range(len(copies)))) == pytest.approx(ended, abs=2 * step)
    assert carrying.end_of(0) >= copies[0][1]


def test_each_copy_takes_its_own_seconds() -> None:
    """Besides its bytes, a move takes the seconds of 8 copies: keys and values in 4 layers."""
    resource = Link(1, LinkRates.alike(1.0, copy_s=0.25), 4)
    assert resource.run(swap(4, "first"), 8.0, 0.0).exposed_s == 4.0 + 8 * 0.25
    found = resource.run(swap(4), 8.0, 100.0)
    assert (found.to_device_s, found.exposed_s) == (6.0, 1.5)
    within = resource.run(plan_of((0, 4), moves=(Move("copy", 9, 8, 1),)), 3.0, 200.0)
    assert within.exposed_s == 0.0


def test_directions_differ() -> None:
    rates = LinkRates(to_host=Direction(2.0), to_device=Direction(1.0, copy_s=1.0))
    carried = Link(1, rates).carried(plan_of((0, 40), moves=(out(20, 0, 4), into(10, 30, 4))))
    assert (carried.to_host_s, carried.to_device_s) == (2.0, 4.0 + 2 * 1.0)

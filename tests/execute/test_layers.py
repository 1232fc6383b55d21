"""Device, host and link beside each other, layer by layer: worked out by hand."""

from __future__ import annotations

import pytest
from execute.test_copies import into, plan_of

from minifuse.core.places import Pages
from minifuse.core.plan import Layout, Plan, Span, Work
from minifuse.execute.layers import PlanTimes
from minifuse.execute.link import Link, LinkRates

TOKENS = 10


def on_host(device: int, host: int, passes: int = 1) -> Plan:
    """A wave of `device` sequences, then as many waves of `host` sequences in all as there are passes."""
    count = device + host
    work = tuple(Work(f"s{i}", TOKENS - 1, TOKENS) for i in range(count))
    places = tuple(Pages((i,), TOKENS, "device" if i < device else "host") for i in range(count))
    cut = device + host // 2
    ends = sorted(({device, count} | ({cut} if passes == 2 else set())) - {0})
    waves = tuple(map(Span, [0, *ends[:-1]], ends))
    spans = (Span(0, cut), Span(cut, count)) if passes == 2 else ()
    return Plan(0, 0, work, places, layout=Layout(waves, passes=spans))


def waits(plan: Plan, times: PlanTimes, layers: int = 1, down: int = 0, up: int = 0) -> float:
    """Return how long the device waits for the host. A byte takes a second on the link."""
    link = Link(1, LinkRates.alike(1.0), layers, lambda plan: times, (down, up))
    on_device = [one for one, tier in zip(times.waves, plan.tiers, strict=True) if tier != "host"]
    found = link.run(plan, sum(times.token_wise) + sum(on_device), 0.0)
    assert found.exposed_s == 0.0
    assert found.on_host_s == pytest.approx(sum(times.waves) - sum(on_device))
    return found.awaited_s


def test_the_host_attends_beside_the_device() -> None:
    """Token-wise 3 s, then the device attends for 2 s and the host for 4 s: 2 s are waited for. Or for 1 s: none."""
    assert waits(on_host(1, 1), PlanTimes([3.0], [2.0, 4.0])) == 2.0
    assert waits(on_host(1, 1), PlanTimes([3.0], [2.0, 1.0])) == 0.0


def test_each_layer_waits_for_its_own_attention() -> None:
    """Two layers, each of half of these seconds: the wait is the same."""
    assert waits(on_host(1, 1), PlanTimes([3.0], [2.0, 4.0]), layers=2) == 2.0


def test_two_passes_hide_what_one_exposes() -> None:
    """Four layers: token-wise 2 s in a layer of each pass, and 2 s on the host: each is hidden behind the other pass.

    Only the last of the last layer is waited for. In one pass, all 4 s of each layer would be.
    """
    times = PlanTimes([8.0, 8.0], [8.0, 8.0])
    assert waits(on_host(0, 2, passes=2), times, layers=4) == 2.0
    assert waits(on_host(0, 2), PlanTimes([8.0], [16.0]), layers=4) == 16.0


def test_the_host_is_one() -> None:
    """It attends the waves of both passes one after the other: 3 + 3 s, of which 1 s are hidden by the second pass."""
    assert waits(on_host(0, 2, passes=2), PlanTimes([1.0, 1.0], [3.0, 3.0])) == 5.0


def test_queries_go_down_and_outputs_come_up() -> None:
    """Of two tokens 2 x 3 bytes go down and 2 x 1 up: 6 + 4 + 2 s, less the device's 5 s."""
    assert waits(on_host(1, 2), PlanTimes([3.0], [5.0, 4.0]), down=3, up=1) == 7.0


def test_where_the_host_is_the_device_its_waves_are_computed_in_turn() -> None:
    link = Link(1, LinkRates.alike(1.0), 1, lambda plan: PlanTimes([3.0], [2.0, 4.0]))
    found = link.run(on_host(1, 1), 9.0, 0.0)
    assert (found.on_host_s, found.awaited_s, found.exposed_s) == (0.0, 0.0, 0.0)


def test_the_host_waits_for_what_is_offloaded_to_it() -> None:
    """An offload of 10 s ends after the wave's queries are there, at 3 s: the host attends at 10 to 14 s."""
    plan = on_host(1, 1)
    moves = (into(0, 50, 1)._replace(moment="before", wave=1),)
    link = Link(1, LinkRates.alike(1 / 10), 1, lambda plan: PlanTimes([3.0], [2.0, 4.0]), (0, 0))
    found = link.run(Plan(0, 0, plan.work, plan.places, layout=plan.layout, moves=moves), 5.0, 0.0)
    assert found.awaited_s == 9.0
    assert plan_of((0, 4), moves=()).tiers == ["device"]

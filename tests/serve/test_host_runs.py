"""Iterations of real runs: which ran alone, how long several did, and what is fitted to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifuse.core.plan import Plan, Work
from minifuse.serve.host_runs import HostSamples, Iteration, alone, fit_host, fit_together, overlap
from minifuse.simulate.host_terms import Terms, host_terms


def _iteration(step: int, start: float, end: float, tokens: int = 1) -> Iteration:
    return Iteration(Plan(step, 0, (Work("r", 0, tokens),), ()), start, end)


spans = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=12)


@given(spans)
def test_alone_and_together_by_brute_force(drawn: list[tuple[int, int]]) -> None:
    iterations = [_iteration(i, float(start), float(start + length)) for i, (start, length) in enumerate(drawn)]
    running = [sum(start <= at < start + length for start, length in drawn) for at in range(40)]
    assert overlap(iterations) == (running.count(1), sum(count > 1 for count in running))
    expected = {
        i for i, (start, length) in enumerate(drawn) if all(running[at] == 1 for at in range(start, start + length))
    }
    assert set(alone(iterations)) == expected


def test_the_median_round_counts_of_plans_that_all_rounds_have() -> None:
    rounds = [
        [_iteration(0, 0.0, took), _iteration(1, 10.0, 11.0, tokens=number // 4 + 1)]
        for number, took in enumerate((3.0, 1.0, 2.0, 9.0, 5.0))
    ]
    ((plan, *seconds),) = HostSamples(rounds).typical()
    assert (plan.step, *seconds) == (0, 3.0, 0.0)


@dataclass
class _Cost:
    """A device on which a token takes a second, and a host on which an iteration does."""

    host: float = 0.0

    def device_s(self, plan: Plan) -> float:
        return float(plan.num_tokens)

    def __call__(self, plan: Plan) -> float:
        return self.device_s(plan) + self.host

    def terms(self, plan: Plan) -> Terms:
        return host_terms(plan)


def test_the_host_is_what_the_device_leaves() -> None:
    rounds = [[_iteration(i, 100.0 * i, 100.0 * i + 3.0 + n, tokens=n) for i, n in enumerate((1, 1, 4))]]
    found = fit_host([(cast(Any, _Cost()), HostSamples(rounds))])
    assert sum(found[name] for name in ("iteration", "sequence")) == pytest.approx(3.0)
    assert found.get("token", 0.0) == pytest.approx(0.0, abs=1e-9)


def test_two_workers_at_once_are_as_fast_as_they_were() -> None:
    """Two plans of 4 s take 5 s together, so 1.6 times as long a work is done at once; alone one takes 4 s."""
    together = [_iteration(0, 0.0, 5.0, tokens=4), _iteration(1, 0.0, 5.0, tokens=4)]
    cost = cast(Any, _Cost())
    assert fit_together([(cost, HostSamples([together]))]) == pytest.approx(1.6)
    assert fit_together([(cost, HostSamples([[*together, _iteration(2, 9.0, 13.0, tokens=4)]]))]) == pytest.approx(1.6)
    assert fit_together([(cost, HostSamples([[_iteration(0, 0.0, 5.0)]]))]) is None
    slow = [_iteration(0, 0.0, 10.0, tokens=4), _iteration(1, 0.0, 10.0, tokens=4)]
    assert fit_together([(cost, HostSamples([slow, together, together]))]) == pytest.approx(1.6), "the median round"


def test_transfers_that_are_measured_apart_are_not_the_hosts() -> None:
    """Of 5 s, a token of the device takes one, and transfers 1.5."""
    rounds = [[_iteration(0, 0.0, 5.0)._replace(apart_s=1.5)]]
    found = fit_host([(cast(Any, _Cost()), HostSamples(rounds))])
    assert sum(found.values()) == pytest.approx(2.5)

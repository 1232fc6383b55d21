"""How computations are timed: what counts, and how often."""

from __future__ import annotations

import pytest

from minifuse.simulate import tables
from minifuse.simulate.tables import REPEATS, timer


class _Clock:
    """A clock on which only `take` takes time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.done: list[str] = []
        monkeypatch.setattr(tables.time, "perf_counter", lambda: self.now)

    def take(self, name: str, *seconds: float) -> None:
        """Take the next of these seconds, or the last."""
        self.now += seconds[min(self.done.count(name), len(seconds) - 1)]
        self.done.append(name)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    return _Clock(monkeypatch)


def test_a_short_computation_is_repeated_and_its_median_counts(clock: _Clock) -> None:
    assert timer(lambda: clock.take("run", 9e-3, 3e-3, 1e-3, 2e-3), "cpu")(0) == pytest.approx(2e-3)
    assert len(clock.done) == 1 + REPEATS


def test_a_longer_one_counts_once_after_the_warm_up(clock: _Clock) -> None:
    assert timer(lambda: clock.take("run", 9e-2, 3e-2), "cpu")(0) == pytest.approx(3e-2)
    assert len(clock.done) == 2


def test_the_longest_is_computed_once(clock: _Clock) -> None:
    assert timer(lambda: clock.take("run", 0.5), "cpu")(0) == pytest.approx(0.5)
    assert len(clock.done) == 1


def test_what_lies_around_a_computation_takes_no_time_of_it(clock: _Clock) -> None:
    around = [(lambda: clock.take("before", 1.0), lambda: clock.take("after", 2.0))] * 2
    run = timer(lambda: clock.take("run", 0.2, 0.4), "cpu", around)
    assert run(0) == pytest.approx(0.3), "the mean of both"
    assert clock.done == ["before", "run", "after"] * 2

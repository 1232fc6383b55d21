"""Two clocks: real time, which only goes forward, and virtual time, which moves when it is set."""

from __future__ import annotations

import time

import pytest

from minifuse.core.clock import RealClock, VirtualClock


def test_virtual_time_moves_when_set_and_never_back() -> None:
    clock = VirtualClock()
    assert clock.now() == 0.0
    clock.sleep_until(1e9)
    assert clock.now() == 1e9
    clock.sleep_until(5.0)
    assert clock.now() == 1e9


def test_real_time_starts_when_first_read(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 102.5, 103.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock = RealClock()
    assert [clock.now(), clock.now(), clock.now()] == [0.0, 2.5, 3.0]

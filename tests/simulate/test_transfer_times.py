"""Copies between device and host: what is fitted to their times, and what a simulated link makes of it."""

from __future__ import annotations

import pytest
from machines import TOY, profile

from minifuse.core.plan import Move
from minifuse.execute.link import AT_ONCE
from minifuse.simulate import transfer_times
from minifuse.simulate.machine_profile import CopyTimes, TransferTimes
from minifuse.simulate.measured import MeasuredCost

OUT, IN = Move("swap_out", 0, 0, 1, target_tier="host"), Move("swap_in", 0, 0, 1, "host")


def test_each_way_and_both_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small copy takes 1 s more than its bytes; both ways at once take 1.25 times as long as the slower one."""
    seconds = iter([2.0, 101.0, 3.0, 201.0, 251.25])
    monkeypatch.setattr(transfer_times, "timed", lambda *_: next(seconds))
    monkeypatch.setattr(transfer_times, "SMALL", 1)
    monkeypatch.setattr(transfer_times, "LARGE", 100)
    found = transfer_times.transfer_times("cpu")
    assert found.to_host == CopyTimes(bandwidth=1.0, copy_s=1.0)
    assert found.to_device == CopyTimes(bandwidth=0.5, copy_s=1.0)
    assert found.both_ways == 0.8


def test_a_processor_copies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_times, "LARGE", 2**20)
    assert 0 < transfer_times.transfer_times("cpu").both_ways <= 1


def test_the_link_of_a_profile() -> None:
    times = TransferTimes(
        to_host=CopyTimes(bandwidth=10.0, copy_s=1.0), to_device=CopyTimes(bandwidth=20.0, copy_s=0.0), both_ways=0.8
    )
    assert MeasuredCost(TOY, profile(), "paged").link_rates == AT_ONCE
    measured = profile().model_copy(update={"transfers": times, "slow": 2.0})
    rates = MeasuredCost(TOY, measured, "paged").link_rates
    assert (rates.seconds(OUT, 100), rates.seconds(IN, 100), rates.both_ways) == (22.0, 10.0, 0.8)

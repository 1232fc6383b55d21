"""Copies between device and host: what is fitted to their times, and what a simulated link makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from machines import TOY, profile

from minifuse.core.plan import Move
from minifuse.execute.link import AT_ONCE
from minifuse.simulate import transfer_times
from minifuse.simulate.machine_profile import CopyTimes, TransferTimes
from minifuse.simulate.measured import MeasuredCost

OUT, IN = Move("swap_out", 0, 0, 1, target_tier="host"), Move("swap_in", 0, 0, 1, "host")


def test_each_way_and_both_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small copy takes 1 s more than its bytes.

    Beside the other, at 0.8 of its rate, the copy to the host takes 126.25 s. Then 100 of 201 s are left of the other.
    """
    seconds = iter([2.0, 101.0, 3.0, 201.0, 126.25 + 100.0])
    monkeypatch.setattr(transfer_times, "timed", lambda *_: next(seconds))
    monkeypatch.setattr(transfer_times, "SMALL", 1)
    monkeypatch.setattr(transfer_times, "LARGE", 100)
    found = transfer_times.transfer_times("cpu")
    assert found.to_host == CopyTimes(bandwidth=1.0, copy_s=1.0)
    assert found.to_device == CopyTimes(bandwidth=0.5, copy_s=1.0)
    assert found.both_ways == 0.8


def test_each_way_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the copies of both ways are made in turn."""
    made = []

    def timed(copy: Callable[[], None], *_: Any) -> float:
        with monkeypatch.context() as patched:
            patched.setattr(torch.Tensor, "copy_", lambda target, source, **_: made.append(target.numel()))
            copy()
        return float(sum(made))

    monkeypatch.setattr(transfer_times, "timed", timed)
    monkeypatch.setattr(transfer_times, "LARGE", 2**13)
    transfer_times.transfer_times("cpu")
    assert made == [2**12, 2**13, 2**12, 2**13, 2**13, 2**13]


def test_the_link_of_a_profile() -> None:
    times = TransferTimes(
        to_host=CopyTimes(bandwidth=10.0, copy_s=1.0), to_device=CopyTimes(bandwidth=20.0, copy_s=0.0), both_ways=0.8
    )
    assert MeasuredCost(TOY, profile(), "paged").link_rates == AT_ONCE
    measured = profile().model_copy(update={"transfers": times, "slow": 2.0})
    rates = MeasuredCost(TOY, measured, "paged").link_rates
    assert (rates.seconds(OUT, 100), rates.seconds(IN, 100), rates.both_ways) == (22.0, 10.0, 0.8)

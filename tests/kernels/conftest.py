"""A clock for the race of the kernels: events that read the host's."""

from __future__ import annotations

import time

import pytest
import torch


class Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernel_race import measure

    limits = measure.Limits(copy=1000.0, matrix=100.0, to_host=10.0, to_device=5.0)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(measure, "limits_of", lambda device, rounds: limits)
    monkeypatch.setattr(measure, "_free", lambda device: None)  # a second each time, for tensors of some bytes

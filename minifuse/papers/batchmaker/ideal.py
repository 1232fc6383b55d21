"""Compares cellular batching with an ideal that is written by hand (2.7.3, 2.7.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from minifuse.papers.batchmaker.load import AT_ONCE, Load
from minifuse.papers.batchmaker.setting import Setting
from minifuse.papers.curve import Served, run_rounds
from minifuse.papers.numbers import told
from minifuse.papers.verdict import Claim, verdict


@dataclass(frozen=True, slots=True)
class Ideal:
    """Requests per second of cellular batching and of the ideal, in each round."""

    cellular: tuple[float, ...]
    ideal: tuple[float, ...]

    @property
    def shares(self) -> list[float]:
        """The throughput of cellular batching as a part of the ideal's, in each round."""
        return [ours / most for ours, most in zip(self.cellular, self.ideal, strict=True)]

    @property
    def rate(self) -> float:
        """The ideal's median throughput."""
        return median(self.ideal)

    @property
    def lost(self) -> float:
        """The part of the ideal's throughput that is lost, in the median."""
        return 1 - median(self.shares)

    def judged(self, what: str, claim: Claim) -> str:
        """Judge the share of the ideal by the rounds."""
        return verdict(what, self.shares, claim, told(self.shares, "{:.1%}"))


def against_ideal(setting: Setting, load: Load, batch: int, seconds: Callable[[], float]) -> Ideal:
    """Compare the peak of cellular batching with the ideal.

    In real time the speed of the machine varies. So both are measured in turns, cellular batching with all requests at
    once.

    Args:
        load: the sweep in which cellular batching has been measured.
        batch: the requests in one batch of the ideal.
        seconds: measures or computes the seconds of such a batch.
    """
    ours = load.curves["cellular"]
    if setting.virtual:
        return Ideal(ours.peaks, (batch / seconds(),) * len(ours.peaks))

    def ideal(number: int) -> Served:
        return {"throughput": batch / seconds()}

    at_once = partial(setting.run, ours.contender, ours.max_batch, load.workload, setting.num_requests, AT_ONCE)
    found = run_rounds({"cellular": at_once, "ideal": ideal}, setting.rounds, 0)
    return Ideal(found["cellular"].each("throughput"), found["ideal"].each("throughput"))

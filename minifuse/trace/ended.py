"""Counts requests that have ended, and their latencies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from operator import sub
from typing import Any

from minifuse.core.request import FinishReason
from minifuse.trace.lives import Life
from minifuse.trace.tally import Tally

Metrics = dict[str, Any]
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "normalized_latency_s", "queueing_s", "computing_s", "itl_s")


class EndedRequests:
    """Counts requests that have ended: of a whole run, or of one group."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()
        self.num_output = self.num_good = 0
        self.first_s = math.inf  # of the first arrival
        self.latencies = {name: Tally() for name in LATENCIES}

    @property
    def num_finished(self) -> int:
        return self.reasons[FinishReason.STOP.value] + self.reasons[FinishReason.LENGTH.value]

    def add(self, life: Life, goodput: Mapping[str, float]) -> None:
        times = life.token_times
        self.reasons[life.reason] += 1
        self.num_output += len(times)
        self.first_s = min(self.first_s, life.arrival_s)
        if not life.finished:
            return
        found = life.latencies
        self.latencies["itl_s"].add(map(sub, times[1:], times))
        for name, seconds in found.items():
            self.latencies[name].add((seconds,))
        self.num_good += all(found.get(f"{bound}_s", 0.0) <= limit for bound, limit in goodput.items())

    def summaries(self) -> dict[str, dict[str, float] | None]:
        """Summarise each latency of `minifuse.trace.metrics`, except the bound."""
        return {name: values.summary() for name, values in self.latencies.items()}

    def of_group(self) -> Metrics:
        num = {"requests": self.reasons.total(), "finished": self.num_finished, "output_tokens": self.num_output}
        return {**num, **self.summaries()}

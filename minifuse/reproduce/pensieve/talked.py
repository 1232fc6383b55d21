"""The outcome of a run of conversations: normalized latency and throughput, and what was found in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import median

from minifuse.core.errors import UsageError
from minifuse.reproduce.curve import Outcome
from minifuse.reproduce.pensieve.under_way import Crowd, Period
from minifuse.trace.lives import Life
from minifuse.trace.metrics import RunningMetrics, percentile


@dataclass(frozen=True, slots=True)
class Talked(Outcome):
    """As an outcome, of the requests that arrive in the measured period; its percentiles are of the normalized latency:
    end-to-end seconds a token of the answer. Throughput counts the turns that end in the period.

    Hits are the parts of histories found on a tier, and on either. Recomputed tokens count from the run's beginning to
    its end, and so does `history`, all tokens of histories that were asked for.
    """

    offered: float  # requests per second that were to arrive in the period, the same for all contenders
    device_hits: float
    host_hits: float
    hits: float
    recomputed: float
    history: float
    suspended: float
    rounds_throughput: tuple[float, ...] = ()  # of each round, of which the others are medians
    rounds_latency: tuple[float, ...] = ()  # the 90th percentile of each, in ms
    rounds_offered: tuple[float, ...] = ()

    @classmethod
    def measured(cls, run: RunningMetrics, period: Period, offered: float) -> Talked:
        """The outcome of a run, to which so many requests per second were offered in the period."""
        metrics, (begin_s, end_s) = run.result(), period
        lives = [life for life in run.lives.values() if begin_s <= life.arrival_s < end_s and life.finished]
        if not lives:
            raise UsageError("No request arrived in the measured period: give more --requests, or higher --rates.")
        ended = sum(begin_s <= life.ended_s < end_s for name, life in run.lives.items() if Crowd.is_turn(name))
        values = {
            f"{prefix}p{percent}": percentile(_ascending(lives, name), percent)
            for prefix, name in (
                ("", "normalized_latency_s"),
                ("queueing_", "queueing_s"),
                ("computing_", "computing_s"),
            )
            for percent in (50, 90, 99)
        }
        throughput = ended / (end_s - begin_s)
        return cls(
            throughput=throughput,
            **values,
            mean_batch=metrics["mean_batch_size"],
            idle_share=metrics["tokens"]["idle_share"],
            gathering_share=0.0,
            offered=offered,
            device_hits=metrics["history"]["device_hit_rate"] or 0.0,
            host_hits=metrics["history"]["host_hit_rate"] or 0.0,
            hits=(metrics["history"]["device_hit_rate"] or 0.0) + (metrics["history"]["host_hit_rate"] or 0.0),
            recomputed=metrics["tokens"]["recomputed"],
            history=metrics["history"]["tokens"],
            suspended=metrics["evictions"],
            rounds_throughput=(throughput,),
            rounds_latency=(values["p90"] * 1e3,),
            rounds_offered=(offered,),
        )

    @classmethod
    def median(cls, outcomes: Sequence[Outcome]) -> Talked:
        """Of each value the median over several runs; what each round came to stands beside it."""
        runs = [one for one in outcomes if isinstance(one, cls)]
        names = [field.name for field in fields(cls) if not field.name.startswith("rounds_")]
        return replace(
            runs[0],
            **{name: median(getattr(one, name) for one in runs) for name in names},
            rounds_throughput=tuple(one.throughput for one in runs),
            rounds_latency=tuple(one.p90 * 1e3 for one in runs),
            rounds_offered=tuple(one.offered for one in runs),
        )

    def of_round(self, number: int) -> Talked:
        """As it was in one round: its load and its 90th percentile."""
        return replace(self, p90=self.rounds_latency[number] / 1e3, offered=self.rounds_offered[number])


def _ascending(lives: Sequence[Life], name: str) -> list[float]:
    return sorted(life.latencies[name] for life in lives)

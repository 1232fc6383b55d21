"""One model on one machine, real or virtual, and what an experiment measures there."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, median_low
from typing import TYPE_CHECKING, Any

from minifuse.batching.fusion import MAIN
from minifuse.errors import UsageError
from minifuse.model.text.load import TextSource
from minifuse.report import StepReport
from minifuse.request import FinishReason, Phase, Request
from minifuse.serve.build import build_engine
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.techniques import technique

if TYPE_CHECKING:
    from minifuse.model.text.transformer import Transformer

__all__ = ["Bench", "Outcome", "observe", "race"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a list of requests. Times are seconds.

    `latency_s` is the overall latency: from the arrival of the first request to the end of the last. `overlap` is the
    mean number of requests that run in an iteration of the main stream, divided by the number of all requests (Flover,
    VI-C); `iterations` are those of the main stream, pre-processing left out.
    """

    latency_s: float
    iterations: int
    overlap: float
    iteration_s: float  # median of the main stream
    idle_tokens: int
    idle_share: float  # of the tokens computed
    num_moves: int  # slots copied by the shuffle
    moved_tokens: int
    moving_s: float
    rounds_s: tuple[float, ...] = ()  # the overall latency of every round, of which this is the median


def observe(requests: Sequence[Request], reports: Sequence[StepReport]) -> Outcome:
    """Read an outcome from the iterations that served `requests`, all of them to the end.

    >>> # two requests of 4 tokens, the second fused after the first two iterations of the first:
    >>> # 6 iterations run 1, 1, 2, 2, 1, 1 requests, so the overlap is (8 / 6) / 2 = 2/3
    """
    request_of = {request.id: request.group or request.id for request in requests}
    main = [report for report in reports if report.plan.worker == MAIN and report.plan.phase is Phase.RUNNING]
    running = [len({request_of[work.sequence] for work in report.plan.work}) for report in main]
    moves = [move for report in reports for move in report.plan.moves]
    idle = sum(report.plan.num_idle for report in reports)
    return Outcome(
        latency_s=max(report.ended_s for report in reports) - min(request.arrival_s for request in requests),
        iterations=len(main),
        overlap=fmean(running) / len(set(request_of.values())),
        iteration_s=median(report.ended_s - report.started_s for report in main),
        idle_tokens=idle,
        idle_share=idle / sum(report.plan.num_computed for report in reports),
        num_moves=len(moves),
        moved_tokens=sum(move.num_tokens for move in moves),
        moving_s=sum(report.moving_s for report in reports),
    )


class Bench:
    """Serves requests with one model under one clock; `model` is None in virtual time, where no weights are needed."""

    def __init__(self, source: TextSource, settings: Settings, model: Transformer | None) -> None:
        self.source = source
        self.settings = settings
        self.model = model

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's KV."""
        return self.source.config.kv_bytes_per_token(self.settings.dtype)

    def serve(self, name: str, requests: Sequence[Request], kv_tokens: int, options: Mapping[str, Any]) -> Outcome:
        """Serve with the technique `name`, its options and KV memory for so many tokens.

        Raises:
            UsageError: the model and its KV memory do not fit the machine of virtual time.
            KeyboardInterrupt: Ctrl-C, which `minifuse.serve.serve` by itself survives.
        """
        settings = replace(self.settings, kv_memory=kv_tokens * self.token_bytes, stage_options=options)
        engine = build_engine(technique(name), self.source, settings, self.model)
        reports: list[StepReport] = []
        if self.settings.clock == "real":
            gc.collect()  # what the last run left should not be cleared away in this one
        served = serve(engine, requests, on_step=reports.append)
        if served.interrupted:
            raise KeyboardInterrupt
        refused = next((a.why_refused for a in served.answers if a.finish_reason is FinishReason.REFUSED), None)
        if refused is not None:
            raise UsageError(refused)
        return observe(requests, reports)


def race(contenders: Mapping[str, Callable[[], Outcome]], rounds: int, first: int = 0) -> dict[str, Outcome]:
    """Let contenders take turns, each round begun by another one; of each the run with the median latency counts.

    Args:
        rounds: runs of each; of an even number the lower median counts.
        first: who begins the first round.
    """
    outcomes: dict[str, list[Outcome]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(first, first + rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            outcomes[name].append(contenders[name]())
    found = {}
    for name, runs in outcomes.items():
        latencies = tuple(run.latency_s for run in runs)
        found[name] = replace(runs[latencies.index(median_low(latencies))], rounds_s=latencies)
    return found

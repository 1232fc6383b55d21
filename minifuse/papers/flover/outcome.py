"""Reads Flover's measures from a run: overall latency, overlap, iterations, the shuffle's work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from minifuse.batching.fusion import MAIN
from minifuse.core.measured import measured_of
from minifuse.core.report import StepReport
from minifuse.core.request import Phase, Request


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of serving a list of requests. Times are seconds.

    `latency_s` is the overall latency: from the arrival of the first request to the end of the last. `iterations` are
    those of the main stream, without pre-processing. `overlap` is the mean number of requests in an iteration of the
    main stream, divided by the number of all requests (Flover, VI-C).
    """

    latency_s: float
    iterations: int
    overlap: float
    iteration_s: float  # median over the main stream
    idle_tokens: int
    idle_share: float  # as a part of the tokens computed
    num_moves: int  # slots copied by the shuffle
    moved_tokens: int
    moving_s: float
    num_messages: int  # of each rank, in the main stream
    message_bytes: int


def observe(requests: Sequence[Request], reports: Sequence[StepReport]) -> Outcome:
    """Read the outcome of a run that served all `requests` from its reports.

    >>> # two requests of 4 tokens, the second fused after the first two iterations of the first:
    >>> # 6 iterations run 1, 1, 2, 2, 1, 1 requests, so the overlap is (8 / 6) / 2 = 2/3
    """
    request_of = {request.id: request.group or request.id for request in requests}
    main = [report for report in reports if report.plan.worker == MAIN and report.plan.phase is Phase.RUNNING]
    running = [len({request_of[work.sequence] for work in report.plan.work}) for report in main]
    moves = [move for report in reports for move in report.plan.moves]
    idle = sum(report.plan.num_idle for report in reports)
    sent = [measured_of(report) for report in main]
    return Outcome(
        latency_s=max(report.ended_s for report in reports) - min(request.arrival_s for request in requests),
        iterations=len(main),
        overlap=fmean(running) / len(set(request_of.values())),
        iteration_s=median(report.ended_s - report.started_s for report in main),
        idle_tokens=idle,
        idle_share=idle / sum(report.plan.num_computed for report in reports),
        num_moves=len(moves),
        moved_tokens=sum(move.num_tokens for move in moves),
        moving_s=sum(measured_of(report).moving_s for report in reports),
        num_messages=sum(one.num_messages for one in sent),
        message_bytes=sum(one.message_bytes for one in sent),
    )

"""Computes every metric of a run from its trace alone.

    metrics = compute_metrics(trace.events(), parse_goodput("ttft:200,tpot:50"))  # of a trace that was kept, or read
    counted = RunningMetrics(parse_goodput("ttft:200,tpot:50"))  # or while it runs, in bounded memory:
    engine = build_engine(..., into=counted.read)
    metrics = counted.result()

    metrics["ttft_s"]["p90"]  # seconds

Times are seconds on the run's clock; request `arrival_s` and steps share one zero. Latencies cover finished requests
(`stop` or `length`); sums cover the whole run. A metric without a value, because nothing finished or no time passed, is
None and never NaN: the result is JSON as it is.

| metric | from | to |
|---|---|---|
| `queueing_s` | arrival | start of the first step with its work |
| `computing_s` | that start | end of the step that finishes it; queueing and computing add up to `e2e_s` |
| `ttft_s` | arrival | end of the step with its first token |
| `itl_s` | a token | the next token of the same request; the gaps of all requests in one pool |
| `tpot_s` | first token | finish, divided by the output tokens minus one; requests of two tokens and more |
| `e2e_s` | arrival | finish |
| `normalized_latency_s` | arrival | finish, divided by the output tokens |
| `latency_bound_s` | the largest of all gaps | |

`most_overtaken` is the largest number of requests that overtook the same request: they arrived later, and were first
admitted while it waited.

`history` is about requests that continue the text of another request, or of an earlier run. It counts the tokens of
that text whose KV had been computed, and how many of them each tier of memory still had when the request was first
admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minifuse.core.errors import UsageError
from minifuse.trace.ended import Metrics
from minifuse.trace.log import Event
from minifuse.trace.running import RunningMetrics


def read_events(
    events: Iterable[Event], goodput: Mapping[str, float] | None = None, by: str | None = None
) -> RunningMetrics:
    """Count the events of a trace, complete or cut off anywhere.

    Args:
        goodput, by: as for `RunningMetrics`.

    Raises:
        UsageError: an event lacks a key, or has a value of another type.
    """
    run = RunningMetrics(goodput, by)
    for number, event in enumerate(events, start=1):
        try:
            run.read(event)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"Line {number} of the trace cannot be understood ({type(error).__name__}: {error}): "
                "write the trace again with --trace."
            ) from None
    return run


def compute_metrics(events: Iterable[Event], goodput: Mapping[str, float] | None = None) -> Metrics:
    """Compute every metric of a trace, complete or cut off.

    A request that neither finished nor was refused or aborted counts as interrupted. The run lasts from the first
    arrival to the last time in the trace.

    Prefill tokens belong to prompts, or to answers computed anew. Recomputed tokens had been computed before, for the
    same request or for one that it follows. Reused tokens were found in memory when a request was admitted, at first or
    again. Idle tokens belong to no request, discarded ones to requests that had ended. Pre-processing
    steps are not counted as iterations. For cell graphs, nodes are counted instead of prefill and
    decode tokens, and every batch of nodes is an iteration. Mean KV is weighted with the time of each step, so waiting
    does not count.

    `moving_s` is the time that computing waited for moves. Transfers between device and host have bytes and seconds in
    each direction; their seconds are hidden if computing went on, and exposed if it waited. `on_host` has the seconds
    of attention by the host beside the device, and how long computing waited for it. `other_cores` is how many cores
    other processes used, on average; None in virtual time, or if unknown.

    Args:
        goodput: bounds of latencies, from `parse_goodput`.

    Raises:
        UsageError: an event lacks a key, or has a value of another type.
    """
    return read_events(events, goodput).result()


def flat_metrics(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested metrics into one dict: a row of a sweep's table.

    >>> flat_metrics({"ttft_s": {"p50": 0.25, "max": 1.0}, "iterations": 7, "itl_s": None})
    {'ttft_s.p50': 0.25, 'ttft_s.max': 1.0, 'iterations': 7, 'itl_s': None}
    """
    row: dict[str, Any] = {}
    for name, value in metrics.items():
        row |= flat_metrics(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return row

"""Every metric of a run, computed from its trace alone.

    metrics = compute_metrics(trace.events(), parse_goodput("ttft:200,tpot:50"))
    metrics["ttft_s"]["p90"]  # seconds

Times are seconds on the run's clock, where request `arrival_s` and steps share one zero. The latencies are those
of finished requests (`stop` or `length`), the sums are those of the whole run. What has no value, because nothing
finished or no time passed, is None and never NaN: the result is JSON as it is.

| metric | from | to |
|---|---|---|
| `queueing_s` | arrival | start of the first step that holds its work |
| `computing_s` | that start | end of the step that finishes it; with queueing it makes the end-to-end time |
| `ttft_s` | arrival | end of the step that gives its first token |
| `itl_s` | a token | the next token of the same request; the gaps of all requests in one pool |
| `tpot_s` | first token | finish, divided by the output tokens but one; requests of two tokens and more |
| `e2e_s` | arrival | finish |
| `normalized_latency_s` | arrival | finish, divided by the output tokens |
| `latency_bound_s` | the largest of all gaps | |

The trace does not carry cache hits yet, so there is no metric of them: absent, not zero.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, get_args, get_type_hints

from minifuse.errors import UsageError
from minifuse.parsing import parse_goodput
from minifuse.plan import Move
from minifuse.request import FinishReason, Phase
from minifuse.trace import Event
from minifuse.work import TRANSFORMER

__all__ = ["Metrics", "compute_metrics", "parse_goodput", "percentile"]

Metrics = dict[str, Any]
MOVE_KINDS: tuple[str, ...] = get_args(get_type_hints(Move)["kind"])


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated linearly between the two neighbours.

    The k-th of n ascending values is the 100 * k / (n - 1) th percentile (k from 0): numpy's default.

    >>> percentile([10, 20, 40], 75)  # halfway from the second to the third
    30.0
    """
    position = (len(ascending) - 1) * percent / 100
    below = math.floor(position)
    low, high = ascending[below], ascending[min(below + 1, len(ascending) - 1)]
    return min(low + (high - low) * (position - below), high)  # rounding must not exceed the neighbour


def summary(values: Iterable[float]) -> dict[str, float] | None:
    """Mean, percentiles and maximum; None without values."""
    ascending = sorted(values)
    if not ascending:
        return None
    points = {f"p{percent}": percentile(ascending, percent) for percent in (50, 90, 99)}
    return {"mean": math.fsum(ascending) / len(ascending), **points, "max": ascending[-1]}


@dataclass(slots=True)
class _Life:
    """One request, as its events tell."""

    arrival_s: float
    prompt_tokens: int
    started_s: float = math.inf
    token_times: list[float] = field(default_factory=list)
    ended_s: float = math.nan
    reason: str = FinishReason.INTERRUPTED.value  # until a step says otherwise
    computed: defaultdict[str, bytearray] = field(default_factory=lambda: defaultdict(bytearray))

    def compute(self, start: int, stop: int, cell: str) -> int:
        """Notes that tokens [start, stop) were computed; returns how many of them had been before."""
        computed = self.computed[cell]  # a 1 for each token computed
        again = computed.count(1, start, stop)
        computed.extend(bytes(max(0, stop - len(computed))))
        computed[start:stop] = b"\1" * (stop - start)
        return again

    @property
    def finished(self) -> bool:
        return self.reason in (FinishReason.STOP.value, FinishReason.LENGTH.value)

    @property
    def latencies(self) -> dict[str, float]:
        """Of a finished request, by the metric's name; only those it has."""
        times = sorted(self.token_times)
        found = {
            "queueing_s": self.started_s - self.arrival_s,
            "computing_s": self.ended_s - self.started_s,
            "e2e_s": self.ended_s - self.arrival_s,
        }
        if times:
            found["ttft_s"] = times[0] - self.arrival_s
            found["normalized_latency_s"] = found["e2e_s"] / len(times)
        if len(times) > 1:
            found["tpot_s"] = (self.ended_s - times[0]) / (len(times) - 1)
        return found


class _Run:
    """The events, counted one by one."""

    def __init__(self) -> None:
        self.lives: dict[str, _Life] = {}
        self.bytes_per_token: int | None = None
        self.last_s = 0.0
        self.num: Counter[str] = Counter()  # tokens of each sort, iterations, pieces of work, requests refused
        self.moves: dict[str, list[int]] = {kind: [] for kind in MOVE_KINDS}  # tokens of each move
        self.moving_s = self.gathering_s = self.hidden_s = self.exposed_s = 0.0
        self.transfers = {way: [0, 0.0] for way in ("to_host", "to_device")}  # bytes, seconds
        # The seconds each step took, used, reserved, capacity, host, kept, kept on the host.
        self.kv: list[tuple[float, int, int, int, int, int, int]] = []

    def read(self, event: Event) -> None:
        self.last_s = max(self.last_s, event.get("wall", {}).get("end_s", 0.0))
        match event["event"]:
            case "run":
                self.bytes_per_token = event.get("kv_bytes_per_token")
            case "request":
                life = self.lives.setdefault(event["id"], _Life(event["arrival_s"], event["prompt_tokens"]))
                # All of a history has been computed before but its last token, which no token followed then.
                life.compute(0, max(0, event.get("history_tokens", 0) - 1), TRANSFORMER)
            case "refused":
                self.num["refused"] += 1
                if event.get("received"):  # otherwise not by id: a refused duplicate bears that of one that is served
                    del self.lives[event["id"]]
            case "aborted":
                life = self.lives[event["id"]]
                life.reason, life.ended_s = FinishReason.ABORTED.value, event["wall"]["end_s"]
            case "step":
                self._step(event)

    def _step(self, event: Event) -> None:
        start_s, end_s = event["wall"]["start_s"], event["wall"]["end_s"]
        of_cells = False
        for name, start, stop, *cell in event["work"]:
            life = self.lives[name]
            life.started_s = min(life.started_s, start_s)
            # One token past the prompt is a decode step; a prompt, or an answer computed anew, is prefill.
            decode = stop - start == 1 and start >= life.prompt_tokens
            self.num["nodes" if cell else "decode" if decode else "prefill"] += stop - start
            self.num["recomputed"] += life.compute(start, stop, *cell or [TRANSFORMER])
            of_cells = bool(cell)
        if event["phase"] == Phase.PREPROCESSING.value:
            self.num["preprocessing"] += 1
        elif of_cells:  # every wave is a batch
            self.num["iterations"] += max(1, len(event["waves"]))
            self.num["work"] += len(event["work"])
        else:
            self.num["iterations"] += event["computed"] > 0  # a plan may hold nothing but moves
            self.num["work"] += len({work[0] for work in event["work"]})  # two spans of one request count once
        self.num["discarded"] += event.get("discarded", 0)
        copies, rows, seconds = event["wall"].get("gathers", (0, 0, 0.0))
        self.num["gathers"] += copies
        self.num["gathered"] += rows
        self.gathering_s += seconds
        self.moving_s += event["wall"].get("moving_s", 0.0)
        if carried := event["wall"].get("transfers"):
            for way, total in self.transfers.items():
                total[0] += carried[way][0]
                total[1] += carried[way][1]
            self.hidden_s += carried["hidden_s"]
            self.exposed_s += carried["exposed_s"]
        self.num["messages"] += event["wall"].get("messages", 0)
        self.num["message_bytes"] += event["wall"].get("message_bytes", 0)
        self.num["computed"] += event["computed"]
        self.num["idle"] += event["idle"]
        for kind, _, _, num_tokens, *_ in event["moves"]:
            self.moves[kind].append(num_tokens)
        for name, tokens in event["tokens"].items():
            self.lives[name].token_times += [end_s] * len(tokens)
        for name, reason in event["finished"].items():
            self.lives[name].reason, self.lives[name].ended_s = reason, end_s
        self.num["evicted"] += len(event["evicted"])
        used, reserved, capacity, host = event["kv"]
        # A plan of moves alone runs beside the others: its time counts already.
        kept, kept_on_host = event.get("kept", (0, 0))
        seconds = end_s - start_s if event["work"] else 0.0
        self.kv.append((seconds, used, reserved, capacity, host, kept, kept_on_host))


def compute_metrics(events: Iterable[Event], goodput: Mapping[str, float] | None = None) -> Metrics:
    """Every metric of the trace, complete or cut off anywhere; `goodput` as from `parse_goodput`.

    A request that neither finished nor was refused or aborted counts as interrupted. The run lasts from the first
    arrival to the last time in the trace. Prefill tokens are those of prompts and of answers computed anew; recomputed
    are those that the same request, or those that it follows, had computed before; idle tokens belong to no request.
    Steps that pre-process beside the main stream are counted apart from its iterations. Of cell graphs, nodes are
    counted instead of prefill and decode tokens, and every batch of them as an iteration. Discarded is what was
    computed for requests that had ended. Mean KV is weighted with the time each step took, so waiting does not count.
    `moving_s` is the time that moves held the computation up. Transfers are what was copied between device and host:
    bytes and seconds in each direction, and of those seconds those beside computing (hidden) and those that computing
    waited for (exposed).

    Raises:
        UsageError: an event is not as `minifuse.trace` writes it.
    """
    run = _Run()
    for number, event in enumerate(events, start=1):
        try:
            run.read(event)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"Line {number} of the trace cannot be understood ({type(error).__name__}: {error}): "
                "write the trace again with --trace."
            ) from None
    served = list(run.lives.values())
    finished = [life for life in served if life.finished]
    arrived_s = min((life.arrival_s for life in served), default=math.inf)
    duration_s = max(run.last_s - arrived_s, 0.0)
    num_output = sum(len(life.token_times) for life in served)

    def per_second(count: int) -> float | None:
        return count / duration_s if duration_s > 0 else None

    latencies = [life.latencies for life in finished]
    gaps = [late - early for life in finished for early, late in pairwise(sorted(life.token_times))]
    good = sum(
        all(own.get(f"{bound}_s", 0.0) <= limit for bound, limit in (goodput or {}).items()) for own in latencies
    )
    reasons = Counter(life.reason for life in served) + Counter(refused=run.num["refused"])
    num = run.num
    return {
        "requests": {
            "total": reasons.total(),
            **{reason.value: reasons[reason.value] for reason in FinishReason},
        },
        "duration_s": duration_s,
        "throughput": {"tokens_per_s": per_second(num_output), "requests_per_s": per_second(len(finished))},
        **{
            name: summary(own[name] for own in latencies if name in own)
            for name in ("ttft_s", "tpot_s", "e2e_s", "normalized_latency_s", "queueing_s", "computing_s")
        },
        "itl_s": summary(gaps),
        "latency_bound_s": max(gaps, default=None),
        "iterations": num["iterations"],
        "preprocessing_steps": num["preprocessing"],
        "mean_batch_size": num["work"] / num["iterations"] if num["iterations"] else None,
        "tokens": {
            "output": num_output,
            **{kind: num[kind] for kind in ("computed", "prefill", "decode", "recomputed", "idle")},
            "idle_share": num["idle"] / num["computed"] if num["computed"] else None,
        },
        "nodes": num["nodes"],
        "discarded": num["discarded"],
        "gathers": {"count": num["gathers"], "rows": num["gathered"], "seconds": run.gathering_s},
        "evictions": num["evicted"],
        "kv": _kv(run),
        "moves": {
            kind: {"count": len(moves), "tokens": sum(moves), "bytes": _bytes(run, sum(moves))}
            for kind, moves in run.moves.items()
        },
        "moving_s": run.moving_s,
        "transfers": {
            **{way: {"bytes": total[0], "seconds": total[1]} for way, total in run.transfers.items()},
            "hidden_s": run.hidden_s,
            "exposed_s": run.exposed_s,
        },
        "messages": {"count": num["messages"], "bytes": num["message_bytes"]},
        "goodput": None
        if goodput is None
        else {"bounds_s": dict(goodput), "requests": good, "requests_per_s": per_second(good)},
    }


def _kv(run: _Run) -> dict[str, float | None]:
    """Peak and mean of the KV in use, of the KV set aside, and of that on the host, in tokens and in bytes."""
    seconds = math.fsum(step[0] for step in run.kv)
    found: dict[str, float | None] = {"capacity_tokens": max((step[3] for step in run.kv), default=None)}
    for column, kind in ((1, "used"), (2, "reserved"), (4, "host"), (5, "kept"), (6, "kept_host")):
        values = [step[column] for step in run.kv]
        weights = [step[0] / seconds if seconds > 0 else 1 / len(run.kv) for step in run.kv]
        mean = math.fsum(map(math.prod, zip(values, weights, strict=True))) if run.kv else None
        found |= {f"peak_{kind}_tokens": max(values, default=None), f"mean_{kind}_tokens": mean}
    return found | {name.replace("tokens", "bytes"): _bytes(run, value) for name, value in found.items()}


def _bytes(run: _Run, tokens: float | None) -> float | None:
    return None if tokens is None or run.bytes_per_token is None else tokens * run.bytes_per_token

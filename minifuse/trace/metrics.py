"""Computes every metric of a run from its trace alone.

    metrics = compute_metrics(trace.events(), parse_goodput("ttft:200,tpot:50"))  # of a trace that was kept, or read
    counted = RunningMetrics()  # or while it runs: `build_engine(..., into=counted.read)`, then
    metrics = counted.result(parse_goodput("ttft:200,tpot:50"))

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

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from statistics import fmean
from typing import Any, get_args

from minifuse.core.errors import UsageError
from minifuse.core.plan import TRANSFORMER, MoveKind
from minifuse.core.request import FinishReason, Phase
from minifuse.io.parsing import check_goodput, unknown
from minifuse.trace.lives import Life, most_overtaken
from minifuse.trace.log import Event, arrival_of

Metrics = dict[str, Any]
Groups = dict[str | int | None, Metrics]  # by user, priority or conversation
GROUPINGS = ("user", "priority", "conversation")  # what metrics can be grouped by
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "normalized_latency_s", "queueing_s", "computing_s", "itl_s")


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the values lie, interpolated linearly.

    The k-th of n ascending values is the 100 * k / (n - 1) th percentile (k from 0): numpy's default.

    >>> percentile([10, 20, 40], 75)  # halfway from the second to the third
    30.0
    """
    position = (len(ascending) - 1) * percent / 100
    below = math.floor(position)
    low, high = ascending[below], ascending[min(below + 1, len(ascending) - 1)]
    return min(low + (high - low) * (position - below), high)  # rounding must not exceed the neighbour


def summary(values: Iterable[float]) -> dict[str, float] | None:
    """Return mean, percentiles and maximum; None without values."""
    ascending = sorted(values)
    if not ascending:
        return None
    points = {f"p{percent}": percentile(ascending, percent) for percent in (50, 90, 99)}
    return {"mean": fmean(ascending), **points, "max": ascending[-1]}


class _Memory:
    """Counts KV in use, set aside, on the host, and kept, step by step."""

    def __init__(self) -> None:
        self.num_steps, self.seconds, self.capacity = 0, 0.0, 0
        self.peak = dict.fromkeys(("used", "reserved", "host", "kept", "kept_host"), 0)
        self.tokens = dict.fromkeys(self.peak, 0)  # sums over steps
        self.token_seconds = dict.fromkeys(self.peak, 0.0)

    def add(self, seconds: float, capacity: int, *usage: int) -> None:
        """Count a step; `usage` has the tokens of each kind, ordered as in `peak`."""
        self.num_steps += 1
        self.seconds += seconds
        self.capacity = max(self.capacity, capacity)
        for kind, tokens in zip(self.peak, usage, strict=True):
            self.peak[kind] = max(self.peak[kind], tokens)
            self.tokens[kind] += tokens
            self.token_seconds[kind] += tokens * seconds

    def result(self, bytes_per_token: int | None) -> dict[str, float | None]:
        """Return peak and mean of each kind, in tokens and in bytes.

        The mean is weighted with the time of each step.
        """
        found: dict[str, float | None] = {"capacity_tokens": self.capacity if self.num_steps else None}
        for kind, peak in self.peak.items():
            mean = _ratio(self.token_seconds[kind], self.seconds)
            if mean is None:  # no time passed
                mean = _ratio(self.tokens[kind], self.num_steps)
            found |= {f"peak_{kind}_tokens": peak if self.num_steps else None, f"mean_{kind}_tokens": mean}
        in_bytes = {name.replace("tokens", "bytes"): _bytes(value, bytes_per_token) for name, value in found.items()}
        return found | in_bytes


class RunningMetrics:
    """Counts the metrics of a run event by event.

    It keeps only numbers: a few for each request, one for each token. `read` takes the events of a trace or, during a
    run, those of `Trace(into=...)`.
    """

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.bytes_per_token: int | None = None
        self.last_s = 0.0
        self.num: Counter[str] = Counter()  # tokens of each kind, iterations, pieces of work, refused requests
        self.moves: dict[str, list[int]] = {kind: [0, 0] for kind in get_args(MoveKind)}  # moves, tokens
        self.moving_s = self.gathering_s = self.hidden_s = self.exposed_s = 0.0
        self.transfers = {way: [0, 0.0] for way in ("to_host", "to_device")}  # bytes, seconds
        self.kv = _Memory()
        self.other_cores: float | None = None

    def read(self, event: Event) -> None:
        """Count an event."""
        self.last_s = max(self.last_s, event.get("wall", {}).get("end_s", 0.0))
        match event["event"]:
            case "run":
                self.bytes_per_token = event.get("kv_bytes_per_token")
            case "request":
                arrival_s, arrived = arrival_of(event)
                life = self.lives.setdefault(event["id"], Life(arrival_s, event["prompt_tokens"], arrived))
                life.user, life.priority = event.get("user"), event.get("priority", 0)
                life.conversation = event.get("conversation")
                # All tokens of a history have been computed before, except the last: no token followed it.
                life.history = max(0, event.get("history_tokens", 0) - 1)
                life.computed[TRANSFORMER].add(0, life.history)
            case "refused":
                self.num["refused"] += 1
                if event.get("received"):  # otherwise another request, which is served, may have this id
                    del self.lives[event["id"]]
            case "aborted":
                life = self.lives[event["id"]]
                life.reason, life.ended_s = FinishReason.ABORTED.value, event["wall"]["end_s"]
            case "step":
                self._step(event)
            case "end":
                self.other_cores = event["wall"].get("other_cores")

    def _step(self, event: Event) -> None:
        wall, num, of_cells = event["wall"], self.num, False
        start_s, end_s = wall["start_s"], wall["end_s"]
        for name, start, stop, *cell in event["work"]:
            life = self.lives[name]
            if start_s < life.started_s:
                life.started_s = start_s
            kind = cell[0] if cell else TRANSFORMER
            of_cells = kind != TRANSFORMER
            # One token past the prompt is a decode step; a prompt, or an answer computed anew, is prefill.
            decode = stop - start == 1 and start >= life.prompt_tokens
            num["nodes" if of_cells else "decode" if decode else "prefill"] += stop - start
            num["recomputed"] += life.computed[kind].add(start, stop)
        if event["phase"] == Phase.PREPROCESSING.value:
            num["preprocessing"] += 1
        elif of_cells:  # every wave is a batch
            num["iterations"] += max(1, len(event["waves"]))
            num["work"] += len(event["work"])
        else:
            num["iterations"] += event["computed"] > 0  # a plan may hold nothing but moves
            num["work"] += len({work[0] for work in event["work"]})  # two spans of one request count once
        copies, rows, seconds = wall.get("gathers", (0, 0, 0.0))
        num["gathers"] += copies
        num["gathered"] += rows
        self.gathering_s += seconds
        self.moving_s += wall.get("moving_s", 0.0)
        if carried := wall.get("transfers"):
            for way, total in self.transfers.items():
                total[0] += carried[way][0]
                total[1] += carried[way][1]
            self.hidden_s += carried["hidden_s"]
            self.exposed_s += carried["exposed_s"]
        for name in ("messages", "message_bytes"):
            num[name] += wall.get(name, 0)
        for name in ("computed", "idle"):
            num[name] += event[name]
        num["discarded"] += event.get("discarded", 0)
        num["evicted"] += len(event["evicted"])
        for kind, _, _, num_tokens, *_ in event["moves"]:
            moved = self.moves[kind]
            moved[0] += 1
            moved[1] += num_tokens
        for name, tokens in event["tokens"].items():
            self.lives[name].token_times.extend([end_s] * len(tokens))
        for name, reason in event["finished"].items():
            life = self.lives[name]
            life.reason, life.ended_s = reason, end_s
        for name in event["evicted"]:
            self.lives[name].evicted_s = start_s
        reused = {name: found for name, *found in event.get("reused", ())}
        for name in event["admitted"]:
            self._admit(name, start_s, *reused.get(name, (0, 0)))
        used, reserved, capacity, host = event["kv"]
        # A plan with only moves runs while other plans run, and their time is counted.
        seconds = end_s - start_s if event["work"] else 0.0
        self.kv.add(seconds, capacity, used, reserved, host, *event.get("kept", (0, 0)))

    def _admit(self, name: str, now: float, on_device: int, on_host: int) -> None:
        """Count an admission; the request found these numbers of tokens of its text in memory."""
        life = self.lives[name]
        self.num["reused"] += on_device + on_host
        if life.history and life.admitted_s == math.inf:
            self.num["history"] += life.history
            on_host = min(on_host, life.history)
            self.num["history_on_host"] += on_host
            self.num["history_on_device"] += min(on_device, life.history - on_host)  # sharing may find more
        life.admit(now)

    def result(self, goodput: Mapping[str, float] | None = None) -> Metrics:
        """Return every metric of the events read so far.

        Args:
            goodput: bounds of latencies, from `parse_goodput`.

        Raises:
            UsageError: a bound has an unknown metric, or is not a time.
        """
        check_goodput(goodput or {})
        served = list(self.lives.values())
        finished = [life for life in served if life.finished]
        arrived_s = min((life.arrival_s for life in served), default=math.inf)
        lasted_s = max(self.last_s - arrived_s, 0.0)
        num_output = sum(len(life.token_times) for life in served)
        latencies = _latencies(finished)
        good = sum(
            all(life.latencies.get(f"{bound}_s", 0.0) <= limit for bound, limit in (goodput or {}).items())
            for life in finished
        )
        reasons = Counter(life.reason for life in served) + Counter(refused=self.num["refused"])
        num = self.num
        return {
            "requests": {
                "total": reasons.total(),
                **{reason.value: reasons[reason.value] for reason in FinishReason},
            },
            "duration_s": lasted_s,
            "throughput": {
                "tokens_per_s": _ratio(num_output, lasted_s),
                "requests_per_s": _ratio(len(finished), lasted_s),
            },
            **latencies,
            "latency_bound_s": latencies["itl_s"] and latencies["itl_s"]["max"],
            "iterations": num["iterations"],
            "preprocessing_steps": num["preprocessing"],
            "mean_batch_size": _ratio(num["work"], num["iterations"]),
            "tokens": {
                "output": num_output,
                **{kind: num[kind] for kind in ("computed", "prefill", "decode", "recomputed", "reused", "idle")},
                "idle_share": _ratio(num["idle"], num["computed"]),
            },
            "history": {
                "tokens": num["history"],
                "on_device": num["history_on_device"],
                "on_host": num["history_on_host"],
                "device_hit_rate": _ratio(num["history_on_device"], num["history"]),
                "host_hit_rate": _ratio(num["history_on_host"], num["history"]),
            },
            "nodes": num["nodes"],
            "discarded": num["discarded"],
            "gathers": {"count": num["gathers"], "rows": num["gathered"], "seconds": self.gathering_s},
            "evictions": num["evicted"],
            "most_overtaken": most_overtaken(served),
            "kv": self.kv.result(self.bytes_per_token),
            "moves": {
                kind: {"count": count, "tokens": tokens, "bytes": _bytes(tokens, self.bytes_per_token)}
                for kind, (count, tokens) in self.moves.items()
            },
            "moving_s": self.moving_s,
            "transfers": {
                **{way: {"bytes": total[0], "seconds": total[1]} for way, total in self.transfers.items()},
                "hidden_s": self.hidden_s,
                "exposed_s": self.exposed_s,
            },
            "messages": {"count": num["messages"], "bytes": num["message_bytes"]},
            "other_cores": self.other_cores,
            "goodput": None
            if goodput is None
            else {"bounds_s": dict(goodput), "requests": good, "requests_per_s": _ratio(good, lasted_s)},
        }

    def grouped(self, by: str) -> Groups:
        """Return count, tokens and latencies by user, priority or conversation.

        None stands for no user, or no conversation. Groups come in the order of their first arrival, priorities from
        the highest. Requests refused at submission are in no group.

        Args:
            by: one of `GROUPINGS`.

        Raises:
            UsageError: `by` is not one of `GROUPINGS`.
        """
        if by not in GROUPINGS:
            raise unknown("grouping", by, GROUPINGS)
        found: dict[Any, list[Life]] = {}
        for life in sorted(self.lives.values(), key=attrgetter("arrival_s")):
            found.setdefault(getattr(life, by), []).append(life)
        names = sorted(found, reverse=True) if by == "priority" else found
        return {name: _of_group(found[name]) for name in names}


def _of_group(lives: Sequence[Life]) -> Metrics:
    finished = [life for life in lives if life.finished]
    output = sum(len(life.token_times) for life in lives)
    return {"requests": len(lives), "finished": len(finished), "output_tokens": output, **_latencies(finished)}


def _latencies(finished: Iterable[Life]) -> dict[str, dict[str, float] | None]:
    """Summarise each latency in the module's table, except the bound."""
    found: dict[str, list[float]] = {name: [] for name in LATENCIES}
    for life in finished:
        found["itl_s"] += [late - early for early, late in pairwise(life.token_times)]
        for name, seconds in life.latencies.items():
            found[name].append(seconds)
    return {name: summary(values) for name, values in found.items()}


def read_events(events: Iterable[Event]) -> RunningMetrics:
    """Count the events of a trace, complete or cut off anywhere.

    Raises:
        UsageError: an event lacks a key, or has a value of another type.
    """
    run = RunningMetrics()
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
    each direction; their seconds are hidden if computing went on, and exposed if it waited. `other_cores` is how many
    cores other processes used, on average; None in virtual time, or if unknown.

    Args:
        goodput: bounds of latencies, from `parse_goodput`.

    Raises:
        UsageError: an event lacks a key, or has a value of another type.
    """
    return read_events(events).result(goodput)


def flat_metrics(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested metrics into one dict: a row of a sweep's table.

    >>> flat_metrics({"ttft_s": {"p50": 0.25, "max": 1.0}, "iterations": 7, "itl_s": None})
    {'ttft_s.p50': 0.25, 'ttft_s.max': 1.0, 'iterations': 7, 'itl_s': None}
    """
    row: dict[str, Any] = {}
    for name, value in metrics.items():
        row |= flat_metrics(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return row


def _ratio(amount: float, of: float) -> float | None:
    return amount / of if of > 0 else None


def _bytes(tokens: float | None, bytes_per_token: int | None) -> float | None:
    return None if tokens is None or bytes_per_token is None else tokens * bytes_per_token

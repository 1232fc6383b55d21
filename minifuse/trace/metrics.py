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

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from operator import sub
from typing import Any, get_args

from minifuse.core.errors import UsageError
from minifuse.core.plan import TRANSFORMER, MoveKind
from minifuse.core.request import FinishReason, Phase
from minifuse.io.parsing import check_goodput, unknown
from minifuse.trace.lives import Life
from minifuse.trace.log import Event, arrival_of
from minifuse.trace.overtaken import Overtaken
from minifuse.trace.tally import Tally

Metrics = dict[str, Any]
Groups = dict[str | int | None, Metrics]  # by user, priority or conversation
GROUPINGS = ("user", "priority", "conversation")  # what metrics can be grouped by
FORGOTTEN = 4096  # ended requests, after which arrivals that no longer matter are forgotten
LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "normalized_latency_s", "queueing_s", "computing_s", "itl_s")


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


class _Requests:
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
        """Summarise each latency in the module's table, except the bound."""
        return {name: values.summary() for name, values in self.latencies.items()}

    def of_group(self) -> Metrics:
        num = {"requests": self.reasons.total(), "finished": self.num_finished, "output_tokens": self.num_output}
        return {**num, **self.summaries()}


class RunningMetrics:
    """Counts the metrics of a run event by event.

    Memory grows with the requests that have not ended, and hardly with those that have: see `Tally`. `read` takes the
    events of a trace or, during a run, those of `Trace(into=...)`.

    Args:
        goodput: bounds of latencies, from `parse_goodput`.
        by: also count requests by this, one of `GROUPINGS`.
        on_end: is called with each request that has ended.

    Raises:
        UsageError: a bound has an unknown metric, or is not a time; or `by` is not one of `GROUPINGS`.
    """

    def __init__(
        self,
        goodput: Mapping[str, float] | None = None,
        by: str | None = None,
        on_end: Callable[[str, Life], None] = lambda name, life: None,
    ) -> None:
        check_goodput(goodput or {})
        if by is not None and by not in GROUPINGS:
            raise unknown("grouping", by, GROUPINGS)
        self.goodput, self.by, self.on_end = goodput, by, on_end
        self.lives: dict[str, Life] = {}  # requests that later events may name
        self.bytes_per_token: int | None = None
        self.last_s = 0.0
        self.num: Counter[str] = Counter()  # tokens of each kind, iterations, pieces of work, refused requests
        self.moves: dict[str, list[int]] = {kind: [0, 0] for kind in get_args(MoveKind)}  # moves, tokens
        self.moving_s = self.gathering_s = self.hidden_s = self.exposed_s = 0.0
        self.transfers = {way: [0, 0.0] for way in ("to_host", "to_device")}  # bytes, seconds
        self.kv = _Memory()
        self.other_cores: float | None = None
        self._all = _Requests()
        self._groups: dict[str | int | None, _Requests] = {}  # in the order of their first request
        self._overtaken = Overtaken()
        self._steps = _Steps()
        self._just_ended: list[tuple[str, Life]] = []  # since the last step
        self._num_forgotten = 0
        self._ended: deque[tuple[float, str, Life]] = deque()  # (number of plans submitted until then, ...)

    def read(self, event: Event) -> None:
        """Count an event."""
        self.last_s = max(self.last_s, event.get("wall", {}).get("end_s", 0.0))
        match event["event"]:
            case "run":
                self.bytes_per_token = event.get("kv_bytes_per_token")
            case "request":
                arrival_s, arrived = arrival_of(event)
                life = self.lives.get(event["id"])
                if life is None or life.has_ended:  # an id may be used again
                    life = self.lives[event["id"]] = Life(arrival_s, event["prompt_tokens"], arrived)
                life.user, life.priority = event.get("user"), event.get("priority", 0)
                life.conversation = event.get("conversation")
                if self.by is not None:
                    self._groups.setdefault(getattr(life, self.by), _Requests())
                # All tokens of a history have been computed before, except the last: no token followed it.
                life.history = max(0, event.get("history_tokens", 0) - 1)
                life.computed[TRANSFORMER].add(0, life.history)
            case "refused":
                self.num["refused"] += 1
                if event.get("received"):  # otherwise another request, which is served, may have this id
                    del self.lives[event["id"]]
            case "aborted":
                self._end(event["id"], FinishReason.ABORTED.value, event["wall"]["end_s"])
            case "step":
                self._step(event)
            case "end":
                self.other_cores = event["wall"].get("other_cores")

    def _step(self, event: Event) -> None:
        wall, num, of_cells = event["wall"], self.num, False
        start_s, end_s = wall["start_s"], wall["end_s"]
        launched = event.get("launched", math.inf)  # a trace that is read does not tell
        self._forget(launched)
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
            self._end(name, reason, end_s)
        for name in event["evicted"]:
            self._overtaken.evicted(self.lives[name], start_s, launched)
        reused = {name: found for name, *found in event.get("reused", ())}
        for name in event["admitted"]:
            self._admit(name, start_s, launched, *reused.get(name, (0, 0)))
        self._steps.complete(event.get("step", 0))
        used, reserved, capacity, host = event["kv"]
        # A plan with only moves runs while other plans run, and their time is counted.
        seconds = end_s - start_s if event["work"] else 0.0
        self.kv.add(seconds, capacity, used, reserved, host, *event.get("kept", (0, 0)))

    def _end(self, name: str, reason: str, end_s: float) -> None:
        """Count a request that has ended."""
        life = self.lives[name]
        life.reason, life.ended_s = reason, end_s
        self._add(life, self._all, self._groups)
        self._just_ended.append((name, life))
        self.on_end(name, life)

    def _add(self, life: Life, every: _Requests, groups: dict[Any, _Requests]) -> None:
        every.add(life, self.goodput or {})
        if self.by is not None:
            groups[getattr(life, self.by)].add(life, {})

    def _forget(self, launched: float) -> None:
        """Forget requests that have ended, and that neither this step nor a plan in flight names."""
        for name, life in self._just_ended:
            if life.arrived:
                self._overtaken.ended(life, launched)
            self._ended.append((launched, name, life))
        self._just_ended.clear()
        all_until = self._steps.all_until
        self._overtaken.settle(all_until)
        while self._ended and self._ended[0][0] <= all_until:
            _, name, life = self._ended.popleft()
            if self.lives.get(name) is life:
                del self.lives[name]
                self._num_forgotten += 1
                if not self._num_forgotten % FORGOTTEN:
                    self._overtaken.forget(min([one.arrival_s for one in self.lives.values()], default=life.arrival_s))

    def _admit(self, name: str, now: float, launched: float, on_device: int, on_host: int) -> None:
        """Count an admission; the request found these numbers of tokens of its text in memory."""
        life = self.lives[name]
        self.num["reused"] += on_device + on_host
        if life.history and life.admitted_s == math.inf:
            self.num["history"] += life.history
            on_host = min(on_host, life.history)
            self.num["history_on_host"] += on_host
            self.num["history_on_device"] += min(on_device, life.history - on_host)  # sharing may find more
        self._overtaken.admitted(life, now, launched)

    def _so_far(self) -> tuple[_Requests, dict[Any, _Requests]]:
        """Return all requests, and those of each group; requests that have not ended are interrupted."""
        every, groups = deepcopy((self._all, self._groups))
        for life in self.lives.values():
            if not life.has_ended:
                self._add(life, every, groups)
        return every, groups

    def result(self) -> Metrics:
        """Return every metric of the events read so far."""
        every, _ = self._so_far()
        lasted_s = max(self.last_s - every.first_s, 0.0)
        latencies, num_output = every.summaries(), every.num_output
        reasons = every.reasons + Counter(refused=self.num["refused"])
        num = self.num
        for _, life in self._just_ended:
            if life.arrived:
                self._overtaken.ended(life, math.inf)
        self._just_ended.clear()
        return {
            "requests": {
                "total": reasons.total(),
                **{reason.value: reasons[reason.value] for reason in FinishReason},
            },
            "duration_s": lasted_s,
            "throughput": {
                "tokens_per_s": _ratio(num_output, lasted_s),
                "requests_per_s": _ratio(every.num_finished, lasted_s),
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
            "most_overtaken": self._overtaken.most([life for life in self.lives.values() if not life.has_ended]),
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
            if self.goodput is None
            else {
                "bounds_s": dict(self.goodput),
                "requests": every.num_good,
                "requests_per_s": _ratio(every.num_good, lasted_s),
            },
        }

    def groups(self) -> Groups:
        """Return count, tokens and latencies of the requests of each group.

        None stands for no user, or no conversation. Groups come in the order of their first arrival, priorities from
        the highest. Requests refused at submission are in no group.
        """
        _, groups = self._so_far()
        found = {name: group for name, group in groups.items() if group.reasons}
        by_arrival = sorted(found, key=lambda name: found[name].first_s)
        names = sorted(found, reverse=True) if self.by == "priority" else by_arrival
        return {name: found[name].of_group() for name in names}


class _Steps:
    """Follows which plans have completed, by their numbers."""

    def __init__(self) -> None:
        self.all_until = 0  # all plans below this number have completed
        self._beyond: set[int] = set()

    def complete(self, number: int) -> None:
        self._beyond.add(number)
        while self.all_until in self._beyond:
            self._beyond.remove(self.all_until)
            self.all_until += 1


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
    each direction; their seconds are hidden if computing went on, and exposed if it waited. `other_cores` is how many
    cores other processes used, on average; None in virtual time, or if unknown.

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


def _ratio(amount: float, of: float) -> float | None:
    return amount / of if of > 0 else None


def _bytes(tokens: float | None, bytes_per_token: int | None) -> float | None:
    return None if tokens is None or bytes_per_token is None else tokens * bytes_per_token

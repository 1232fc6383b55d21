"""Counts the metrics of a run while it runs; `minifuse.trace.metrics` defines them."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, get_args

from minifuse.core.plan import TRANSFORMER, MoveKind
from minifuse.core.request import FinishReason, Phase
from minifuse.io.parsing import check_goodput, unknown
from minifuse.trace.ended import EndedRequests, Metrics
from minifuse.trace.lives import Life
from minifuse.trace.log import Event, arrival_of
from minifuse.trace.memory_use import MemoryUse, in_bytes, ratio
from minifuse.trace.overtaken import Overtaken

Groups = dict[str | int | None, Metrics]  # by user, priority or conversation
GROUPINGS = ("user", "priority", "conversation")  # what metrics can be grouped by
FORGOTTEN = 4096  # ended requests, after which arrivals that no longer matter are forgotten


class RunningMetrics:
    """Counts the metrics of a run event by event.

    Memory is bounded by the unfinished requests: an ended request is tallied (`Tally`) and forgotten. `read` takes the
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
        self.on_host_s = self.awaited_s = 0.0  # of attention by the host
        self.transfers = {way: [0, 0.0] for way in ("to_host", "to_device")}  # bytes, seconds
        self.kv = MemoryUse()
        self.other_cores: float | None = None
        self._all = EndedRequests()
        self._groups: dict[str | int | None, EndedRequests] = {}  # in the order of their first request
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
                    self._groups.setdefault(getattr(life, self.by), EndedRequests())
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
        wall, num = event["wall"], self.num
        start_s, end_s = wall["start_s"], wall["end_s"]
        launched = event.get("launched", math.inf)  # a trace that is read does not tell
        self._forget(launched)
        num_computed = num_decoded = num_again = 0
        lives, kind = self.lives, TRANSFORMER
        for work in event["work"]:
            start, stop = work[1], work[2]
            life = lives[work[0]]
            if start_s < life.started_s:
                life.started_s = start_s
            if len(work) > 3:
                kind = work[3]
            num_computed += stop - start
            # One token past the prompt is a decode step; a prompt, or an answer computed anew, is prefill.
            if stop - start == 1 and start >= life.prompt_tokens:
                num_decoded += 1
            num_again += life.computed[kind].add(start, stop)
        of_cells = kind != TRANSFORMER
        num["recomputed"] += num_again
        if of_cells:
            num["nodes"] += num_computed
        else:
            num["decode"] += num_decoded
            num["prefill"] += num_computed - num_decoded
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
        on_host_s, awaited_s = wall.get("on_host", (0.0, 0.0))
        self.on_host_s += on_host_s
        self.awaited_s += awaited_s
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
            if len(tokens) == 1:  # as in most iterations
                lives[name].token_times.append(end_s)
            else:
                lives[name].token_times.extend([end_s] * len(tokens))
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

    def _add(self, life: Life, every: EndedRequests, groups: dict[Any, EndedRequests]) -> None:
        every.add(life, self.goodput or {})
        if self.by is not None:
            groups[getattr(life, self.by)].add(life, {})

    def _forget(self, launched: float) -> None:
        """Forget ended requests that neither this step nor a plan in flight names."""
        self._ended += [(launched, name, life) for name, life in self._pass_on_ends(launched)]
        all_until = self._steps.all_until
        self._overtaken.settle(all_until)
        while self._ended and self._ended[0][0] <= all_until:
            _, name, life = self._ended.popleft()
            if self.lives.get(name) is life:
                del self.lives[name]
                self._num_forgotten += 1
                if not self._num_forgotten % FORGOTTEN:
                    self._overtaken.forget(min([one.arrival_s for one in self.lives.values()], default=life.arrival_s))

    def _pass_on_ends(self, launched: float) -> list[tuple[str, Life]]:
        """Tell `Overtaken` which requests have just ended; return these."""
        ended, self._just_ended = self._just_ended, []
        for _, life in ended:
            if life.arrived:
                self._overtaken.ended(life, launched)
        return ended

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

    def _so_far(self) -> tuple[EndedRequests, dict[Any, EndedRequests]]:
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
        self._pass_on_ends(math.inf)
        return {
            "requests": {
                "total": reasons.total(),
                **{reason.value: reasons[reason.value] for reason in FinishReason},
            },
            "duration_s": lasted_s,
            "throughput": {
                "tokens_per_s": ratio(num_output, lasted_s),
                "requests_per_s": ratio(every.num_finished, lasted_s),
            },
            **latencies,
            "latency_bound_s": latencies["itl_s"] and latencies["itl_s"]["max"],
            "iterations": num["iterations"],
            "preprocessing_steps": num["preprocessing"],
            "mean_batch_size": ratio(num["work"], num["iterations"]),
            "tokens": {
                "output": num_output,
                **{kind: num[kind] for kind in ("computed", "prefill", "decode", "recomputed", "reused", "idle")},
                "idle_share": ratio(num["idle"], num["computed"]),
            },
            "history": {
                "tokens": num["history"],
                "on_device": num["history_on_device"],
                "on_host": num["history_on_host"],
                "device_hit_rate": ratio(num["history_on_device"], num["history"]),
                "host_hit_rate": ratio(num["history_on_host"], num["history"]),
            },
            "nodes": num["nodes"],
            "discarded": num["discarded"],
            "gathers": {"count": num["gathers"], "rows": num["gathered"], "seconds": self.gathering_s},
            "evictions": num["evicted"],
            "most_overtaken": self._overtaken.most([life for life in self.lives.values() if not life.has_ended]),
            "kv": self.kv.result(self.bytes_per_token),
            "moves": {
                kind: {"count": count, "tokens": tokens, "bytes": in_bytes(tokens, self.bytes_per_token)}
                for kind, (count, tokens) in self.moves.items()
            },
            "moving_s": self.moving_s,
            "transfers": {
                **{way: {"bytes": total[0], "seconds": total[1]} for way, total in self.transfers.items()},
                "hidden_s": self.hidden_s,
                "exposed_s": self.exposed_s,
            },
            "on_host": {"seconds": self.on_host_s, "awaited_s": self.awaited_s},
            "messages": {"count": num["messages"], "bytes": num["message_bytes"]},
            "other_cores": self.other_cores,
            "goodput": None
            if self.goodput is None
            else {
                "bounds_s": dict(self.goodput),
                "requests": every.num_good,
                "requests_per_s": ratio(every.num_good, lasted_s),
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

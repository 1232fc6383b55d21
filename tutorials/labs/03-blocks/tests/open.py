"""The open task: the eviction after which the fewest tokens are computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import ClassVar

from stage import ROW  # noqa: F401  # the lab's memory is another task: this one has that of the engine

from minifuse.batching.prefill_first import PrefillFirst
from minifuse.core.request import Request, Sequence
from minifuse.labs.engine import Run, served
from minifuse.labs.submission import StudentFault
from minifuse.stages import register
from minifuse.techniques import mix, technique

COSTS = {"recomputed tokens": "lower", "virtual seconds": "lower"}
SIZE = 8
Order = Callable[[list[dict]], list[str]]


@register
class Evicts(PrefillFirst):
    """As `vllm`, but for the order in which requests are evicted."""

    name = "lab-evicts"
    order: ClassVar[list[Order]] = []  # the one that is measured

    def victims(self, running: Seq[Sequence]) -> Iterable[Sequence]:
        told = [
            {
                "name": one.id,
                "prompt": len(one.request.prompt),
                "answer": one.num_new,
                "most": one.request.max_new_tokens,
                "blocks": -(-(len(one) - 1) // SIZE),
            }
            for one in running
        ]
        names = self.order[0](told)
        known = {one.id: one for one in running}
        if sorted(names) != sorted(known):
            raise StudentFault(f"victims({told}) returned {names}: return the name of each of them, once.")
        return [known[name] for name in names]


OPEN_ROW = mix(technique("vllm"), batching="lab-evicts")


def workloads(work) -> list[list[Request]]:
    """Three runs of 24 requests, in memory for about five: prompts and answers of similar and of mixed lengths."""
    random, found = work.random, []
    for shortest, longest, answer in ((40, 60, 60), (10, 150, 60), (20, 60, 160)):
        now, requests = 0.0, []
        for i in range(24):
            now += random.expovariate(12)
            prompt = tuple(random.randrange(1, 30000) for _ in range(random.randint(shortest, longest)))
            requests.append(Request(f"r{i}", prompt, random.randint(10, answer), ignore_eos=True, arrival_s=now))
        found.append(requests)
    return found


def costs(runs: Iterable[Run]) -> dict[str, float]:
    """The sums over the runs."""
    told = [run.metrics for run in runs]
    recomputed = sum(one["tokens"]["recomputed"] for one in told)
    seconds = sum(one["duration_s"] for one in told)
    return {"recomputed tokens": float(recomputed), "virtual seconds": seconds}


def measured(work, order: Order) -> dict[str, float]:
    """What an order costs on all workloads."""
    Evicts.order[:] = [order]
    return costs(
        served(OPEN_ROW, one, kv_tokens=448, memory__block_size=SIZE, batching__max_batch=12) for one in workloads(work)
    )


def score(work) -> dict[str, float]:
    """The costs of the student's `victims` on three workloads."""
    return measured(work, lambda running: work.call("victims", running, form=list[str]))


def newest(running: list[dict]) -> list[str]:
    """The given form."""
    return [one["name"] for one in running][::-1]


def least_text(running: list[dict]) -> list[str]:
    """Who has the least to compute again."""
    return [one["name"] for one in sorted(running, key=lambda one: one["prompt"] + one["answer"])]


def most_left(running: list[dict]) -> list[str]:
    """Who has the largest part of the answer still to come, and would stay longest."""
    return [one["name"] for one in sorted(running, key=lambda one: one["answer"] - one["most"])]


def baselines(work) -> dict[str, dict[str, float]]:
    """Three orders."""
    orders = {"newest first": newest, "shortest text first": least_text, "most tokens left first": most_left}
    return {name: measured(work, order) for name, order in orders.items()}

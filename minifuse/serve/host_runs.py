"""Serves short workloads in real time, to measure the host's part of each iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple, Protocol

from minifuse.core.measured import measured_of
from minifuse.core.observers import RunObserver
from minifuse.core.plan import Plan
from minifuse.core.report import StepReport
from minifuse.core.requests import Requests
from minifuse.model.kinds import request_kind
from minifuse.model.source import Source
from minifuse.serve.assembly import choose
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.simulate.host_terms import Terms, fit
from minifuse.techniques import Technique
from minifuse.workload.cells import cell_workload
from minifuse.workload.laws import parse_lengths
from minifuse.workload.synthetic import RequestDefaults, synthetic

PROMPT, ANSWER = 96, 24  # tokens, at most
MOST = 32  # iterations, unless several end at once


class Iteration(NamedTuple):
    """Seconds of one plan, and of its transfers if they are measured apart."""

    plan: Plan
    start_s: float  # when its worker could begin it
    end_s: float
    apart_s: float = 0.0


class Cost(Protocol):
    """Estimates the seconds of a plan, with the host's part and without."""

    def __call__(self, plan: Plan) -> float: ...
    def device_s(self, plan: Plan) -> float: ...
    def terms(self, plan: Plan) -> Terms: ...


class _Iterations(RunObserver):
    """Keeps iterations; `apart`: transfers are measured apart."""

    def __init__(self, apart: bool) -> None:
        self.apart = apart
        self.found: list[Iteration] = []

    def completed(self, report: StepReport, requests: Requests) -> None:
        if report.plan.work:
            apart_s = measured_of(report).exposed_s if self.apart else 0.0
            self.found.append(Iteration(report.plan, report.started_s, report.ended_s, apart_s))


def host_run(
    row: Technique, source: Source, model: Any, settings: Settings, batch: int, max_context: int
) -> Callable[[int], list[Iteration]]:
    """Return a function that serves requests, and returns the first iterations.

    Prompts and answers are together at most `max_context` tokens long.
    """
    choices = choose(row, settings.stage_options, batch if row.batch_sizes else None)
    run = resolve_run(choices, source, settings)
    count, vocab = 2 * batch, source.config.vocab_size
    if source.kind == "cells":
        name = source.config.kind
        requests = cell_workload(request_kind(name).workload or "", name, count, vocab, seed=batch)
    else:
        prompts, answers = min(PROMPT, 3 * max_context // 4), min(ANSWER, max_context // 4)
        laws = parse_lengths(f"uniform:1:{prompts}"), parse_lengths(f"uniform:2:{answers}")
        requests = synthetic(count, *laws, vocab, seed=batch, defaults=RequestDefaults(ignore_eos=True))

    def once(number: int) -> list[Iteration]:
        observer = _Iterations(apart=settings.device == "cuda")
        engine = build_engine(run, model, into=lambda event: None, observers=(observer,))

        def stop(report: StepReport) -> None:
            if len(observer.found) >= MOST:
                for request in requests:
                    engine.abort(request.id)

        serve(engine, requests, on_step=stop).whole()
        return observer.found

    return once


def alone(iterations: Sequence[Iteration]) -> dict[int, Iteration]:
    """Return the iterations during which no other plan ran, by step.

    >>> of = lambda step, start, end: Iteration(Plan(step, 0, (), ()), start, end)
    >>> [*alone([of(0, 0.0, 2.0), of(1, 1.0, 3.0), of(2, 3.0, 4.0)])]
    [2]
    """
    found, ended = {}, 0.0
    in_order = sorted(iterations, key=lambda one: one.start_s)
    for i, one in enumerate(in_order):
        later = in_order[i + 1].start_s if i + 1 < len(in_order) else one.end_s
        if one.start_s >= ended and later >= one.end_s > one.start_s:
            found[one.plan.step] = one
        ended = max(ended, one.end_s)
    return found


def overlap(iterations: Sequence[Iteration]) -> tuple[float, float]:
    """Return for how many seconds one plan ran, and for how many several did.

    >>> of = lambda start, end: Iteration(Plan(0, 0, (), ()), start, end)
    >>> overlap([of(0.0, 2.0), of(1.0, 3.0)])
    (2.0, 1.0)
    """
    events = sorted([(one.start_s, 1) for one in iterations] + [(one.end_s, -1) for one in iterations])
    seconds, running, last = [0.0, 0.0, 0.0], 0, 0.0
    for at, change in events:
        seconds[min(running, 2)] += at - last
        running, last = running + change, at
    return seconds[1], seconds[2]


@dataclass(frozen=True, slots=True)
class HostSamples:
    """The iterations of one run, in every round."""

    rounds: Sequence[Sequence[Iteration]]

    def typical(self) -> list[tuple[Plan, float, float]]:
        """Return plans that ran alone in every round, with medians: seconds, and seconds apart.

        Rounds plan alike as long as no decision depends on time; a plan that differs is left out.
        """
        first, *others = map(alone, self.rounds)
        found = []
        for step, one in first.items():
            alike = [other[step] for other in others if step in other and other[step].plan.work == one.plan.work]
            if len(alike) == len(others):
                seen = [one, *alike]
                apart_s = median(each.apart_s for each in seen)
                found.append((one.plan, median(each.end_s - each.start_s for each in seen), apart_s))
        return found


Samples = Sequence[tuple[Cost, HostSamples]]  # of each run, its costs without the host, or with it


def fit_host(samples: Samples) -> dict[str, float]:
    """Fit the host's seconds to what iterations take beyond their operators, relative to the iterations."""
    counted: list[Terms] = []
    beyond, whole = [], []
    for cost, sample in samples:
        for plan, seconds, apart_s in sample.typical():
            counted.append(cost.terms(plan))
            beyond.append(seconds - apart_s - cost.device_s(plan))
            whole.append(seconds)
    return fit(counted, beyond, whole) if counted else {}


def fit_together(samples: Samples) -> float | None:
    """Return the speed of several plans at once, relative to one; None if none overlapped."""
    done = one_s = several_s = 0.0
    for cost, sample in samples:
        iterations = sorted(sample.rounds, key=lambda found: sum(overlap(found)))[len(sample.rounds) // 2]
        one, several = overlap(iterations)
        done += sum(cost(iteration.plan) for iteration in iterations)
        one_s, several_s = one_s + one, several_s + several
    return max(0.1, (done - one_s) / several_s) if several_s else None

"""Compares real runs with simulated ones of the same requests, under every technique."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, median
from typing import Any

from minifuse.core.plan import Plan
from minifuse.execute.cores import threads_kept
from minifuse.execute.timing import take_turns
from minifuse.papers.contest import Bench
from minifuse.papers.experiment import Plot, Say
from minifuse.papers.numbers import told
from minifuse.papers.page import Drawn, spec, tables
from minifuse.papers.simulator.setting import LATENCIES, PERCENTS, Case, Run, Setting

TYPICAL, LARGEST = 0.05, 0.15  # the aim: the median of the errors of all runs, and the largest
METRICS = {"requests_per_s": "throughput"} | {
    f"{key}_{percent}": f"{name}, {percent}" for key, name in LATENCIES.items() for percent in PERCENTS
}


@dataclass(frozen=True)
class Compared:
    """Simulated runs beside real ones.

    Attributes:
        simulated: at the speed of the profile.
        as_slow: for each real run, at the speed that the machine seemed to have beside it.
    """

    case: Case
    real: Sequence[Run]
    simulated: Run
    as_slow: Sequence[Run]

    @classmethod
    def of(cls, case: Case, real: Sequence[Run]) -> Compared:
        """Simulate the real runs of a case."""
        return cls(case, real, case.simulated(), [case.simulated(run.slow) for run in real])

    def errors(self, simulated: Sequence[Run]) -> dict[str, float]:
        """Return the relative error of each metric: the median over the real runs, each beside its simulated one.

        A metric that is 0 in a real run has none, such as the time per output token of answers with a single token.
        """
        found = {}
        for name in METRICS:
            pairs = [(run.metrics, real.metrics) for run, real in zip(simulated, self.real, strict=True)]
            if all(name in ours and theirs.get(name) for ours, theirs in pairs):
                found[name] = median(ours[name] / theirs[name] - 1 for ours, theirs in pairs)
        return found

    def _alike(self) -> Iterator[tuple[Plan, list[float]]]:
        """Yield the plans that all real runs have, with the seconds of each run.

        The seconds are at the profile's speed. With several workers iterations overlap, and none is yielded.
        """
        first, *others = self.real
        if any(plan.worker for plan, _ in first.iterations.values()):
            return
        for step, (plan, seconds) in first.iterations.items():
            alike = [
                other for other in others if step in other.iterations and other.iterations[step][0].work == plan.work
            ]
            if len(alike) == len(others):
                yield plan, [seconds / first.slow, *(other.iterations[step][1] / other.slow for other in alike)]

    def iteration_error(self) -> float | None:
        """Return the mean absolute error of iterations, each against its median; None if none counts."""
        cost = self.case.cost()
        errors = [abs(cost(plan) / median(seen) - 1) for plan, seen in self._alike()]
        return mean(errors) if errors else None

    @cached_property
    def apart(self) -> dict[str, float | None]:
        """Return the range of each metric of the real runs, over its median.

        That of iterations is the mean of their ranges.
        """
        found: dict[str, float | None] = {}
        for name in METRICS:
            if all(seen := [run.metrics.get(name, 0.0) for run in self.real]):
                found[name] = _range(seen)
        iterations = [_range(seen) for _, seen in self._alike()]
        return {"iteration": mean(iterations) if iterations else None, **found}

    @cached_property
    def all_errors(self) -> dict[str, float | None]:
        """Return the error of iterations, and of each metric, at the speed beside each run."""
        return {"iteration": self.iteration_error(), **self.errors(self.as_slow)}

    @cached_property
    def plain_errors(self) -> dict[str, float]:
        """Return the error of each metric at the speed of the profile."""
        return self.errors([self.simulated] * len(self.real))

    @property
    def alike(self) -> bool:
        """Tell whether the simulated run has planned the same iterations as the first real one."""
        ours, theirs = ([plan.work for plan, _ in run.iterations.values()] for run in (self.simulated, self.real[0]))
        return ours == theirs


def _range(values: Sequence[float]) -> float:
    """Return the range over the median."""
    return (max(values) - min(values)) / median(values)


def _sizes(by_run: Sequence[Mapping[str, float | None]]) -> dict[str, list[float]]:
    """Return the sizes of each error that some run has."""
    sizes: dict[str, list[float]] = {}
    for name in ("iteration", *METRICS):
        if known := [abs(error) for errors in by_run if (error := errors.get(name)) is not None]:
            sizes[name] = known
    return sizes


@spec("Simulator", "error", "real and simulated runs of the same requests", Setting, takes=(), kind="")
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure all techniques and loads, in turns, model by model."""
    from minifuse.papers.simulator.speed import Speed  # imports torch

    of_metrics, of_models, of_runs = tables("simulator/error")
    summary, by_model = Plot(say, "Errors by metric", of_metrics), Plot(say, "Median errors by model", of_models)
    runs = Plot(say, "Errors by run", of_runs)
    say.expect(len(setting.sources) * (1 + setting.rounds))
    compared = list[Compared]()
    for source in setting.sources:
        with threads_kept():
            bench = Bench[Any](setting.conditions, source, "cpu", real_dtype="float32")
            bench.load()
            speed = Speed(setting.profile, source)
            cases = {str(i): case for i, case in enumerate(setting.cases(bench, speed))}
            runs_of = {name: case.real for name, case in cases.items()}
            say(f"{source.name}: a round that does not count")
            take_turns(runs_of, 1)
            real: dict[str, list[Run]] = {name: [] for name in cases}
            for number in range(setting.rounds):
                say(f"{source.name}: round {number + 1}")
                for name, found in take_turns(runs_of, 1, first=number).items():
                    real[name] += found
        of_source = [Compared.of(case, real[name]) for name, case in cases.items()]
        compared += of_source
        for one in of_source:
            at = {"technique": one.case.row.name, "batch": one.case.batch, "load": one.case.load}
            runs.add({"model": source.name} | at, one.all_errors)
        sizes = _sizes([one.all_errors for one in of_source])
        by_model.add({"model": source.name}, {name: median(errors) for name, errors in sizes.items()})
    apart = {name: median(ranges) for name, ranges in _sizes([one.apart for one in compared]).items()}
    kept, missed = list[str](), list[str]()
    for corrected in (True, False):
        at_speed = "the machine's beside the run" if corrected else "the profile's"
        by_run = [one.all_errors if corrected else one.plain_errors for one in compared]
        for name, errors in _sizes(by_run).items():
            what = METRICS.get(name, name)
            measured = {"median": median(errors), "largest": max(errors), "apart": apart[name]}
            summary.add({"metric": what, "speed": at_speed}, measured)
            if corrected:
                (kept if median(errors) <= TYPICAL and max(errors) <= LARGEST else missed).append(what)
    slow = [run.slow for one in compared for run in one.real]
    at_once = [one for one in compared if one.case.share is None]
    return Drawn(
        (summary.panel, by_model.panel, runs.panel),
        {"slowness": slow},
        slow=told(slow),
        aims=f"to have half of the runs within {TYPICAL:.0%} and all within {LARGEST:.0%}",
        kept="; ".join(kept) or "none",
        missed="; ".join(missed) or "none",
        num_alike=sum(one.alike for one in at_once),
        num_at_once=len(at_once),
    )

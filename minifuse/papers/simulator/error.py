"""Compares real runs with simulated ones of the same requests, under every technique."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from minifuse.attention.layouts import PagedStage
from minifuse.execute.timing import take_turns
from minifuse.model.text.load import TextSource
from minifuse.papers.contest import Bench
from minifuse.papers.experiment import Plot, Say
from minifuse.papers.numbers import told
from minifuse.papers.page import Drawn, spec, tables
from minifuse.papers.simulator.setting import LATENCIES, PERCENTS, Case, Run, Setting
from minifuse.simulate.machine_profile import MachineProfile
from minifuse.simulate.measured import MeasuredCost
from minifuse.simulate.operators import TokenWise
from minifuse.simulate.tables import timer

TYPICAL, LARGEST = 0.05, 0.15  # the aim: the median of the errors of all runs, and the largest
METRICS = {"tokens_per_s": "tokens/s"} | {
    f"{key}_{percent}": f"{name}, {percent}" for key, name in LATENCIES.items() for percent in PERCENTS
}


@dataclass(frozen=True)
class Compared:
    """A simulated run beside real ones, round by round."""

    case: Case
    real: Sequence[Run]
    simulated: Run

    def errors(self, slow: float = 1.0) -> dict[str, float]:
        """Return the relative error of each metric, against the median of the real runs.

        Args:
            slow: how many times as long the machine took as when it was calibrated; simulated times are multiplied.
        """
        found = {}
        for name in METRICS:
            real = [run.metrics[name] for run in self.real if name in run.metrics]
            simulated = self.simulated.metrics.get(name)
            if real and simulated:
                times = 1 / slow if name == "tokens_per_s" else slow
                found[name] = simulated * times / median(real) - 1
        return found

    def iteration_error(self, slow: float = 1.0) -> float | None:
        """Return the mean absolute error of iterations, relative to each; None if no iteration counts.

        An iteration counts if its work was the same in all real runs, with the median of its times. With several
        workers iterations overlap, and none counts.
        """
        cost = self.case.cost()
        first, *others = [run.iterations for run in self.real]
        if any(plan.worker for plan, _ in first.values()):
            return None
        errors = []
        for step, (plan, seconds) in first.items():
            seen = [seconds] + [
                other[step][1] for other in others if step in other and other[step][0].work == plan.work
            ]
            if len(seen) == len(self.real):
                errors.append(abs(cost(plan) * slow / median(seen) - 1))
        return mean(errors) if errors else None

    @property
    def alike(self) -> bool:
        """Tell whether the simulated run has planned the same iterations as the first real one."""
        ours, theirs = ([plan.work for plan, _ in run.iterations.values()] for run in (self.simulated, self.real[0]))
        return ours == theirs


class Speed:
    """Tells how slow the machine is, against the times in its profile: the layers of a model that was measured."""

    def __init__(self, profile: MachineProfile, counts: Sequence[int] = (1, 8, 64)) -> None:
        from minifuse.serve.calibrate import shapes

        named = {source.name: source for source in shapes()}
        source = next(named[name] for name in profile.models if name in named)
        assert isinstance(source, TextSource)
        model, operators = source.load(profile.dtype), PagedStage().backend("cpu", profile.dtype).operators
        token_wise = TokenWise(model, operators)
        cost = MeasuredCost(source.config, profile, "paged")
        self._runs = [(timer(token_wise.layers(count), "cpu"), cost.layers_s(count)) for count in counts]

    def slowness(self) -> float:
        """Return how many times as long as in the profile the layers take now."""
        return median(seconds(0) / expected for seconds, expected in self._runs for _ in range(5))


@spec("Simulator", "error", "real and simulated runs of the same requests", Setting, takes=(), kind="")
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure all techniques and loads, in turns, model by model."""
    of_runs, of_metrics = tables("simulator/error")
    runs, summary = Plot(say, "Errors by run", of_runs), Plot(say, "Errors by metric", of_metrics)
    say.expect(len(setting.sources) * setting.rounds)
    speed, slow, compared = Speed(setting.profile), list[float](), list[tuple[Compared, float]]()
    for source in setting.sources:
        bench = Bench[Any](setting.conditions, source, "cpu", real_dtype="float32")
        bench.load()
        cases = list(setting.cases(bench))
        real: dict[str, list[Run]] = {}
        began = len(slow)
        for number in range(setting.rounds):
            say(f"{source.name}: round {number + 1}")
            slow.append(speed.slowness())
            for name, found in take_turns({str(i): case.real for i, case in enumerate(cases)}, 1, first=number).items():
                real.setdefault(name, []).extend(found)
        of_model = median(slow[began:])
        for i, case in enumerate(cases):
            one = Compared(case, real[str(i)], case.simulated())
            compared.append((one, of_model))
            at = {"model": source.name, "technique": case.row.name, "batch": case.batch, "load": case.load}
            runs.add(at, {"iteration": one.iteration_error(of_model), **one.errors(of_model)})
    kept = []
    for corrected in (True, False):
        at_speed = "at the calibration's speed" if corrected else "as they are"
        for name, what in METRICS.items():
            by_run = [one.errors(of_model if corrected else 1.0) for one, of_model in compared]
            errors = [abs(of_run[name]) for of_run in by_run if name in of_run]
            summary.add({"metric": what, "speed": at_speed}, {"median": median(errors), "largest": max(errors)})
            if corrected and median(errors) <= TYPICAL and max(errors) <= LARGEST:
                kept.append(what)
    at_once = [one for one, _ in compared if one.case.share is None]
    return Drawn(
        (summary.panel, runs.panel),
        {"slowness": slow},
        slow=told(slow),
        aims=f"half of the runs within {TYPICAL:.0%}, all within {LARGEST:.0%}",
        kept="; ".join(kept) or "none",
        num_alike=sum(one.alike for one in at_once),
        num_at_once=len(at_once),
    )

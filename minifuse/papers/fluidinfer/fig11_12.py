"""FluidInfer's Figures 11 and 12 (6.2, 6.3): latency against the rate of requests.

Figure 11 shows the normalized latency, Figure 12 the latency bound: the largest gap between two tokens of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import minifuse.papers.fluidinfer.paper as paper
from minifuse.papers.curve import BOUND, Curve, Outcome, Served, gain
from minifuse.papers.experiment import Column, Conditions, Experiment, Finding, Panel, Point, Say, Values
from minifuse.papers.fluidinfer.setting import CONTENDERS, PARTS, VLLM, Server, servers
from minifuse.papers.load import OFFERED, curve_panel, load_at, rates_of
from minifuse.papers.page import notes
from minifuse.papers.verdict import aim, spread

Curves = Mapping[str, Curve]  # by contender

MORE = (
    Column("fluid\nwaits", "measured", "fluid_exposed", "{:.0%}"),
    Column("turns\nwaits", "measured", "in_turn_exposed", "{:.0%}"),
    Column("fluid\nspread", "measured", "fluid_spread", "{}"),
    Column("vllm\nspread", "measured", "vllm_spread", "{}"),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """Which latency a figure shows of the same runs, and the verdict on it."""

    number: str
    latency: str
    head: str
    verdict: Callable[[Server, Curves], str]

    def draw(self, found: Sequence[Server], conditions: Conditions, say: Say) -> Finding:
        say.expect(sum(1 + len(conditions.rates or server.scale.shares) for server in found))
        panels, verdicts = [], []
        for server in found:
            curves, simulated = _sweep(server, say)
            panels.append(self.panel(f"Fig. {self.number}: {server.title}", curves))
            verdicts.append(self.verdict(server, curves))
            say.keep(panels[-1])
            if not server.virtual:
                panels.append(self.errors(curves, simulated))
        facts = {
            "scale": conditions.scale,
            "seed": conditions.seed,
            "servers": [server.described() for server in found],
        }
        return Finding(facts, tuple(panels), (*notes("fluidinfer/fig11_12", server=found[0]), *verdicts))

    def panel(self, title: str, curves: Curves) -> Panel:
        """A row for each rate: every contender's latency in ms, and what fluid's transfers took."""

        def values(outcome: Outcome, key: str) -> Values:
            found = {**outcome.values(key), f"{key}_ms": outcome[self.latency] * 1e3}
            if len(outcome.rounds) > 1:
                found[f"{key}_spread"] = spread([seconds * 1e3 for seconds in outcome.each(self.latency)])
            return found

        columns = [(self.head, "ms", None)]
        return curve_panel(title, curves, lambda rate: {"rate": rate}, columns, more=MORE, values=values)

    def errors(self, curves: Curves, simulated: Curves) -> Panel:
        """The simulated latency as a factor of the measured one."""
        points = []
        for rate in curves[VLLM.key].points:
            factors = {
                key: simulated[key].points[rate][self.latency] / curve.points[rate][self.latency]
                for key, curve in curves.items()
            }
            points.append(Point({"rate": rate}, factors, {}))
        columns = [Column(f"{one.head}\nsim/run", "measured", one.key, "{:.2f}x") for one in CONTENDERS]
        title = f"Fig. {self.number}: the simulator against the run"
        return Panel(title, (OFFERED, *columns), tuple(points))

    def experiment(self, shows: str) -> Experiment:
        takes = frozenset({"model", "rates", "requests"})
        return Experiment(
            "FluidInfer",
            self.number,
            shows,
            lambda conditions: partial(self.draw, servers(conditions), conditions),
            takes,
        )


def _sweep(server: Server, say: Say) -> tuple[Curves, Curves]:
    """All contenders at growing rates, and in real time the same runs simulated once."""
    say(f"{server.title}: all at once")
    server.start(say)
    capacity = server.run(VLLM, server.requests(None))["throughput"]
    curves, simulated = ({one.key: Curve(one) for one in CONTENDERS} for _ in range(2))

    def run(curve: Curve, rate: float) -> Served:
        return server.run(curve.contender, server.requests(rate))

    def simulate(rate: float) -> None:
        if not server.virtual:
            for curve in simulated.values():
                curve.points[rate] = Outcome((server.run(curve.contender, server.requests(rate), simulated=True),))

    rates = rates_of(server.conditions, server.scale.shares, capacity)
    load_at(curves, rates, run, server.rounds, lambda what: say(f"{server.title}: {what}"), simulate, all_rates=True)
    return curves, simulated


def higher_load(server: Server, curves: Curves) -> str:
    """The load of fluid, and of each part, over vllm's at equal normalized latency."""
    baseline = curves[VLLM.key]
    gains = {one.key: gain(curves[one.key], baseline, "rate", "normalized_s") for one in PARTS}
    fluid, level_s = gains["fluid"], BOUND * baseline.lowest("normalized_s")
    here = ", ".join(f"{one.head} {gains[one.key] or 'never that low'}" for one in PARTS)
    what = f"{server.title}, requests/s of fluid over vllm at equal normalized latency"
    met = fluid is not None and fluid.factor >= paper.GAIN
    return aim(what, f"{here}, at {level_s * 1e3:.3g} ms a token", "2x to 4x", met, "paper")


def lower_bound(server: Server, curves: Curves) -> str:
    """The latency bound of vllm over that of fluid, at each rate; the median counts."""
    vllm = curves[VLLM.key]
    factors = [vllm.points[rate]["bound_s"] / one["bound_s"] for rate, one in curves["fluid"].points.items()]
    text = ", ".join(f"{factor:.2f}x" for factor in factors)
    what = f"{server.title}, latency bound of vllm over that of fluid, by rate"
    return aim(what, text, "about 3x", median(factors) >= paper.LOWER_BOUND, "paper")


FIG_11 = Figure("11", "normalized_s", "ms/\ntoken", higher_load).experiment(
    "normalized latency against the rate of requests, part by part"
)
FIG_12 = Figure("12", "bound_s", "bound\nms", lower_bound).experiment(
    "the largest gap between two tokens of a request, against the rate of requests"
)

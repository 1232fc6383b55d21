"""FluidInfer's Figures 11 and 12 (6.2, 6.3): latency against the rate of requests.

Figure 11 shows the normalized latency, Figure 12 the latency bound: the largest gap between two tokens of a request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median

import minifuse.papers.fluidinfer.paper as paper
from minifuse.papers.curve import OFFERED, Contender, Curve, Outcome, Served, curve_panel, load_at, never, rates_of
from minifuse.papers.equal_latency import equal_latency, gains, marks
from minifuse.papers.experiment import RANGE, Column, Experiment, Mark, Panel, Point, Say, Values
from minifuse.papers.fluidinfer.setting import CONTENDERS, FLUID, OTHERS, PARTS, VLLM, Curves, Server, Servers
from minifuse.papers.numbers import told
from minifuse.papers.page import Drawn, spec
from minifuse.papers.verdict import MORE, Claim, by_rate, verdict

LOADS = "rate", "normalized_s"  # the load and the latency of Fig. 11
Bounds = list[tuple[float, float]]  # the least and the most that a gain may be, in each round

WAITS = (
    Column("rotate\nwaits", "measured", "rotate_exposed", "{:.0%}"),
    Column("fluid\nrange", "measured", "fluid_ms", RANGE),
    Column("vllm\nrange", "measured", "vllm_ms", RANGE),
)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a figure shows of the runs, which both figures share.

    Attributes:
        latency: the name of the latency.
        head: the latency's column.
        judge: judges the curves of one server.
        gains: bounds fluid's gain over vllm in each round.
        marks: places the paper's gain in the picture.
    """

    number: str
    shows: str
    latency: str
    head: str
    judge: Callable[[Server, Curves], list[str]]
    gains: Callable[[Curves], Bounds]
    marks: Callable[[Curves], list[Mark]]

    def draw(self, servers: Servers, say: Say) -> Drawn:
        """Draw a panel for each server; in real time, also the simulator's error."""
        panels, verdicts, swept = [], [], {}
        for server in servers:
            server.swept = curves, simulated = server.swept or _sweep(server, say)
            swept[server] = curves
            panels.append(_panel(f"Fig. {self.number}: {server.title}", curves, self))
            verdicts += self.judge(server, curves)
            say.keep(panels[-1])
            if not server.virtual:
                title = f"Fig. {self.number}: the simulator against the run"
                panels.append(_errors(title, curves, simulated, self.latency))
        return Drawn(panels, verdicts=[*verdicts, *larger_models(swept, self.gains)])

    def experiment(self) -> Experiment:
        """Return the figure's experiment."""
        decorate = spec(
            "FluidInfer",
            self.number,
            self.shows,
            lambda conditions: conditions.once("servers", Servers.of),
            takes=("model", "rates", "requests"),
            page="verdicts",
        )
        return decorate(self.draw)


def _panel(title: str, curves: Curves, figure: Shown) -> Panel:
    """Return a panel by rate: every contender's latency, and fluid's waits for transfers."""

    def values(outcome: Outcome, key: str) -> Values:
        rounds = tuple(seconds * 1e3 for seconds in outcome.each(figure.latency))
        return {**outcome.values(key), f"{key}_ms": median(rounds), f"{key}_ms_rounds": rounds}

    panel = curve_panel(
        title,
        curves,
        lambda rate: {"rate": rate},
        [(figure.head, "ms", None)],
        more=WAITS,
        values=values,
        marks=figure.marks(curves),
    )
    drawn = [replace(one, axis="y", log=True) if _is_latency(one) else one for one in panel.columns]
    return replace(panel, columns=tuple(drawn))


def _is_latency(column: Column) -> bool:
    return column.key.endswith("_ms") and column.form != RANGE


def _errors(title: str, curves: Curves, simulated: Curves, latency: str) -> Panel:
    """Return a panel of the simulated latencies as multiples of the measured ones."""
    points = []
    for rate in curves[VLLM.key].points:
        factors = {
            key: simulated[key].points[rate][latency] / curve.points[rate][latency] for key, curve in curves.items()
        }
        points.append(Point({"rate": rate}, factors, {}))
    columns = [Column(f"{one.head}\nsim/run", "measured", one.key, "{:.2f}x") for one in CONTENDERS]
    return Panel(title, (OFFERED, *columns), tuple(points))


def _sweep(server: Server, say: Say) -> tuple[Curves, Curves]:
    """Run all contenders at growing rates; in real time, also simulate each run once."""
    say(f"{server.title}: all at once")
    server.start(say)
    capacity = server.run(VLLM, server.requests(None))["throughput"]
    curves, simulated = ({one.key: Curve(one) for one in CONTENDERS} for _ in range(2))

    def run(curve: Curve, rate: float, number: int) -> Served:
        return server.run(curve.contender, server.requests(rate, number))

    def simulate(rate: float) -> None:
        if not server.virtual:
            for curve in simulated.values():
                curve.points[rate] = Outcome((server.run(curve.contender, server.requests(rate), simulated=True),))

    rates = rates_of(server.conditions, server.scale.shares, capacity)
    load_at(curves, rates, run, server.rounds, lambda what: say(f"{server.title}: {what}"), simulate, ended=never)
    return curves, simulated


def higher_load(server: Server, curves: Curves) -> list[str]:
    """Judge loads at equal normalized latency: of fluid's parts over vllm, of fluid over others."""

    def judged(one: Contender, other: Contender, claim: Claim, source: str) -> str:
        what = f"{server.title}, requests/s of {one.head} over {other.head} at equal normalized latency"
        return equal_latency(what, curves[one.key], curves[other.key], claim, *LOADS, source=source)

    least, most = paper.GAINS
    over_vllm, over_others = Claim("2x to 4x", least, most), Claim("more than over vllm, so more than 2x", least)
    return [
        *(judged(FLUID, other, over_others, "paper") for other in OTHERS),
        *(judged(one, VLLM, over_vllm, "paper, for all parts together") for one in PARTS),
    ]


def lower_bound(server: Server, curves: Curves) -> list[str]:
    """Judge the ratio of each baseline's latency bound to fluid's, at each rate."""
    about_vllm = Claim.about(paper.LOWER_BOUND, tolerance=paper.ABOUT)
    more = Claim("more than over vllm, so more than 3x", paper.LOWER_BOUND)
    return [
        by_rate(
            f"{server.title}, latency bound of {other.head} over that of fluid",
            _by_bound(curves, other.key),
            about_vllm if other is VLLM else more,
            source="paper",
        )
        for other in (*OTHERS, VLLM)
    ]


def _by_bound(curves: Curves, other: str) -> dict[float, list[float]]:
    """Return a baseline's latency bound over that of fluid, by rate and round."""
    points = curves[other].points
    return {
        rate: [theirs / ours for theirs, ours in points[rate].beside(one, "bound_s")]
        for rate, one in curves[FLUID.key].points.items()
    }


def higher_marks(curves: Curves) -> list[Mark]:
    """Place the paper's gain in load over vllm in the picture."""
    return marks(curves[VLLM.key], paper.GAINS, "paper: 2 and 4 times vllm", *LOADS)


def lower_marks(curves: Curves) -> list[Mark]:
    """Place the paper's gain in latency over vllm in the picture."""
    label = f"paper: vllm / {paper.LOWER_BOUND:g}"
    return [
        Mark(rate, 1e3 * outcome["bound_s"] / paper.LOWER_BOUND, label)
        for rate, outcome in curves[VLLM.key].points.items()
    ]


def factors(curves: Curves) -> Bounds:
    """Bound the loads of fluid relative to vllm's, at equal normalized latency."""
    found = gains(curves[FLUID.key], curves[VLLM.key], *LOADS)
    return [(0.0, 0.0) if one is None else (one.least, one.most) for one in found]


def cuts(curves: Curves) -> Bounds:
    """Return vllm's latency bound over that of fluid, in the mean of all rates."""
    rates = _by_bound(curves, VLLM.key).values()
    return [(mean, mean) for mean in map(fmean, zip(*rates, strict=True))]


def larger_models(swept: Mapping[Server, Curves], bounds: Callable[[Curves], Bounds]) -> list[str]:
    """Judge on each machine whether the gain grows with the size of the model."""
    machines: dict[tuple[str, int], list[Server]] = {}
    for server in swept:
        if not server.fast_link:
            machines.setdefault((server.name, server.count), []).append(server)
    found = []
    for (name, count), servers in machines.items():
        by_model = [bounds(swept[server]) for server in servers]
        pairs = [pair for small, large in pairwise(by_model) for pair in zip(small, large, strict=True)]
        if not pairs:
            continue
        least = [large[0] / small[1] if small[1] else 0.0 for small, large in pairs]
        most = [large[1] / small[0] if small[0] else math.inf for small, large in pairs]
        names = [server.title.partition(",")[0] for server in servers]
        lowest = [[one[0] for one in each] for each in by_model]
        gains_told = [told(each) if any(each) else "not known" for each in lowest]
        text = ", ".join(map(" ".join, zip(names, gains_told, strict=True)))
        text += "" if least == most else ", lower bounds"
        claim = replace(MORE, text="more for larger models")
        found.append(verdict(f"{count} x {name}, gain of fluid over vllm by model", least, claim, text, "paper", most))
    return found


FIG_11 = Shown(
    "11",
    "normalized latency against the rate of requests, part by part",
    "normalized_s",
    "ms/\ntoken",
    higher_load,
    factors,
    higher_marks,
).experiment()
FIG_12 = Shown(
    "12",
    "the largest gap between two tokens of a request, against the rate of requests",
    "bound_s",
    "bound\nms",
    lower_bound,
    cuts,
    lower_marks,
).experiment()

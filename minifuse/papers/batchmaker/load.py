"""Sweeps the load of models of cells, and judges peaks and latencies by the thesis."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import minifuse.papers.batchmaker.paper as paper
from minifuse.papers.batchmaker.contenders import EQUAL, MERGED, WIDE_CELLULAR, WIDE_ROWS
from minifuse.papers.batchmaker.setting import Setting
from minifuse.papers.curve import ALIKE, Contender, Curve, Outcome, Served, curve_panel, load_at, offered, run_rounds
from minifuse.papers.experiment import RANGE, Mark, Panel, Point, Say, Values
from minifuse.papers.numbers import shown, told
from minifuse.papers.page import notes, tables
from minifuse.papers.verdict import Claim, by_rate, verdict

AT_ONCE = float("inf")  # a rate at which all requests arrive at once; the throughput is then the capacity
MODERATE = 0.5  # of the baseline's peak: a load below this is moderate
WELL_MODERATE = 0.4
WIDE = 3  # more contenders than this leave no room for batch sizes in a table

BY_FIG_3 = f"{paper.MAX_BATCH}, by Fig. 2.3"  # the thesis' batch-size limit, and how it was chosen
LOAD_COLUMNS = (
    ("req/s", "throughput", None),
    ("p90 ms", "p90_ms", None),
    ("range", "p90_ms", RANGE),
    ("batch", "mean_batch", None),
)


@dataclass(frozen=True, slots=True)
class Load:
    """The result of a load sweep: each contender's curve, and its capacity by batch-size limit."""

    workload: str
    curves: Mapping[str, Curve]
    capacities: Mapping[str, Mapping[int, float]]

    @property
    def peak(self) -> float:
        """The largest capacity; rates are shares of it."""
        return max(curve.capacity for curve in self.curves.values())

    @property
    def batch_sizes(self) -> list[str]:
        """The mean batch size of each contender at its highest rate, as text."""
        return [f"{curve.contender.head} {curve.last['mean_batch']:.1f}" for curve in self.curves.values()]

    def stronger(self, *names: str) -> Curve:
        """Choose the baseline with the highest peak."""
        return max((self.curves[name] for name in names), key=lambda curve: curve.peak)

    def panels(
        self,
        figure: str,
        what: str,
        published: Mapping[str, Values] | None = None,
        where: str = "",
        marks: Sequence[Mark] = (),
    ) -> tuple[Panel, Panel]:
        """Return two panels: latency against throughput, and peaks with lowest latencies.

        Args:
            published: the thesis' values by contender: `peak` (requests/s), `p90_ms` at low load, and `max_batch`.
            where: ends the title of the second panel.
            marks: the thesis' latencies in the first panel's picture.
        """
        points = []
        for key, curve in self.curves.items():
            measured = {
                "max_batch": curve.max_batch,
                "capacity": curve.capacity,
                "peak": curve.peak,
                "peak_rounds": curve.peaks,
                "p90_ms": curve.lowest() * 1e3,
                **{f"capacity_{size}": capacity for size, capacity in self.capacities[key].items()},
            }
            points.append(Point({"contender": curve.contender.head}, measured, (published or {}).get(key, {})))
        peaks = Panel(f"{figure}: peaks{where}", tables("batchmaker/sweep")[0], tuple(points))
        return self.panel(f"{figure}: {what}", marks), peaks

    def panel(self, title: str, marks: Sequence[Mark] = ()) -> Panel:
        """Return the panel of latency against throughput."""
        columns = LOAD_COLUMNS if len(self.curves) <= WIDE else LOAD_COLUMNS[:-1]
        return curve_panel(
            title,
            self.curves,
            lambda rate: {"workload": self.workload, "rate": rate, "share": rate / self.peak},
            columns,
            marks=marks,
        )

    def notes(self, where: str = "", published: str = BY_FIG_3) -> tuple[str, ...]:
        """Return a note on the choice of batch-size limits, and one on the peaks.

        Args:
            where: put in front of both notes, in brackets.
            published: the thesis' batch-size limit, and how it was chosen.
        """
        sizes = next(iter(self.capacities.values()))
        first, *rest = sorted(self.curves.values(), key=lambda curve: -curve.peak)
        return notes(
            "batchmaker/sweep",
            start=f"({where}) {self.workload}" if where else self.workload,
            several=len(sizes) > 1,
            sizes=list(sizes),
            alike=ALIKE,
            chosen=[f"{curve.contender.head} {curve.max_batch}" for curve in self.curves.values()],
            published=published,
            load=self,
            largest=max(self.curves.values(), key=lambda curve: curve.capacity).contender,
            first=first,
            others=[f"{curve.contender.head} {shown(curve.peak)}" for curve in rest],
        )


def at_once(
    bench: Setting,
    say: Say,
    contenders: Sequence[Contender],
    workload: str,
    sizes: Sequence[int] = (),
    most: int | None = None,
) -> Load:
    """Choose each contender's batch-size limit by its capacity; the curves have no rates yet.

    One round, perhaps with fewer requests, decides between several limits. The chosen limit is then measured in all
    rounds.

    Args:
        sizes: the limits to choose from; by default, those of the scale.
        most: the number of requests; by default, that of the scale.
    """
    most, sizes = most or bench.num_requests, sizes or bench.sizes
    several = len(sizes) > 1
    count, rounds = (min(most, bench.choosing), 1) if several else (most, bench.rounds)

    def serving(one: Contender, size: int, count: int) -> Callable[[int], Served]:
        return partial(bench.run, one, size, workload, count, AT_ONCE)

    capacities: dict[str, dict[int, Outcome]] = {one.key: {} for one in contenders}
    for number, size in enumerate(sizes):
        say(f"{workload}: all {count} requests at once, batches of up to {size}")
        runs = {one.key: serving(one, size, count) for one in contenders}
        for key, outcome in run_rounds(runs, rounds, number).items():
            capacities[key][size] = outcome
    medians = {
        key: {size: outcome["throughput"] for size, outcome in by_size.items()} for key, by_size in capacities.items()
    }
    chosen = {key: best_size(by_size) for key, by_size in medians.items()}
    if (count, rounds) != (most, bench.rounds):
        say(f"{workload}: all {most} requests at once, the batches chosen")
        runs = {one.key: serving(one, chosen[one.key], most) for one in contenders}
        for key, outcome in run_rounds(runs, bench.rounds, 0).items():
            capacities[key][chosen[key]] = outcome
            medians[key][chosen[key]] = outcome["throughput"]
    curves = {}
    for one in contenders:
        size = chosen[one.key]
        each = capacities[one.key][size].each("throughput")
        curves[one.key] = Curve(one, size, medians[one.key][size], capacities=each)
    return Load(workload, curves, medians)


def sweep(
    bench: Setting,
    say: Say,
    contenders: Sequence[Contender],
    workload: str,
    sizes: Sequence[int] = (),
    rates: Sequence[float] = (),
    where: str = "",
    most: int | None = None,
) -> Load:
    """Choose each contender's batch-size limit as `at_once` does; then offer growing loads.

    Args:
        sizes: the limits to choose from; by default, those of the scale.
        rates: the rates in ascending order if the conditions give none; by default, those of the scale.
        where: distinguishes the title from the titles of other sweeps with the same workload and sizes.
        most: the number of requests at the highest rates; by default, that of the scale.
    """
    most, sizes = most or bench.num_requests, sizes or bench.sizes
    load = at_once(bench, say, contenders, workload, sizes, most)

    def run(curve: Curve, rate: float, number: int) -> Served:
        count = num_requests(most, rate, load.peak, bench.least)
        return bench.run(curve.contender, curve.max_batch, workload, count, rate, number)

    wanted = bench.conditions.rates or rates
    at = offered(wanted or bench.shares, load.peak)
    if not wanted:
        at = with_moderate(at, min(curve.capacity for curve in load.curves.values()))
    title = f"{workload}{where and f', {where}'}, batches of up to {', '.join(map(str, sizes))}"
    load_at(
        load.curves,
        at,
        run,
        bench.rounds,
        lambda what: say(f"{workload}: {what}"),
        lambda rate: say.keep(load.panel(title)),
    )
    return load


def equal_caps(bench: Setting, say: Say, workload: str) -> Load:
    """Serve all requests at once, with tasks as large as merged batches, and free merging."""
    return at_once(bench, say, EQUAL, workload, (paper.TREE_BATCH,))


def equal_panel(load: Load, figure: str) -> Panel:
    """Return the panel of `equal_caps`."""
    points = []
    for curve in load.curves.values():
        wide = curve.contender is WIDE_CELLULAR
        measured = {
            "cap": f"{WIDE_ROWS:,} nodes" if wide else f"{curve.max_batch} trees",
            "capacity": curve.capacity,
            "capacity_rounds": curve.capacities,
        }
        points.append(Point({"contender": curve.contender.head}, measured, {}))
    title = f"{figure}: tasks as large as merged batches, free merging, all at once"
    return Panel(title, tables("batchmaker/equal")[0], tuple(points))


def judged_equal(load: Load) -> list[str]:
    """Tell how wide cellular batching compares with free merging, all requests at once."""
    ours = load.curves["wide"]
    return [f"{told(ours.over(load.curves[one.key]))} that of {one.head}" for one in MERGED]


def num_reports(bench: Setting, sizes: Sequence[int] = (), rates: Sequence[float] = ()) -> int:
    """Count the reports of a sweep with these arguments, to within two."""
    return len(sizes or bench.sizes) + len(bench.conditions.rates or rates or bench.shares)


def best_size(capacities: Mapping[int, float]) -> int:
    """Choose the smallest batch size whose capacity is within 2% of the best.

    >>> best_size({64: 700.0, 128: 985.0, 256: 1000.0})
    128
    """
    enough = (1 - ALIKE) * max(capacities.values())
    return min(size for size, capacity in capacities.items() if capacity >= enough)


def with_moderate(rates: tuple[float, ...], capacity: float) -> tuple[float, ...]:
    """Prepend a moderate rate, unless the first one is moderate for this capacity.

    >>> with_moderate((100.0, 500.0), 150.0)
    (60.0, 100.0, 500.0)
    """
    return rates if rates[0] < MODERATE * capacity else (WELL_MODERATE * capacity, *rates)


def num_requests(most: int, rate: float, peak: float, least: float) -> int:
    """Choose the number of requests so that all runs take about equally long.

    Args:
        least: the part of `most` that is served at the lowest rates.

    >>> [num_requests(800, rate, 1000.0, least=0.25) for rate in (100.0, 500.0, 1500.0)]
    [200, 400, 800]
    """
    return max(math.ceil(least * most), min(most, round(most * rate / peak)))


def higher_peak(what: str, ours: Curve, baseline: Curve, claim: Claim) -> str:
    """Judge the ratio of our peak to the baseline's, in every round."""
    rounds = ours.over(baseline)
    here = f"{told(rounds)}, {shown(ours.peak)} against {shown(baseline.peak)} requests/s of {baseline.contender.head}"
    return verdict(f"{what} peak throughput", rounds, claim, here)


def higher_capacity(what: str, ours: Curve, baselines: Sequence[Curve], claim: Claim) -> str:
    """Judge the throughput of all requests at once, when every bucket is full."""
    best = max(baselines, key=lambda curve: curve.capacity)
    gains = [here / there for here, there in zip(ours.capacities, best.capacities, strict=True)]
    return verdict(f"{what} throughput of all requests at once", gains, claim)


def lower_p90(what: str, ours: Curve, baselines: Sequence[Curve], claim: Claim) -> str:
    """Judge by how much our p90 is below the baselines', at every moderate rate."""
    return by_rate(f"{what} how much lower p90 is at moderate load", cuts(ours, *baselines), claim, "{:.1%}")


def against_fullest(what: str, ours: Curve, fullest: Curve, gain: Claim, cut: Claim) -> list[str]:
    """Judge the thesis' claims against padded batches of the fullest bucket, a baseline of ours."""
    what = f"{what} against the fullest bucket first (ours),"
    return [higher_peak(what, ours, fullest, gain), lower_p90(what, ours, [fullest], cut)]


def cuts(ours: Curve, *baselines: Curve) -> dict[float, list[float]]:
    """Return by what part our p90 is below the best baseline's, by rate and round.

    Only moderate rates count.
    """
    return {
        rate: [1 - mine / best for mine, best in zip(ours.points[rate].each("p90"), rounds, strict=True)]
        for rate, rounds in best_p90(baselines).items()
        if rate in ours.points and rate < MODERATE * max(curve.peak for curve in baselines)
    }


def best_p90(baselines: Sequence[Curve]) -> dict[float, list[float]]:
    """Return the lowest p90 of several baselines, in seconds, by rate and round.

    Only rates that all of them were offered count.
    """
    first, *others = baselines
    each = {
        rate: [one.each("p90"), *(curve.points[rate].each("p90") for curve in others)]
        for rate, one in first.points.items()
        if all(rate in curve.points for curve in others)
    }
    return {rate: list(map(min, zip(*rounds, strict=True))) for rate, rounds in each.items()}

"""Load sweeps: contenders serve the same requests at growing rates of arrival."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from minifuse.core.request import Request
from minifuse.execute.timing import take_turns
from minifuse.papers.curve import ALIKE, Contender, Curve, Outcome, Served
from minifuse.papers.experiment import SHARE, Column, Conditions, Panel, Point, Say, Values
from minifuse.papers.page import shown, tables

AT_ONCE = float("inf")  # the rate at which all requests arrive at once: the throughput then is the capacity
MODERATE = 0.5  # of the baseline's peak: a load below this is moderate
WELL_MODERATE = 0.4
WIDE = 3  # more contenders than this leave no room for batch sizes in a table

OFFERED = Column("offered\nreq/s", "at", "rate")
LOAD_COLUMNS = (("req/s", "throughput", None), ("p90 ms", "p90_ms", None), ("batch", "mean_batch", None))


@dataclass(frozen=True, slots=True)
class Load:
    """A load sweep: a curve for each contender, and capacities by largest batch."""

    workload: str
    curves: Mapping[str, Curve]
    capacities: Mapping[str, Mapping[int, float]]

    @property
    def peak(self) -> float:
        """The largest capacity of all, of which rates are shares."""
        return max(curve.capacity for curve in self.curves.values())

    def stronger(self, *names: str) -> Curve:
        """The one of these baselines whose peak is highest."""
        return max((self.curves[name] for name in names), key=lambda curve: curve.peak)

    def panels(
        self, figure: str, what: str, published: Mapping[str, Values] | None = None, where: str = ""
    ) -> tuple[Panel, Panel]:
        """Latency against throughput, then the peaks; arguments as of `peak_panel`."""
        return self.panel(f"{figure}: {what}"), peak_panel(f"{figure}: peaks{where}", self, published)

    def panel(self, title: str) -> Panel:
        """Latency against throughput."""
        columns = LOAD_COLUMNS if len(self.curves) <= WIDE else LOAD_COLUMNS[:-1]
        return curve_panel(
            title,
            self.curves,
            lambda rate: {"workload": self.workload, "rate": rate, "share": rate / self.peak},
            columns,
        )


class LoadBench(Protocol):
    """What a load sweep needs: requests at a rate, and a way to serve them."""

    conditions: Conditions
    num_requests: int  # at the highest rates
    rounds: int
    sizes: tuple[int, ...]  # largest batches to choose from
    shares: tuple[float, ...]  # rates in shares of the largest capacity, if the conditions give none

    def requests(self, workload: str, count: int, rate: float) -> list[Request]: ...

    def run(self, contender: Contender, max_batch: int, workload: str, requests: Sequence[Request]) -> Served: ...


def sweep(
    bench: LoadBench,
    say: Say,
    contenders: Sequence[Contender],
    workload: str,
    sizes: Sequence[int] = (),
    rates: Sequence[float] = (),
    where: str = "",
) -> Load:
    """Choose each contender's largest batch by its capacity, then offer it a growing load.

    Args:
        sizes: largest batches to choose from, if not those of the bench.
        rates: ascending, if not those of the conditions or else of the bench.
        where: what tells this sweep from others of the same workload and sizes, which are kept beside it.
    """
    most, sizes = bench.num_requests, sizes or bench.sizes
    everything = bench.requests(workload, most, AT_ONCE)
    capacities: dict[str, dict[int, float]] = {one.key: {} for one in contenders}
    for number, size in enumerate(sizes):
        say(f"{workload}: all {most} requests at once, batches of up to {size}")
        runs = {one.key: partial(bench.run, one, size, workload, everything) for one in contenders}
        for key, outcome in _outcomes(runs, bench.rounds, number).items():
            capacities[key][size] = outcome["throughput"]
    curves = {}
    for one in contenders:
        by_size = capacities[one.key]
        size = best_size(by_size)
        curves[one.key] = Curve(one, size, by_size[size])
    load = Load(workload, curves, capacities)

    def run(curve: Curve, rate: float) -> Served:
        requests = bench.requests(workload, num_requests(most, rate, load.peak), rate)
        return bench.run(curve.contender, curve.max_batch, workload, requests)

    wanted = rates or bench.conditions.rates
    at = offered(wanted or bench.shares, load.peak)
    if wanted is None:
        at = with_moderate(at, min(curve.capacity for curve in curves.values()))
    title = f"{workload}{where and f', {where}'}, batches of up to {', '.join(map(str, sizes))}"
    load_at(
        curves,
        at,
        run,
        bench.rounds,
        lambda what: say(f"{workload}: {what}"),
        lambda rate: say.keep(load.panel(title)),
    )
    return load


def num_reports(bench: LoadBench, sizes: Sequence[int] = (), rates: Sequence[float] = ()) -> int:
    """How often a sweep reports, at most or one less; arguments as of `sweep`."""
    return len(sizes or bench.sizes) + len(rates or bench.conditions.rates or bench.shares)


def load_at(
    curves: Mapping[str, Curve],
    rates: Sequence[float],
    run: Callable[[Curve, float], Served],
    rounds: int,
    say: Callable[[str], None],
    measured: Callable[[float], None] = lambda rate: None,
    *,
    all_rates: bool = False,
) -> None:
    """Offer each rate to every contender that is not saturated, or to all.

    The outcomes are added to the curves.

    Args:
        rates: ascending.
        run: one contender's run at one rate.
        measured: called after each rate.
    """
    for number, rate in enumerate(rates):
        runs = {name: partial(run, curve, rate) for name, curve in curves.items() if all_rates or not curve.saturated}
        if not runs:
            return
        say(f"{shown(rate)} requests/s")
        for name, outcome in _outcomes(runs, rounds, number).items():
            curves[name].points[rate] = outcome
        measured(rate)


def _outcomes(runs: Mapping[str, Callable[[], Served]], rounds: int, first: int) -> dict[str, Outcome]:
    return {name: Outcome(tuple(found)) for name, found in take_turns(runs, rounds, first).items()}


def best_size(capacities: Mapping[int, float]) -> int:
    """The smallest largest batch whose capacity is as good as the best.

    >>> best_size({64: 700.0, 128: 985.0, 256: 1000.0})
    128
    """
    enough = (1 - ALIKE) * max(capacities.values())
    return min(size for size, capacity in capacities.items() if capacity >= enough)


def offered(rates: Sequence[float], peak: float) -> tuple[float, ...]:
    """Requests per second: `rates` themselves, or shares of `peak` if they are small enough.

    >>> offered((0.5, 1.2), 300.0)
    (150.0, 360.0)
    """
    return tuple(rate * peak for rate in rates) if max(rates) <= SHARE else tuple(rates)


def rates_of(conditions: Conditions, shares: Sequence[float], capacity: float) -> tuple[float, ...]:
    """The rates that were asked for, or else shares of a capacity, however large."""
    given = conditions.rates
    return offered(given, capacity) if given else tuple(share * capacity for share in shares)


def with_moderate(rates: tuple[float, ...], capacity: float) -> tuple[float, ...]:
    """These rates, preceded by a moderate one for the slowest contender if none is.

    >>> with_moderate((100.0, 500.0), 150.0)
    (60.0, 100.0, 500.0)
    """
    return rates if rates[0] < MODERATE * capacity else (WELL_MODERATE * capacity, *rates)


def num_requests(most: int, rate: float, peak: float) -> int:
    """The number of requests at a rate, so that runs last about as long.

    It is at least a quarter of the most.

    >>> num_requests(800, 100.0, 1000.0), num_requests(800, 500.0, 1000.0), num_requests(800, 1500.0, 1000.0)
    (200, 400, 800)
    """
    return max(-(-most // 4), min(most, round(most * rate / peak)))


def curve_panel(
    title: str,
    curves: Mapping[str, Curve],
    at: Callable[[float], Values],
    columns: Sequence[tuple[str, str, str | None]],
    *,
    first: Column = OFFERED,
    more: Sequence[Column] = (),
    values: Callable[[Outcome, str], Values] = Outcome.values,
) -> Panel:
    """A row for each rate, columns for each contender; columns without values are left out.

    Args:
        at: where the point of a rate lies.
        columns: head, name of the value and form.
        values: of an outcome, by the contender's key and a name.
    """
    points = []
    for rate in sorted({rate for curve in curves.values() for rate in curve.points}):
        measured: Values = {}
        for key, curve in curves.items():
            if rate in curve.points:
                measured |= values(curve.points[rate], key)
        points.append(Point(at(rate), measured, {}))
    own = [
        Column(f"{curve.contender.head}\n{head}", "measured", f"{key}_{name}", form)
        for key, curve in curves.items()
        for head, name, form in columns
    ]
    known = {key for point in points for key in point.measured}
    return Panel(title, (first, *(column for column in (*own, *more) if column.key in known)), tuple(points))


def peak_panel(title: str, load: Load, published: Mapping[str, Values] | None = None) -> Panel:
    """The largest batch that was chosen, the peak and the lowest latency of each contender.

    Args:
        published: the paper's, by contender: its `peak` (requests/s) and `p90_ms` at low load, and `max_batch`.
    """
    points = []
    for key, curve in load.curves.items():
        measured = {
            "max_batch": curve.max_batch,
            "capacity": curve.capacity,
            "peak": curve.peak,
            "p90_ms": curve.lowest() * 1e3,
            **{f"capacity_{size}": capacity for size, capacity in load.capacities[key].items()},
        }
        points.append(Point({"contender": curve.contender.head}, measured, (published or {}).get(key, {})))
    return Panel(title, tables("sweep")[0], tuple(points))

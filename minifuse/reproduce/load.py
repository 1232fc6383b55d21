"""Load sweeps: contenders under growing rates of arrival, the same requests for each; latencies, throughput, peaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from minifuse.core.request import Request
from minifuse.reproduce.curve import ALIKE, Contender, Curve, Outcome
from minifuse.reproduce.experiment import SHARE, Column, Conditions, Panel, Point, Say, Value, beside
from minifuse.simulate.timing import take_turns

AT_ONCE = float("inf")  # the rate at which all requests arrive at once: the throughput then is the capacity
MODERATE = 0.5  # of the baseline's peak: a load below this is moderate
WELL_MODERATE = 0.4
WIDE = 3  # more contenders than this leave no room for batch sizes in a table


@dataclass(frozen=True, slots=True)
class Load:
    """The result of a load sweep: a curve for each contender, and its capacity with every largest batch."""

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


class Bench(Protocol):
    """What a load sweep needs: requests at a rate, and a way to serve them with a contender."""

    conditions: Conditions
    num_requests: int  # at the highest rates
    rounds: int
    sizes: tuple[int, ...]  # largest batches to choose from
    shares: tuple[float, ...]  # rates in shares of the largest capacity, if the conditions give none

    def requests(self, workload: str, count: int, rate: float) -> list[Request]: ...

    def run(self, contender: Contender, max_batch: int, workload: str, requests: Sequence[Request]) -> Outcome: ...


def sweep(
    bench: Bench,
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
    by_key = {contender.key: contender for contender in contenders}
    most = bench.num_requests
    everything = bench.requests(workload, most, AT_ONCE)
    capacities: dict[str, dict[int, float]] = {key: {} for key in by_key}
    for number, size in enumerate(sizes or bench.sizes):
        say(f"{workload}: all {most} requests at once, batches of up to {size}")
        runs = {key: partial(bench.run, one, size, workload, everything) for key, one in by_key.items()}
        for key, outcome in _medians(runs, bench.rounds, number).items():
            capacities[key][size] = outcome.throughput
    chosen = {key: best_size(by_size) for key, by_size in capacities.items()}
    curves = {key: Curve(by_key[key], size, capacities[key][size]) for key, size in chosen.items()}
    load = Load(workload, curves, capacities)

    def run(curve: Curve, rate: float) -> Outcome:
        requests = bench.requests(workload, num_requests(most, rate, load.peak), rate)
        return bench.run(curve.contender, curve.max_batch, workload, requests)

    wanted = rates or bench.conditions.rates
    at = offered(wanted or bench.shares, load.peak)
    if wanted is None:
        at = with_moderate(at, min(curve.capacity for curve in curves.values()))
    title = f"{workload}{where and f', {where}'}, batches of up to {', '.join(map(str, sizes or bench.sizes))}"
    load_at(
        *(curves, at, run, bench.rounds),
        *(lambda what: say(f"{workload}: {what}"), lambda: say.keep(curve_panel(title, load))),
    )
    return load


def num_reports(bench: Bench, sizes: Sequence[int] = (), rates: Sequence[float] = ()) -> int:
    """How often a sweep reports, at most or one less; arguments as of `sweep`."""
    return len(sizes or bench.sizes) + len(rates or bench.conditions.rates or bench.shares)


def load_at(
    curves: Mapping[str, Curve],
    rates: Sequence[float],
    run: Callable[[Curve, float], Outcome],
    rounds: int,
    say: Callable[[str], None],
    measured: Callable[[], None] = lambda: None,
    *,
    all_rates: bool = False,
) -> None:
    """Offer each rate to every contender whose throughput still grows, or to all, and add the outcome to its curve.

    Args:
        rates: ascending.
        run: one contender's run at one rate.
        measured: called after each rate.
    """
    for number, rate in enumerate(rates):
        runs = {name: partial(run, curve, rate) for name, curve in curves.items() if all_rates or not curve.saturated}
        if not runs:
            return
        say(f"{rate:,.0f} requests/s" if rate >= 1000 else f"{rate:.3g} requests/s")
        for name, outcome in _medians(runs, rounds, number).items():
            curves[name].points[rate] = outcome
        measured()


def _medians(runs: Mapping[str, Callable[[], Outcome]], rounds: int, first: int) -> dict[str, Outcome]:
    return {name: outcomes[0].median(outcomes) for name, outcomes in take_turns(runs, rounds, first).items()}


def best_size(capacities: Mapping[int, float]) -> int:
    """The smallest of the largest batches whose capacity is the best, or as good as that.

    >>> best_size({64: 700.0, 128: 985.0, 256: 1000.0})
    128
    """
    enough = (1 - ALIKE) * max(capacities.values())
    return min(size for size, capacity in capacities.items() if capacity >= enough)


def offered(rates: Sequence[float], peak: float) -> tuple[float, ...]:
    """Requests per second: `rates` themselves, or shares of `peak` if they are no larger than shares are.

    >>> offered((0.5, 1.2), 300.0)
    (150.0, 360.0)
    """
    return tuple(rate * peak for rate in rates) if max(rates) <= SHARE else tuple(rates)


def with_moderate(rates: tuple[float, ...], capacity: float) -> tuple[float, ...]:
    """These rates, and one that is a moderate load for the slowest contender if none of them is.

    >>> with_moderate((100.0, 500.0), 150.0)
    (60.0, 100.0, 500.0)
    """
    return rates if rates[0] < MODERATE * capacity else (WELL_MODERATE * capacity, *rates)


def num_requests(most: int, rate: float, peak: float) -> int:
    """The number of requests at a rate: fewer at low ones, so that runs last about as long, but at least a quarter.

    >>> num_requests(800, 100.0, 1000.0), num_requests(800, 500.0, 1000.0), num_requests(800, 1500.0, 1000.0)
    (200, 400, 800)
    """
    return max(-(-most // 4), min(most, round(most * rate / peak)))


def curve_panel(title: str, load: Load) -> Panel:
    """Latency against throughput: a row for each rate that was offered, columns for each contender."""
    points = []
    for rate in sorted({rate for curve in load.curves.values() for rate in curve.points}):
        measured: dict[str, Value] = {}
        for key, curve in load.curves.items():
            if rate in curve.points:
                measured |= curve.points[rate].values(key)
        points.append(Point({"workload": load.workload, "rate": rate, "share": rate / load.peak}, measured, {}))
    columns = [Column("offered\nreq/s", "at", "rate")]
    for key, curve in load.curves.items():
        head = curve.contender.head
        columns += [
            Column(f"{head}\nreq/s", "measured", f"{key}_throughput"),
            Column(f"{head}\np90 ms", "measured", f"{key}_p90_ms"),
        ]
        if len(load.curves) <= WIDE:
            columns.append(Column(f"{head}\nbatch", "measured", f"{key}_mean_batch"))
    return Panel(title, tuple(columns), tuple(points))


PEAK_COLUMNS = (
    Column("\n", "at", "contender", "{}"),
    *beside("max batch", "max_batch", "{}"),
    Column("at once\nreq/s", "measured", "capacity"),
    *beside("peak req/s", "peak"),
    *beside("least p90 ms", "p90_ms"),
)


def peak_panel(title: str, load: Load, published: Mapping[str, Mapping[str, Value]] | None = None) -> Panel:
    """The largest batch that was chosen, the peak and the lowest latency of each contender.

    Args:
        published: the paper's, by contender: its `peak` (requests/s) and `p90_ms` at low load, and `max_batch`.
    """
    points = []
    for key, curve in load.curves.items():
        measured: dict[str, Value] = {
            "max_batch": curve.max_batch,
            "capacity": curve.capacity,
            "peak": curve.peak,
            "p90_ms": curve.lowest_p90 * 1e3,
            **{f"capacity_{size}": capacity for size, capacity in load.capacities[key].items()},
        }
        points.append(Point({"contender": curve.contender.head}, measured, (published or {}).get(key, {})))
    return Panel(title, PEAK_COLUMNS, tuple(points))

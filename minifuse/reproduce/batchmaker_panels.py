"""A load test of several contenders, and the panels that show it: latency against throughput, and the peaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from minifuse.reproduce.batchmaker_load import (
    AT_ONCE,
    Contender,
    Curve,
    Outcome,
    best_size,
    in_turns,
    load_at,
    num_requests,
    offered,
    with_moderate,
)
from minifuse.reproduce.batchmaker_setting import Setting
from minifuse.reproduce.experiment import Column, Panel, Point, Say, Value

__all__ = ["Load", "curve_panel", "measure", "peak_panel"]

WIDE = 3  # more contenders than this leave no room for batch sizes


@dataclass(frozen=True, slots=True)
class Load:
    """What came of a load test: a curve for each contender, and what each made of every largest batch."""

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


def measure(
    setting: Setting,
    say: Say,
    contenders: Sequence[Contender],
    workload: str,
    sizes: Sequence[int],
    rates: Sequence[float] | None = None,
) -> Load:
    """Choose each contender's largest batch by its capacity, then offer it a growing load.

    Args:
        sizes: to choose from.
        rates: ascending, as typed or of the scale if not given.
    """
    by_key = {contender.key: contender for contender in contenders}
    most, rounds = setting.num_requests, setting.rounds
    everything = setting.requests(workload, most, AT_ONCE)
    capacities: dict[str, dict[int, float]] = {key: {} for key in by_key}
    for number, size in enumerate(sizes):
        say(f"{workload}: all {most} requests at once, batches of up to {size}")
        runs = {key: partial(setting.serve, one, size, workload, everything) for key, one in by_key.items()}
        at_once = in_turns(runs, rounds, number)
        for key, outcome in at_once.items():
            capacities[key][size] = outcome.throughput
    chosen = {key: best_size(found) for key, found in capacities.items()}
    curves = {key: Curve(by_key[key], size, capacities[key][size]) for key, size in chosen.items()}
    load = Load(workload, curves, capacities)

    def run(curve: Curve, rate: float) -> Outcome:
        requests = setting.requests(workload, num_requests(most, rate, load.peak), rate)
        return setting.serve(curve.contender, curve.max_batch, workload, requests)

    wanted = rates or setting.conditions.rates
    at = offered(wanted or setting.scale.shares, load.peak)
    if wanted is None:
        at = with_moderate(at, min(curve.capacity for curve in curves.values()))
    load_at(curves, at, run, rounds, lambda what: say(f"{workload}: {what}"))
    return load


def curve_panel(title: str, load: Load) -> Panel:
    """Latency against throughput: a row for each rate that was offered, columns for each contender."""
    rates = sorted({rate for curve in load.curves.values() for rate in curve.points})
    points = []
    for rate in rates:
        measured: dict[str, Value] = {}
        for key, curve in load.curves.items():
            if rate in curve.points:
                measured |= curve.points[rate].values(key)
        at: dict[str, Value] = {
            "workload": load.workload,
            "rate": rate,
            "share": rate / load.peak,
        }
        points.append(Point(at, measured, {}))
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


def peak_panel(title: str, load: Load, paper: Mapping[str, Mapping[str, Value]]) -> Panel:
    """The largest batch that was chosen, the peak and the lowest latency of each contender.

    Args:
        paper: by contender: its `peak` (requests/s) and `p90_ms` at low load, and `max_batch`.
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
        points.append(Point({"contender": curve.contender.head}, measured, paper.get(key, {})))
    columns = (
        Column("\n", "at", "contender", "{}"),
        Column("max batch\npaper", "paper", "max_batch", "{}"),
        Column("max batch\nhere", "measured", "max_batch", "{}"),
        Column("at once\nreq/s", "measured", "capacity"),
        Column("peak req/s\npaper", "paper", "peak"),
        Column("peak req/s\nhere", "measured", "peak"),
        Column("least p90 ms\npaper", "paper", "p90_ms"),
        Column("least p90 ms\nhere", "measured", "p90_ms"),
    )
    return Panel(title, columns, tuple(points))

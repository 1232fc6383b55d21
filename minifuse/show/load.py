"""Finds the knee of latency over throughput, and draws both for several curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from minifuse.io.output import whole_file

DPI = 120


class Loaded(NamedTuple):
    """One rate of a curve: the median, least and most of its runs."""

    rate: float  # offered, requests per second
    throughput: float
    latency: float
    least: float
    most: float


def knee(points: Sequence[Loaded]) -> Loaded | None:
    """Return the point farthest below the line between a curve's ends (Satopää et al., 2011).

    Throughput and latency both count as parts of their ranges. A curve of fewer than three points, or one that lies
    above the line, has no knee.

    >>> curve = [Loaded(r, r, s, s, s) for r, s in [(1.0, 10.0), (2.0, 11.0), (3.0, 14.0), (3.5, 60.0)]]
    >>> knee(curve).rate
    3.0
    """
    if len(points) < 3:
        return None
    throughputs, latencies = [one.throughput for one in points], [one.latency for one in points]
    width, height = max(throughputs) - min(throughputs), max(latencies) - min(latencies)
    if not width or not height:
        return None

    def below(one: Loaded) -> float:
        return (one.throughput - min(throughputs)) / width - (one.latency - min(latencies)) / height

    best = max(points, key=below)
    return best if below(best) > 0 and best not in (points[0], points[-1]) else None


def draw_load(curves: Mapping[str, Sequence[Loaded]], latency: str, path: Path) -> None:
    """Draw latency over throughput as a PNG: each curve with its knee and spread.

    Args:
        curves: points in ascending order of their rates, by the curve's name.
        latency: what the latency is, for its axis.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        UsageError, MachineError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    for name, points in curves.items():
        throughputs, latencies = [one.throughput for one in points], [one.latency for one in points]
        spread = [one.latency - one.least for one in points], [one.most - one.latency for one in points]
        line, *_ = axes.errorbar(throughputs, latencies, spread, marker=".", capsize=2, elinewidth=1, label=name)
        if (found := knee(points)) is not None:
            axes.plot(
                [found.throughput],
                [found.latency],
                marker="o",
                markersize=11,
                fillstyle="none",
                color=line.get_color(),
                linestyle="none",
                label=f"knee of {name}: {found.throughput:.3g} requests/s",
            )
    axes.set_xlabel("throughput, requests/s")
    axes.set_ylabel(latency)
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    with whole_file(path) as file:
        figure.savefig(file.buffer, format="png")

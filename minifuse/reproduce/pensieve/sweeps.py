"""Curves of normalized latency against throughput, their panel, and what they say at equal latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from minifuse.reproduce.curve import Curve, Outcome
from minifuse.reproduce.experiment import Column, Panel, Point, Value
from minifuse.reproduce.pensieve.talked import Talked
from minifuse.reproduce.verdict import aim, shown, spread

BOUND = 2.0  # times the lowest p90 of the baseline: the latency at which throughputs are compared


@dataclass(frozen=True, slots=True)
class Sweep:
    """The result of a load sweep: a curve for each contender.

    `paired`: in real time, where a run is so short that the load of a rate depends on which conversations it has. Then
    contenders are compared run by run, on the same requests.
    """

    title: str
    capacity: float  # requests per second of vllm, all at once
    curves: Mapping[str, Curve]
    paired: bool = False

    def ends(self, curve: Curve) -> bool:
        """Whether a higher rate would tell nothing more: throughput has stopped to grow, or the p90 exceeds every one
        at which contenders are compared."""
        *_, last = curve.points.values()
        return curve.saturated or last.p90 > BOUND * max(other.lowest_p90 for other in self.curves.values())


def curves_panel(sweep: Sweep, more: Sequence[Column] = ()) -> Panel:
    """A row for each rate that was offered, columns for each contender. Where contenders were offered different
    conversations, by reaction time, or each round others, the rate is the one that was aimed at."""
    points, alike = [], True
    for rate in sorted({rate for curve in sweep.curves.values() for rate in curve.points}):
        measured: dict[str, Value] = {}
        for key, curve in sweep.curves.items():
            if rate in curve.points:
                measured |= curve.points[rate].values(key)
                rounds = getattr(curve.points[rate], "rounds_latency", ())
                if len(rounds) > 1:
                    measured[f"{key}_spread"] = spread(rounds)
        offered = [load for curve in sweep.curves.values() for load in _offered_at(curve, rate)]
        alike = alike and min(offered) == max(offered)
        at = {"rate": rate, "share": rate / sweep.capacity, "offered": offered[0]}
        points.append(Point(at, measured, {}))
    alike = alike and not sweep.paired
    columns = [Column("offered\nreq/s", "at", "offered") if alike else Column("nominal\nreq/s", "at", "rate")]
    for key, curve in sweep.curves.items():
        head = curve.contender.head
        columns += [
            Column(f"{head}\nreq/s", "measured", f"{key}_throughput"),
            Column(f"{head}\np90 ms", "measured", f"{key}_p90_ms"),
        ]
        if any(f"{key}_spread" in point.measured for point in points):
            columns.append(Column(f"{head}\nspread", "measured", f"{key}_spread", "{}"))
    return Panel(sweep.title, (*columns, *more), tuple(points))


def gain(ours: Curve, baseline: Curve) -> tuple[float, float, float] | None:
    """The latency (seconds) at which loads are compared, and both loads there, as requests per second.

    The latency is twice the lowest of the baseline. A load is what was offered in the measured period: it is the same
    for all contenders, where what ends in so short a period also depends on what waited when it began. Below what a
    contender can serve, and only there are latencies that low, the two are equal in the long run. None: ours is above
    that latency at every rate.
    """
    bound = BOUND * baseline.lowest_p90
    here, there = (curve.load_at(bound, _offered(curve)) for curve in (ours, baseline))
    return None if here is None or there is None else (bound, here, there)


def _by_round(ours: Curve, baseline: Curve) -> list[float]:
    """Our gain in each round in which there is one."""
    outcomes = [outcome for curve in (ours, baseline) for outcome in curve.points.values()]
    talked = [outcome for outcome in outcomes if isinstance(outcome, Talked)]
    found = []
    for number in range(min(len(outcome.rounds_offered) for outcome in talked)):
        if (compared := gain(_of_round(ours, number), _of_round(baseline, number))) is not None:
            found.append(compared[1] / compared[2])
    return found


def _of_round(curve: Curve, number: int) -> Curve:
    points: dict[float, Outcome] = {
        rate: one.of_round(number) for rate, one in curve.points.items() if isinstance(one, Talked)
    }
    return Curve(curve.contender, curve.max_batch, curve.capacity, points)


def _offered(curve: Curve) -> list[float]:
    return [load for rate in curve.points for load in _offered_at(curve, rate)]


def _offered_at(curve: Curve, rate: float) -> list[float]:
    """What was offered at a nominal rate; empty if it was not measured there."""
    outcome = curve.points.get(rate)
    return [outcome.offered] if isinstance(outcome, Talked) else []


def verdict(sweep: Sweep, ours: str, baseline: str, published: float | None, wanted: float | None = None) -> str:
    """The verdict on one contender of a sweep against another: pair by pair, or on the load at equal latency."""
    one, other = sweep.curves[ours], sweep.curves[baseline]
    if sweep.paired:
        return lower_latency(sweep.title, one, other)
    return gain_at_equal_latency(sweep.title, one, other, published, wanted)


def lower_latency(title: str, ours: Curve, baseline: Curve) -> str:
    """The verdict on our 90th percentile over the baseline's, of the same requests, in every round at every rate."""
    found = []
    for rate, outcome in ours.points.items():
        other = baseline.points.get(rate)
        if isinstance(outcome, Talked) and isinstance(other, Talked):
            pairs = zip(outcome.rounds_latency, other.rounds_latency, strict=True)
            found.append((rate, sorted(mine / theirs for mine, theirs in pairs)))
    text = "; ".join(f"{median(x):.2f} ({x[0]:.2f} to {x[-1]:.2f}) at {shown(rate)} requests/s" for rate, x in found)
    return aim(
        f"{title}, p90 of {ours.contender.head} over that of {baseline.contender.head} with the same requests",
        f"{text}: medians and spread of the rounds",
        "below 1",
        all(median(x) < 1 for _, x in found),
    )


def gain_at_equal_latency(
    title: str, ours: Curve, baseline: Curve, published: float | None, wanted: float | None = None
) -> str:
    """The verdict on the load that we serve at equal latency.

    Args:
        published: the thesis' gain, as a factor; None: it gives no number.
        wanted: the project's own aim, where it has one.
    """
    what = f"{title}, requests/s of {ours.contender.head} over {baseline.contender.head} at equal p90"
    found = gain(ours, baseline)
    aimed = wanted or published or 1.0
    thesis = "better" if published is None else f"{published:.2f}x"
    thesis += "" if wanted is None else f"; aimed at {wanted:g}x"
    if found is None:
        return aim(what, "its p90 is never as low as twice the baseline's lowest", thesis, False)
    bound, here, there = found
    factor = here / there
    *_, last = ours.points.values()
    least = "at least " if last.p90 <= bound else ""  # it was offered no more
    by_round = _by_round(ours, baseline)
    spread = f" (by round {', '.join(f'{one:.2f}x' for one in by_round)})" if len(by_round) > 1 else ""
    text = (
        f"{least}{factor:.2f}x{spread}, {shown(here)} against {shown(there)} requests/s at {bound * 1e3:.3g} ms a "
        f"token; peaks {shown(ours.peak)} and {shown(baseline.peak)}"
    )
    return aim(what, text, thesis, factor >= aimed)

"""Baton's Tables 1 and 2 (5.2): completion times by batch size.

Table 1 has long prompts and long answers. Table 2 has short queries, for which the paper compares only static with
baton. orca and vllm, which compute without padding, are not in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median

import minifuse.papers.baton.paper as paper
from minifuse.papers.baton.course import Course
from minifuse.papers.baton.queries import SHORTER
from minifuse.papers.baton.setting import (
    APART,
    BESIDE,
    EMBEDDED,
    OTHERS,
    PREFETCHED,
    RELEASED,
    TAKES,
    TO_CAP,
    TOGETHER,
    VARIANTS,
    Races,
    Setting,
    Which,
)
from minifuse.papers.experiment import Experiment, Panel, Point, Say
from minifuse.papers.numbers import told
from minifuse.papers.page import Drawn, spec, tables
from minifuse.papers.verdict import Claim, verdict
from minifuse.simulate.cost import hardware

Published = Mapping[int, Mapping[str, float]]  # seconds, by batch and contender
Pair = tuple[int, str, str]  # batch, contender and baseline

PAIRS_1 = (
    ("baton-pd", "baton"),
    ("baton-pd", "static"),
    ("baton-pd", "pd"),
    ("baton", "static"),
    ("pd", "static"),
)
CLAIMS_1 = [(batch, *pair) for batch in paper.TABLE_1 for pair in PAIRS_1]
CLAIMS_2 = [
    (batch, *pair)
    for pair in (("baton", "static"), (EMBEDDED, "static"), (EMBEDDED, TO_CAP))
    for batch in paper.TABLE_2
]
WITHIN = 0.08  # the tolerance of absolute seconds
IN_PAPER = {EMBEDDED: "baton", TO_CAP: "static"}  # the paper's names for what may be these contenders


def draw(setting: Setting, say: Say, number: str, published: Published, claims: Sequence[Pair]) -> Drawn:
    """Run all contenders in turns, at every batch size, on each machine."""
    machines, panels, judged = setting.machines(), list[Panel](), list[str]()
    published = published if setting.is_papers else {}
    say.expect((not setting.virtual) + len(machines) * len(setting.batches))
    contenders = (
        *VARIANTS,
        *((TOGETHER, RELEASED, BESIDE, PREFETCHED) if setting.first else (EMBEDDED, TO_CAP)),
        *OTHERS,
    )
    found = []
    for where, one in machines.items():
        title = f"Table {number}: the {'first' if setting.first else 'second'} set of queries{where}"
        races = one.races(say, contenders, partial(_panels, title, one, published))
        panels += _panels(title, one, published, races)
        judged += [f"{claim(races, *pair, published)[:-1]}{where}." for pair in claims if published]
        found.append(races)
    return Drawn(
        panels,
        claims=tuple(judged) or ("Not compared: the paper has other queries, or another model.",),
        seconds=tuple(absolute(found[-1], published, setting.first)) if setting.virtual else (),
        framework=hardware(f"{setting.machine}-framework"),
        second=not setting.first,
        apart=APART,
        shortest=SHORTER[0],
        longest=SHORTER[1],
        bounds={batch: bound(batch, *SHORTER) for batch in paper.TABLE_2},
        saved={
            batch: median(
                len(static.ended_s) / len(orca.ended_s)
                for static, orca in zip(served["static"].runs, served["orca"].runs, strict=True)
            )
            for batch, served in found[0].items()
        },
        over={ours: {name: over(found[0], ours, name) for name in OTHERS} for ours in ("baton", "baton-pd")},
    )


def absolute(races: Races, published: Published, first: bool) -> Iterator[str]:
    """Yield the verdicts on seconds with a framework's fixed costs, except the fitted ones."""
    for batch, served in races.items():
        for name, theirs in published.get(batch, {}).items():
            ours = name if first else {"static": TO_CAP, "baton": EMBEDDED}[name]
            if ours == TO_CAP and batch in paper.FITTED_TO:
                continue
            seconds, claimed = served[ours].rounds_s, Claim.about(theirs, "{:,.1f} s", WITHIN)
            yield verdict(
                f"Seconds of {ours}, batch of {batch}, with a framework's fixed costs",
                seconds,
                claimed,
                told(seconds, "{:,.1f} s"),
                "paper",
            )


def _panels(title: str, setting: Setting, published: Published, races: Races) -> tuple[Panel, Panel]:
    """Return two panels by batch size and contender: times, then work and memory."""
    points = []
    for batch, served in races.items():
        seconds = published.get(batch, {})
        for name, one in served.items():
            theirs, gains = seconds.get(name), one.over(served["static"])
            costs = [_work(setting, course) for course in one.runs]
            measured = {
                "seconds": median(one.rounds_s),
                "seconds_rounds": one.rounds_s,
                "gain": median(gains),
                "gain_rounds": gains,
                **{key: median(values) for key in costs[0] if (values := [one[key] for one in costs if key in one])},
            }
            in_paper = {"seconds": theirs, "gain": seconds["static"] / theirs if theirs else None}
            points.append(Point({"name": f"{batch} {name}", "batch": batch, "contender": name}, measured, in_paper))
    times, work = tables("baton/table1_2")
    return Panel(title, times, tuple(points)), Panel(f"{title}: work and memory", work, tuple(points))


def _work(setting: Setting, course: Course) -> dict[str, float]:
    """Return the work and memory of a run, and the mean megabytes of an insertion."""
    found = {
        "idle_share": course.idle_share,
        "iterations": len(course.ended_s),
        "apart_share": course.apart_s / course.seconds,
        "link_share": course.link_s / course.seconds,
        "peak": course.peak,
        "mean_used": course.mean_used,
    }
    if course.insertions:
        insertion_mb = setting.slot_bytes / course.insertions / 1e6
        found |= {"copied_mb": course.embedded * insertion_mb, "cleared_mb": course.cleared * insertion_mb}
    return found


def bound(batch: int, shortest: int, longest: int) -> float:
    """Return the largest factor by which refilling at once can reduce the iterations.

    A static batch lasts as long as its longest answer. It loses most if all other answers have the least length.

    >>> round(bound(2, 24, 200), 2)
    1.79
    """
    return batch * longest / (longest + (batch - 1) * shortest)


def claim(races: Races, batch: int, name: str, baseline: str, published: Published) -> str:
    """Judge whether a contender's speed-up over the baseline is that of the paper."""
    theirs, ours = (published[batch][IN_PAPER.get(one, one)] for one in (baseline, name))
    claimed = Claim.about(theirs / ours)
    what = f"{name} over {baseline}, batch of {batch}"
    if batch not in races:
        return verdict(what, (), claimed, "not measured", "paper")
    return verdict(what, races[batch][name].over(races[batch][baseline]), claimed, source="paper")


def over(races: Races, ours: str, baseline: str) -> dict[int, float]:
    """Return how many times as fast as the baseline a contender is, by batch size."""
    return {batch: median(served[ours].over(served[baseline])) for batch, served in races.items()}


def _table(number: str, which: Which, shows: str, published: Published, claims: Sequence[Pair]) -> Experiment:
    make = partial(Setting, which)
    experiment = spec("Baton", number, shows, make, takes=TAKES, kind="table", page="baton/table1_2")
    return experiment(partial(draw, number=number, published=published, claims=claims))


TABLE_1 = _table("1", "first", "completion times of the four variants, with long sequences", paper.TABLE_1, CLAIMS_1)
TABLE_2 = _table(
    "2", "second", "completion times with short queries, by the size of the batch", paper.TABLE_2, CLAIMS_2
)

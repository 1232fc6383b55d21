"""Completion times of the contenders by the size of the batch, which Tables 1 and 2 share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from minifuse.reproduce.baton.setting import OTHERS, VARIANTS, Served, Setting, Which, experiment
from minifuse.reproduce.experiment import Column, Experiment, Finding, Panel, Point, Say, Value, beside
from minifuse.reproduce.verdict import aim, spread

Published = Mapping[int, Mapping[str, float]]  # seconds, by batch and contender
Races = Mapping[int, Mapping[str, Served]]  # by batch, then by contender


def table(
    number: str, which: Which, shows: str, published: Published, claims: Sequence[tuple[int, str, str]]
) -> Experiment:
    """The experiment of a table: the four variants of the paper, and what iterates without padding, on one of the sets.

    Args:
        claims: batch, contender and baseline of every claim of the paper.
    """
    title, contenders = f"Table {number}: the {which} set of queries", (*VARIANTS, *OTHERS)

    def draw(setting: Setting, say: Say) -> Finding:
        """Every batch, with all contenders in turns."""
        setting.start(say, contenders)
        say.expect(len(setting.batches))
        races: dict[int, dict[str, Served]] = {}
        for batch in setting.batches:
            say(f"batch of {batch}")
            races[batch] = setting.race(batch, contenders)
            for panel in panels(title, setting, races, published):
                say.keep(panel)
        notes = (
            setting.note(),
            *(claim(races, *one, published) for one in claims),
            bound(races),
            *(others(races, name, OTHERS) for name in ("baton", "baton-pd")),
        )
        return Finding(setting.facts(), panels(title, setting, races, published), notes)

    return experiment(which, "table", number, shows, draw)


NAME = Column("batch\ncontender", "at", "name", "{}")
TIMES = (
    NAME,
    *beside("s", "seconds", "{:,.4g}"),
    Column("s\nspread", "measured", "spread", "{}"),
    *beside("over static", "gain", "{:.2f}x"),
)
WORK = (
    NAME,
    Column("\niterations", "measured", "iterations", "{:,}"),
    Column("idle\ntokens", "measured", "idle_share", "{:.1%}"),
    Column("KV tokens\npeak", "measured", "peak", "{:,}"),
    Column("KV tokens\nmean", "measured", "mean_used", "{:,.0f}"),
    Column("an insertion\ncopies MB", "measured", "copied_mb"),
    Column("an insertion\nclears MB", "measured", "cleared_mb"),
)


def panels(title: str, setting: Setting, races: Races, published: Published) -> tuple[Panel, Panel]:
    """One row for each batch and contender: seconds, and throughput against static; and what took them."""
    token_bytes = setting.source.config.kv_bytes_per_token(setting.settings.dtype)
    points = []
    for batch, served in races.items():
        for name, one in served.items():
            course, times = one.course, published.get(batch, {}) if setting.conditions.requests is None else {}
            measured: dict[str, Value] = {
                "seconds": course.seconds,
                "rounds_s": one.rounds_s,
                "spread": spread(one.rounds_s) if len(one.rounds_s) > 1 else None,
                "gain": median(one.over(served["static"])),
                "rounds_gain": one.over(served["static"]),
                "idle_share": course.idle_share,
                "iterations": len(course.ended_s),
                "peak": course.peak,
                "mean_used": course.mean_used,
                "copied_mb": course.embedded * token_bytes / course.insertions / 1e6 if course.insertions else None,
                "cleared_mb": course.cleared * token_bytes / course.insertions / 1e6 if course.insertions else None,
            }
            theirs = times.get(name)
            paper: dict[str, Value] = {"seconds": theirs, "gain": times["static"] / theirs if theirs else None}
            points.append(Point({"name": f"{batch} {name}", "batch": batch, "contender": name}, measured, paper))
    return Panel(title, TIMES, tuple(points)), Panel(f"{title}: work and memory", WORK, tuple(points))


def claim(races: Races, batch: int, name: str, baseline: str, published: Published) -> str:
    """Whether a contender is as much faster than another as in the paper."""
    theirs = published[batch][baseline] / published[batch][name]
    if batch not in races:
        return aim(f"{name} over {baseline}, batch of {batch}", "not measured", f"{theirs:.2f}x", None, "paper")
    gains = races[batch][name].over(races[batch][baseline])
    rounds = f" ({min(gains):.2f} to {max(gains):.2f})" if len(gains) > 1 else ""
    here = f"{median(gains):.2f}x{rounds}"
    met = round(median(gains), 2) >= round(theirs, 2)
    return aim(f"{name} over {baseline}, batch of {batch}", here, f"{theirs:.2f}x", met, "paper")


def bound(races: Races) -> str:
    """How many iterations are saved where finished queries are replaced at once."""
    parts = [
        f"{len(served['static'].course.ended_s) / len(served['orca'].course.ended_s):.2f}x at {batch}"
        for batch, served in races.items()
    ]
    return (
        "With these lengths, refilling at once saves iterations (static over orca): "
        f"{', '.join(parts)}. Iterations that also compute less gain more than that."
    )


def others(races: Races, ours: str, baselines: Sequence[str]) -> str:
    """Where re-batching wins against what needs no rectangles, and where it loses."""
    parts = []
    for baseline in baselines:
        gains = ", ".join(
            f"{median(served[ours].over(served[baseline])):.2f}x at {batch}" for batch, served in races.items()
        )
        parts.append(f"{ours} over {baseline}, by batch: {gains}")
    return (
        f"Not in the paper: {'; '.join(parts)}. Here orca and vllm compute every token once, without padding, and "
        "replicate no parameters."
    )

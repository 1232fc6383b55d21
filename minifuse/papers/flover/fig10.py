"""Flover's Figure 10: the memory shuffle under tensor parallelism, and the messages it saves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import minifuse.papers.flover.paper as paper
from minifuse.core.request import Request
from minifuse.papers.experiment import Conditions, Plot, Say
from minifuse.papers.flover.machine import PROMPT
from minifuse.papers.flover.setting import Setting, experiment, gains
from minifuse.papers.page import Drawn, tables
from minifuse.papers.verdict import Claim, against_paper, verdict
from minifuse.parallel.config import shard_config
from minifuse.workload.laws import Arrival

# By scale. In real time two processes exchange messages by gloo, with a model as small as they are.
POINTS = {
    "quick": paper.GAINS_10[2:3],
    "cpu": tuple(point for point in paper.GAINS_10 if point.longest == 1000),
    "paper": paper.GAINS_10,
}
TOKENS = {"quick": 16, "cpu": 64, "paper": paper.TOKENS}
SMALL = "random:small"
LINK_TOLERANCE = 0.05  # of 1.09 times: a gain that does not grow is no agreement


def make(conditions: Conditions, tokens: int, crowds: Iterable[tuple[int, float]]) -> Setting:
    """Make the setting: in real time a small model, in virtual time long contexts.

    Raises:
        UsageError: the model or the KV of a point is too large, or a point's GPUs cannot share the model.
    """
    points = POINTS[conditions.scale]
    if conditions.scale != "paper":
        crowds = [(point.requests, point.longest / paper.TOKENS) for point in points]
        conditions = replace(conditions, model=conditions.model or SMALL)
    setting = Setting(conditions, tokens, crowds)
    config = setting.source.config
    if setting.virtual:
        needed = PROMPT + max(setting.length(point.longest) for point in points)
        setting.source = replace(setting.source, config=replace(config, max_context=max(config.max_context, needed)))
    for point in points:
        shard_config(config, point.gpus)
        kv_tokens = point.requests * (PROMPT + setting.length(point.longest))
        setting.with_ranks(point.gpus, point.link).check_memory(
            kv_tokens, f"the KV of {point.name}", "a smaller --model, a shorter --dtype or fewer --tokens"
        )
    return setting


@experiment(
    "10",
    "tensor parallelism: the memory shuffle on and off, its messages, and its gain",
    TOKENS,
    [],
    make,
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure the gain of the shuffle on several GPUs, or between two processes."""
    machines, points = setting.machines(), POINTS[setting.conditions.scale]
    say.expect(len(machines) * len(points))
    plots = [_plot(own, say, where, points) for where, own in machines.items()]
    keys = ("gain", "masked_gain") if setting.virtual else ("gain",)
    beyond = [
        point.at["name"]
        for point in plots[0].points
        if (point.paper["gain"] or 0) > max(*point.measured["row_bound_rounds"], *point.measured["kv_bound_rounds"])
    ]
    return Drawn(
        [plot.panel for plot in plots],
        beyond=", ".join(beyond),
        verdicts=[
            text
            for plot in plots
            for key in keys
            for text in (
                f"{plot.title}. {against_paper(plot.points, key, lambda at: at['name'])}",
                *_slower_link(plot, key),
            )
        ]
        if setting.virtual
        else (),
    )


def _plot(setting: Setting, say: Say, where: str, points: Iterable[paper.Distributed]) -> Plot:
    """Measure points on one machine."""
    simulated, exchanged = tables("flover/fig10")
    title = f"Fig. 10: shuffle against none, tensor parallel{where}"
    plot = Plot(say, title, simulated if setting.virtual else exchanged)
    for number, point in enumerate(points):
        say(point.name)
        ranks = setting.with_ranks(point.gpus, point.link)
        outcomes, values = ranks.contest(
            partial(_drawn, ranks, point), number, instances=False, unshuffled=True, masked=setting.virtual
        )
        on, off = outcomes["fusion"].runs, outcomes["unshuffled"].runs
        law = ranks.law(point.longest)
        measured = {
            **values,
            "idle_share": median(one.idle_share for one in off),
            "messages": median(one.num_messages / one.iterations for one in on),
            "kib": median(one.message_bytes / one.iterations / 1024 for one in on),
            "unshuffled_kib": median(one.message_bytes / one.iterations / 1024 for one in off),
            **gains("fewer_bytes", [more.message_bytes / few.message_bytes for few, more in zip(on, off, strict=True)]),
        }
        at = {"lengths": f"{law.low}-{law.high}", **point._asdict(), "name": point.name}
        plot.add(at, measured, setting.published(dict.fromkeys(("gain", "masked_gain"), point.gain)))
    return plot


def _slower_link(plot: Plot, key: str) -> Iterator[str]:
    """Judge how much the gain grows with a slower link alone."""
    found: dict[tuple[Any, ...], dict[Any, Sequence[float]]] = {}
    for point in plot.points:
        at = tuple(point.at[name] for name in ("gpus", "requests", "longest"))
        found.setdefault(at, {})[point.at["link"]] = point.measured[f"{key}_rounds"]
    for by_link in found.values():
        if by_link.keys() == {"intra", "inter"} and any(point.paper[key] for point in plot.points):
            ratios = [inter / intra for inter, intra in zip(by_link["inter"], by_link["intra"], strict=True)]
            claim = Claim.about(paper.GAINS_10[1].gain / paper.GAINS_10[0].gain, tolerance=LINK_TOLERANCE)
            noun = key.replace("_", " ")
            yield verdict(f"{plot.title}. The {noun} between nodes over that within", ratios, claim, source="paper")


def _drawn(setting: Setting, point: paper.Distributed, number: int) -> list[Request]:
    """Make a round's requests.

    In real time they arrive at once, so that the messages depend on no clock.
    """
    interval = setting.seconds(paper.INTERVAL) if setting.virtual else 0.0
    arrivals = Arrival(interval).times(point.requests, setting.rng("arrivals"))
    return setting.requests(arrivals, setting.lengths(point.longest, point.requests, number))

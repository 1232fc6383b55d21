"""Flover's Figure 9: answers of random lengths, with and without the memory shuffle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from statistics import median

import minifuse.papers.flover.paper as paper
from minifuse.core.request import Request
from minifuse.papers.experiment import Conditions, Plot, Say, Values
from minifuse.papers.flover.setting import Setting, by_machine, experiment
from minifuse.papers.page import Drawn, tables
from minifuse.papers.verdict import against_paper
from minifuse.workload.laws import Arrival

REQUESTS_A, REQUESTS_B = 32, 16
# By scale, in the paper's tokens; only `paper.NAMED_9A` and `NAMED_9B` are in its text.
LONGEST_A = {"quick": (256, 1024), "cpu": (256, 1024), "paper": (256, 512, 1024)}
LONGEST_B = {"quick": (256, 1792), "cpu": (256, 1024, 1792), "paper": (256, 512, 1024, 1792)}
TOKENS = {"quick": 16, "cpu": 32, "paper": paper.TOKENS}
TOKENS_B = {"cpu": 128}  # where 9b has longer answers than 9a: shuffling gains more at long contexts
CROWDS = tuple(
    (count, max(longest["paper"]) / paper.TOKENS)
    for count, longest in ((REQUESTS_A, LONGEST_A), (REQUESTS_B, LONGEST_B))
)

MIB = 2**20


def _tokens_b(conditions: Conditions) -> int | None:
    """Return the tokens that stand for 512 in Fig. 9b; None: as in 9a."""
    return TOKENS_B.get(conditions.scale) if conditions.tokens is None else None


def make(conditions: Conditions, tokens: int, crowds: Iterable[tuple[int, float]]) -> Setting:
    """Make the setting of Fig. 9a, and check that the answers of 9b fit, too."""
    if wider := _tokens_b(conditions):
        Setting(conditions, wider, CROWDS[1:])
    return Setting(conditions, tokens, crowds)


@experiment(
    "9",
    "answers of random lengths: the memory shuffle on and off, and the speed-up over instances",
    TOKENS,
    CROWDS,
    make,
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure random answer lengths: (a) shuffle on, off and instances; (b) shuffle on and off."""
    scale, machines = setting.conditions.scale, setting.machines()
    say.expect(len(machines) * (len(LONGEST_A[scale]) + len(LONGEST_B[scale])))
    wider = _tokens_b(setting.conditions)
    plots: list[Plot] = []
    verdicts: list[str] = []
    for where, own in machines.items():
        pair = _plots(own, say, where, wider)
        plots += pair
        keys = ((pair[0], "speedup"), (pair[1], "gain"), *([(pair[1], "masked_gain")] if own.virtual else []))
        for plot, key in keys:
            judged = against_paper(plot.points, key, lambda at: f"lengths {at['paper_lengths']}")
            verdicts.append(f"{plot.title}. {judged}")
    return Drawn(
        [plot.panel for plot in plots],
        wider=wider,
        rows=REQUESTS_B,
        cost=by_machine({where: f"{_rows_cost(one):.2f}" for where, one in machines.items()}),
        instances=setting.about_instances(),
        widest=plots[1].points[-1],
        verdicts=verdicts,
    )


def _rows_cost(setting: Setting) -> float:
    """Divide the time of an iteration of Fig. 9b's rows by a single row's."""
    return REQUESTS_B * setting.throughput[1] / setting.throughput[REQUESTS_B]


def _plots(setting: Setting, say: Say, where: str, wider: int | None) -> tuple[Plot, Plot]:
    """Measure Figures 9a and 9b on one machine."""
    scale = setting.conditions.scale
    columns_a, columns_b = tables("flover/fig9")
    title = f"Fig. 9a: {REQUESTS_A} requests, {paper.INTERVAL} ms apart, of random lengths{where}"
    against_instances = Plot(say, title, columns_a)
    against_none = Plot(say, f"Fig. 9b: shuffle against none, {REQUESTS_B} requests{where}", columns_b)
    _measure(setting, against_instances, REQUESTS_A, LONGEST_A[scale], instances=True)
    wide = setting.of_tokens(wider) if wider else setting
    _measure(wide, against_none, REQUESTS_B, LONGEST_B[scale], instances=False)
    return against_instances, against_none


def _drawn(setting: Setting, count: int, longest: int, number: int) -> list[Request]:
    """Draw a round's answer lengths, and make its requests."""
    arrivals = Arrival(setting.seconds(paper.INTERVAL)).times(count, setting.rng("arrivals"))
    return setting.requests(arrivals, setting.lengths(longest, count, number))


def _measure(setting: Setting, plot: Plot, count: int, longest: Sequence[int], instances: bool) -> None:
    """Add a point for each upper bound: lengths are uniform(128, bound) in the paper's tokens."""
    named = paper.NAMED_9A if instances else paper.NAMED_9B
    for number, upper in enumerate(longest):
        plot.say(f"lengths {paper.SHORTEST}-{upper}, {count} requests")
        law, draw = setting.law(upper), partial(_drawn, setting, count, upper)
        masked = setting.virtual and not instances  # in real time, torch's attention is the only one
        outcomes, values = setting.contest(draw, number, instances=instances, unshuffled=True, masked=masked)
        on, off = outcomes["fusion"].run, outcomes["unshuffled"]
        measured = {
            **values,
            "idle_tokens": on.idle_tokens,
            "unshuffled_idle_tokens": off.run.idle_tokens,
            "unshuffled_idle_share": median(one.idle_share for one in off.runs),
            "num_moves": on.num_moves,
            "moved_mib": on.moved_tokens * setting.slot_bytes / MIB,
            "moving_ms": None if setting.virtual else on.moving_s * 1e3,
        }
        at = {
            "paper_lengths": f"{paper.SHORTEST}-{upper}" + ("" if upper == named else ", ours"),
            "lengths": f"{law.low}-{law.high}",
            "requests": count,
        }
        gain = paper.GAIN_9B if upper == named else None
        published: Values = {"speedup": paper.SPEEDUP_9A} if instances else {"gain": gain, "masked_gain": gain}
        plot.add(at, measured, setting.published(published))

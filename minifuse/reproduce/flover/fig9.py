"""Flover's Figure 9: answers of random lengths, with and without the memory shuffle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import minifuse.reproduce.flover.paper as paper
from minifuse.reproduce.experiment import Column, Conditions, Experiment, Finding, Panel, Point, Run, Say, Value, beside
from minifuse.reproduce.flover.setting import INSTANCES, SPEEDUP, Setting
from minifuse.reproduce.verdict import against_paper
from minifuse.workload.laws import Arrival, Uniform

REQUESTS_A, REQUESTS_B = 32, 16
INTERVAL, SHORTEST = 20, 128  # the paper's milliseconds and tokens
# By scale, in the paper's tokens.
LONGEST_A = {"quick": (256, 1024), "cpu": (256, 512, 1024), "paper": (256, 512, 1024)}
LONGEST_B = {"quick": (256, 1792), "cpu": (256, 512, 1024, 1792), "paper": (256, 512, 1024, 1792)}
TOKENS = {"quick": 16, "cpu": 128, "paper": paper.TOKENS}
TOKENS_B = {"cpu": paper.TOKENS}  # where 9b has other lengths than 9a: what shuffling saves grows with the contexts
CROWDS = tuple(
    (count, max(longest["paper"]) / paper.TOKENS)
    for count, longest in ((REQUESTS_A, LONGEST_A), (REQUESTS_B, LONGEST_B))
)

MIB = 2**20

COLUMNS = (
    Column("lengths\npaper", "at", "paper_lengths", "{}"),
    Column("lengths\nhere", "at", "lengths", "{}"),
    Column("shuffle\non", "measured", "fusion_s"),
    Column("shuffle\noff", "measured", "unshuffled_s"),
    Column("idle\nif off", "measured", "unshuffled_idle_share", "{:.0%}"),
    Column("moved\nslots", "measured", "num_moves", "{}"),
    Column("moved\nMiB", "measured", "moved_mib"),
    Column("moved\nms", "measured", "moving_ms"),
)
GAIN = beside("gain", "gain", "<={:.0f}x", "{:.2f}x")


def draw(setting: Setting, say: Say) -> Finding:
    """Answers of random lengths: (a) with and without shuffle against instances, (b) shuffle alone, ever wider."""
    setting.start(say)
    scale = setting.conditions.scale
    say.expect(len(LONGEST_A[scale]) + len(LONGEST_B[scale]))
    points_a: list[Point] = []
    for point in _points(setting, say, REQUESTS_A, LONGEST_A[scale], instances=True):
        points_a.append(point)
        say.keep(_panel_a(points_a))
    wider = _tokens_b(setting.conditions)
    wide = setting.of_tokens(wider) if wider else setting
    points_b: list[Point] = []
    for point in _points(wide, say, REQUESTS_B, LONGEST_B[scale], instances=False):
        points_b.append(point)
        say.keep(_panel_b(points_b))
    panels = (_panel_a(points_a), _panel_b(points_b))
    moving = "virtual time does not give separately" if setting.virtual else "are of all its copies together"
    notes = (
        *setting.notes(),
        "Shuffle on, off: overall latency in s. Idle: the share of idle tokens in all tokens computed without shuffle. "
        f"Moved: what the shuffle copied, whose ms {moving}.",
        "The paper does not say for which lengths of Fig. 9a it measured 6.8x.",
        *([f"In Fig. 9b, {wider} tokens stand for the paper's {paper.TOKENS}."] if wider else []),
        rows_cost(setting, points_b[-1]),
        against_paper(points_a, "speedup", lambda at: f"lengths {at['paper_lengths']}"),
        against_paper(points_b, "gain", lambda at: f"lengths {at['paper_lengths']}"),
    )
    return Finding(setting.facts(), panels, notes)


def _panel_a(points: Sequence[Point]) -> Panel:
    title = f"Fig. 9a: {REQUESTS_A} requests, {INTERVAL} ms apart, of random lengths"
    return Panel(title, (*COLUMNS, INSTANCES, *SPEEDUP), tuple(points))


def _panel_b(points: Sequence[Point]) -> Panel:
    return Panel(f"Fig. 9b: shuffle against none, {REQUESTS_B} requests", (*COLUMNS, *GAIN), tuple(points))


def _points(setting: Setting, say: Say, count: int, longest: Sequence[int], instances: bool) -> Iterator[Point]:
    """One point for each upper bound of the lengths, which are uniform(128, bound) in the paper's tokens."""
    arrivals = Arrival(setting.seconds(INTERVAL)).times(count, setting.rng("arrivals"))
    for number, upper in enumerate(longest):
        say(f"lengths {SHORTEST}-{upper}, {count} requests")
        law, rng = Uniform(setting.length(SHORTEST), setting.length(upper)), setting.rng("lengths")
        lengths = [law.draw(rng) for _ in range(count)]
        outcomes, values = setting.race(arrivals, lengths, first=number, instances=instances, unshuffled=True)
        on, off = outcomes["fusion"], outcomes["unshuffled"]
        measured: dict[str, Value] = {
            **values,
            "gain": off.latency_s / on.latency_s,
            "idle_tokens": on.idle_tokens,
            "unshuffled_idle_tokens": off.idle_tokens,
            "unshuffled_idle_share": off.idle_share,
            "num_moves": on.num_moves,
            "moved_mib": on.moved_tokens * setting.token_bytes / MIB,
            "moving_ms": None if setting.virtual else on.moving_s * 1e3,
        }
        at: dict[str, Value] = {
            "paper_lengths": f"{SHORTEST}-{upper}",
            "lengths": f"{law.low}-{law.high}",
            "requests": count,
        }
        published = (
            {"speedup": paper.SPEEDUP_9A} if instances else {"gain": paper.GAIN_9B if upper == max(longest) else None}
        )
        yield Point(at, measured, published)


def rows_cost(setting: Setting, widest: Point) -> str:
    """The cost of idle rows, which is all that the shuffle can save."""
    speeds, idle = setting.throughput, widest.measured["unshuffled_idle_share"]
    assert isinstance(idle, float)
    return (
        f"The shuffle saves the cost of idle rows. Here an iteration of {REQUESTS_B} rows takes "
        f"{REQUESTS_B * speeds[1] / speeds[REQUESTS_B]:.2f} times as long as one of a single row, at equal contexts. "
        f"Without it the region still gives up its ends, so that {idle:.0%} of the rows are idle at "
        f"{widest.at['paper_lengths']}: even if an iteration cost as much as its rows, shuffling would gain "
        f"{1 / (1 - idle):.2f}x there."
    )


def _tokens_b(conditions: Conditions) -> int | None:
    """The number that stands for the paper's 512 tokens in Fig. 9b, where it is not that of 9a."""
    return TOKENS_B.get(conditions.scale) if conditions.tokens is None else None


def prepare(conditions: Conditions) -> Run:
    setting = Setting(conditions, TOKENS[conditions.scale], CROWDS)
    if wider := _tokens_b(conditions):
        Setting(conditions, wider, CROWDS[1:])  # whose answers must fit too
    return partial(draw, setting)


EXPERIMENT = Experiment(
    "Flover",
    "9",
    "answers of random lengths: the memory shuffle on and off, and the speed-up over instances",
    prepare,
)

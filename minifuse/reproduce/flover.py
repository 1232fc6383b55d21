"""Flover's experiments on one device: Figs. 7, 8 and 9 (section VI-B to VI-D), fusion against concurrent instances."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import minifuse.reproduce.flover_paper as paper
from minifuse.reproduce.bench import Outcome, race
from minifuse.reproduce.experiment import Column, Conditions, Experiment, Finding, Panel, Point, Run, Say, Value
from minifuse.reproduce.flover_notes import bound, judged, notes, rows_cost
from minifuse.reproduce.flover_setting import Setting
from minifuse.workload.laws import Arrival, Uniform

__all__ = ["EXPERIMENTS"]

Drawing = Callable[[Setting, Say], Finding]

# What each scale runs, in the paper's milliseconds and tokens. `quick` and `cpu` leave out what costs most.
REQUESTS_7 = {"quick": (2, 4), "cpu": (2, 4, 8), "paper": (2, 4, 8)}
BATCHES_7 = {"quick": (1,), "cpu": (1, 4), "paper": (1, 2, 3, 4)}
INTERVALS_7 = {"quick": (500, 5000), "cpu": (500, 2500, 5000), "paper": (500, 2500, 5000)}

REQUESTS_8 = 32
INTERVALS_8 = {"quick": (20, 200, 1000), "cpu": paper.INTERVALS_8, "paper": paper.INTERVALS_8}
RACED_8 = {**INTERVALS_8, "cpu": (*paper.SPEEDUP_8, 1000, 5000)}  # where instances run too

REQUESTS_9A, REQUESTS_9B = 32, 16
INTERVAL_9, SHORTEST_9 = 20, 128
LONGEST_9A = {"quick": (256, 1024), "cpu": (256, 512, 1024), "paper": (256, 512, 1024)}
TOKENS_9 = {"quick": 16, "cpu": 128, "paper": paper.TOKENS}
TOKENS_9B = {"cpu": paper.TOKENS}  # where it is not that of 9a: what shuffling saves grows with the contexts
LONGEST_9B = {"quick": (256, 1792), "cpu": (256, 512, 1024, 1792), "paper": (256, 512, 1024, 1792)}

MIB = 2**20

INTERVAL = Column("interval\nms", "at", "interval_ms", "{}")
LENGTHS = Column("lengths\npaper", "at", "paper_lengths", "{}"), Column("lengths\nhere", "at", "lengths", "{}")
FUSION, INSTANCES = Column("fusion\ns", "measured", "fusion_s"), Column("inst.\ns", "measured", "instances_s")
SPEEDUP = (
    Column("speed-up\npaper", "paper", "speedup", "{:.1f}x"),
    Column("speed-up\nhere", "measured", "speedup", "{:.2f}x"),
)
LIMIT = Column("at\nbest", "measured", "limit", "{:.2f}x")
GAIN = Column("gain\npaper", "paper", "gain", "<={:.0f}x"), Column("gain\nhere", "measured", "gain", "{:.2f}x")
SHUFFLE = (
    Column("shuffle\non", "measured", "fusion_s"),
    Column("shuffle\noff", "measured", "unshuffled_s"),
    Column("idle\nif off", "measured", "unshuffled_idle_share", "{:.0%}"),
    Column("moved\nslots", "measured", "num_moves", "{}"),
    Column("moved\nMiB", "measured", "moved_mib"),
    Column("moved\nms", "measured", "moving_ms"),
)


def fig7(setting: Setting, say: Say) -> Finding:
    """Overall latency of 2 to 8 requests at constant intervals, each of 1 to 4 prompts."""
    scale = setting.conditions.scale
    points: list[Point] = []
    batches = BATCHES_7[scale]
    for interval in INTERVALS_7[scale]:
        for batch in batches:
            for count in REQUESTS_7[scale]:
                say(f"every {interval} ms, {count} requests of batch {batch}")
                arrivals = Arrival(setting.seconds(interval)).times(count, setting.rng("arrivals"))
                raced = _race(setting, arrivals, batch=batch, first=len(points))
                at: dict[str, Value] = {
                    "interval_ms": interval,
                    "interval_s": setting.seconds(interval),
                    "r_p": overlapped_portion(interval / 1e3),
                    "requests": count,
                    "batch": batch,
                }
                told = paper.SPEEDUP_7[interval].get(count)
                points.append(
                    Point(at, _speedup(setting, arrivals, raced), {"r_p": paper.R_P_7[interval], "speedup": told})
                )
    columns = (
        INTERVAL,
        Column("r_p\npaper", "paper", "r_p", "{:.1%}"),
        Column("r_p\nhere", "at", "r_p", "{:.1%}"),
        Column("\nbatch", "at", "batch", "{}"),
        Column("\nrequests", "at", "requests", "{}"),
        *(FUSION, INSTANCES, *SPEEDUP, LIMIT),
    )
    panel = Panel("Fig. 7: overall latency at constant intervals", columns, tuple(points))
    left_out = "" if len(batches) == 4 else f" Here only batch {' and '.join(map(str, batches))}, to save time."
    own = (
        "At best: the speed-up if every request, from its arrival on, took no longer in company than it takes alone.",
        f"The paper's r_p are those of a request that takes 6 s alone, not {paper.ALONE_S} s.",
        f"The paper gives one speed-up for all batches of 1 to 4, and for 5000 ms only the words that the pipeline is "
        f"almost sequential: 1.0x stands for them.{left_out}",
        judged(
            points, "speedup", lambda at: f"{at['interval_ms']} ms, {at['requests']} requests of batch {at['batch']}"
        ),
    )
    return Finding(setting.facts(), (panel,), (*notes(setting), *own))


def fig8(setting: Setting, say: Say) -> Finding:
    """Overlap, iterations and speed-up of 32 requests that arrive as a Poisson process."""
    scale = setting.conditions.scale
    points: list[Point] = []
    for interval in INTERVALS_8[scale]:
        say(f"Poisson, {interval} ms on average, {REQUESTS_8} requests")
        arrivals = Arrival(setting.seconds(interval), cv=1.0).times(REQUESTS_8, setting.rng("arrivals"))
        raced = _race(setting, arrivals, first=len(points), instances=interval in RACED_8[scale])
        fused, told = raced["fusion"], paper.ITERATIONS_8.get(interval)
        at: dict[str, Value] = {"interval_ms": interval, "interval_s": setting.seconds(interval)}
        measured: dict[str, Value] = {
            "overlap": fused.overlap,
            "iterations": fused.iterations,
            "iterations_per_token": fused.iterations / setting.tokens,
            **_speedup(setting, arrivals, raced),
        }
        printed: dict[str, Value] = {
            "overlap": paper.OVERLAP_8.get(interval),
            "iterations": told,
            "iterations_per_token": None if told is None else told / paper.TOKENS,
            "speedup": paper.SPEEDUP_8.get(interval),
        }
        points.append(Point(at, measured, printed))
    columns = (
        INTERVAL,
        Column("overlap\npaper", "paper", "overlap", "{:.1%}"),
        Column("overlap\nhere", "measured", "overlap", "{:.1%}"),
        Column("iter.\npaper", "paper", "iterations", "{:,}"),
        Column("iter.\nhere", "measured", "iterations", "{:,}"),
        Column("/token\npaper", "paper", "iterations_per_token", "{:.2f}"),
        Column("/token\nhere", "measured", "iterations_per_token", "{:.2f}"),
        *(FUSION, INSTANCES, *SPEEDUP),
    )
    panel = Panel(f"Fig. 8: {REQUESTS_8} requests, a Poisson process", columns, tuple(points))
    own = (
        f"Iterations are those of the main stream. The paper's are for {paper.TOKENS} tokens a request: compare them "
        "divided by a request's tokens. The arrivals are one draw, stretched to each mean interval.",
        bound(setting, points[0], REQUESTS_8),
        judged(points, "speedup", lambda at: f"{at['interval_ms']} ms"),
    )
    return Finding(setting.facts(), (panel,), (*notes(setting), *own))


def fig9(setting: Setting, say: Say) -> Finding:
    """Answers of random lengths: (a) with and without shuffle against instances, (b) shuffle alone, ever wider."""
    scale = setting.conditions.scale
    points_a = tuple(_lengths(setting, say, REQUESTS_9A, LONGEST_9A[scale], instances=True))
    wider = _tokens_9b(setting.conditions)
    wide = setting.of_tokens(wider) if wider else setting
    points_b = tuple(_lengths(wide, say, REQUESTS_9B, LONGEST_9B[scale], instances=False))
    panels = (
        Panel(
            f"Fig. 9a: {REQUESTS_9A} requests, {INTERVAL_9} ms apart, of random lengths",
            (*LENGTHS, *SHUFFLE, INSTANCES, *SPEEDUP),
            points_a,
        ),
        Panel(f"Fig. 9b: shuffle against none, {REQUESTS_9B} requests", (*LENGTHS, *SHUFFLE, *GAIN), points_b),
    )
    moving = "virtual time does not tell apart" if setting.virtual else "are of all its copies together"
    own = (
        "Shuffle on, off: overall latency in s. Idle: tokens that nobody asked for, of all that were computed without "
        f"shuffle. Moved: what the shuffle copied, whose ms {moving}.",
        "The paper does not say for which lengths of Fig. 9a it measured 6.8x.",
        *([f"In Fig. 9b, {wider} tokens stand for the paper's {paper.TOKENS}."] if wider else []),
        rows_cost(setting, REQUESTS_9B, points_b[-1]),
        judged(points_a, "speedup", lambda at: f"lengths {at['paper_lengths']}"),
        judged(points_b, "gain", lambda at: f"lengths {at['paper_lengths']}"),
    )
    return Finding(setting.facts(), panels, (*notes(setting), *own))


def _lengths(setting: Setting, say: Say, count: int, longest: Sequence[int], instances: bool) -> Iterator[Point]:
    """One point for each upper bound of the lengths, which are uniform(128, bound) in the paper's tokens."""
    arrivals = Arrival(setting.seconds(INTERVAL_9)).times(count, setting.rng("arrivals"))
    for number, upper in enumerate(longest):
        say(f"lengths {SHORTEST_9}-{upper}, {count} requests")
        law, rng = Uniform(setting.length(SHORTEST_9), setting.length(upper)), setting.rng("lengths")
        lengths = [law.draw(rng) for _ in range(count)]
        raced = _race(setting, arrivals, lengths, first=number, instances=instances, unshuffled=True)
        on, off = raced["fusion"], raced["unshuffled"]
        measured: dict[str, Value] = {
            **_speedup(setting, arrivals, raced, lengths),
            "unshuffled_s": off.latency_s,
            "unshuffled_rounds_s": off.rounds_s,
            "gain": off.latency_s / on.latency_s,
            "idle_tokens": on.idle_tokens,
            "unshuffled_idle_tokens": off.idle_tokens,
            "unshuffled_idle_share": off.idle_share,
            "num_moves": on.num_moves,
            "moved_mib": on.moved_tokens * setting.bench.token_bytes / MIB,
            "moving_ms": None if setting.virtual else on.moving_s * 1e3,
        }
        at: dict[str, Value] = {
            "paper_lengths": f"{SHORTEST_9}-{upper}",
            "lengths": f"{law.low}-{law.high}",
            "requests": count,
        }
        told = (
            {"speedup": paper.SPEEDUP_9A} if instances else {"gain": paper.GAIN_9B if upper == max(longest) else None}
        )
        yield Point(at, measured, told)


def _tokens_9b(conditions: Conditions) -> int | None:
    """What stands for the paper's 512 tokens in Fig. 9b, where it is not what does in 9a."""
    return TOKENS_9B.get(conditions.scale) if conditions.tokens is None else None


def overlapped_portion(interval_s: float) -> float:
    """Equation 1: how much of a request overlaps with the next one, `r_p`, in the paper's seconds.

    >>> f"{overlapped_portion(0.5):.1%}"
    '84.1%'
    """
    return max(0.0, (paper.ALONE_S - interval_s) / (paper.ALONE_S + interval_s))


def _race(
    setting: Setting,
    arrivals: Sequence[float],
    lengths: Sequence[int] = (),
    batch: int = 1,
    first: int = 0,
    instances: bool = True,
    unshuffled: bool = False,
) -> dict[str, Outcome]:
    """The same requests through fusion and, where told so, through instances and fusion without shuffle."""
    requests = setting.requests(arrivals, lengths, batch)
    contenders = {"fusion": partial(setting.fusion, requests)}
    if unshuffled:
        contenders["unshuffled"] = partial(setting.fusion, requests, shuffle=False)
    if instances:
        contenders["instances"] = partial(setting.instances, requests)
    return race(contenders, setting.conditions.rounds, first)


def _speedup(
    setting: Setting, arrivals: Sequence[float], raced: Mapping[str, Outcome], lengths: Sequence[int] = ()
) -> dict[str, Value]:
    """Overall latencies, and how many times as fast as instances fusion is.

    `limit` is how many times it would be if every request, from its arrival on, took as long as it does alone.
    """
    fused, separate = raced["fusion"], raced.get("instances")
    found: dict[str, Value] = {"fusion_s": fused.latency_s, "fusion_rounds_s": fused.rounds_s}
    if separate is None:
        return found
    alone = [setting.alone_s * length / setting.tokens for length in lengths] or [setting.alone_s] * len(arrivals)
    least_s = max(map(sum, zip(arrivals, alone, strict=True))) - arrivals[0]
    return {
        **found,
        "instances_s": separate.latency_s,
        "instances_rounds_s": separate.rounds_s,
        "speedup": separate.latency_s / fused.latency_s,
        "limit": separate.latency_s / least_s,
    }


def _experiment(
    figure: str, shows: str, drawing: Drawing, tokens: Mapping[str, int], crowds: Sequence[tuple[int, float]]
) -> Experiment:
    """A row of the registry.

    Args:
        tokens: of one request, by scale.
        crowds: as `Setting` takes them.
    """

    def prepare(conditions: Conditions) -> Run:
        setting = Setting(conditions, tokens[conditions.scale], crowds)
        if tokens is TOKENS_9 and (wider := _tokens_9b(conditions)):
            Setting(conditions, wider, crowds[1:])  # whose answers must fit too

        def run(say: Say) -> Finding:
            setting.start(say)
            return drawing(setting, say)

        return run

    return Experiment(f"flover-fig{figure}", "Flover", f"Fig. {figure}", shows, prepare)


EXPERIMENTS: tuple[Experiment, ...] = (
    _experiment(
        "7",
        "2 to 8 requests at constant intervals: the speed-up over concurrent instances",
        fig7,
        {"quick": 16, "cpu": 128, "paper": paper.TOKENS},
        [(max(REQUESTS_7["paper"]) * max(BATCHES_7["paper"]), 1.0)],
    ),
    _experiment(
        "8",
        "32 requests as a Poisson process: their overlap, the iterations, the speed-up over instances",
        fig8,
        {"quick": 16, "cpu": 64, "paper": paper.TOKENS},
        [(REQUESTS_8, 1.0)],
    ),
    _experiment(
        "9",
        "answers of random lengths: the memory shuffle on and off, and the speed-up over instances",
        fig9,
        TOKENS_9,
        [
            (count, max(longest["paper"]) / paper.TOKENS)
            for count, longest in ((REQUESTS_9A, LONGEST_9A), (REQUESTS_9B, LONGEST_9B))
        ],
    ),
)

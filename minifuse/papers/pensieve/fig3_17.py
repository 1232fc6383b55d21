"""Pensieve's Figure 3.17 (section 3.6.6): attention of few query tokens over KV in blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log
from statistics import linear_regression, median
from typing import Any

from minifuse.attention.stage import KERNEL_DTYPES
from minifuse.core.errors import MachineError, UsageError
from minifuse.execute.timing import time_in_turns
from minifuse.io.parsing import one_of
from minifuse.model.device import free_bytes
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.papers.contest import HALF, half_precision, text_model
from minifuse.papers.experiment import Conditions, Plot, Point, Say, Values
from minifuse.papers.page import Drawn, spec, tables
from minifuse.papers.verdict import LOWER, MORE, by_rate

# The paper's number of requests, its query tokens per request, and its bars as multiples of the ideal's time.
BATCH, QUERIES = 32, 8
PAPER: Values = {"ours": "<1", "copied": ">1", "rounds": ">1"}

MOST_QUERIES = 256
COPIES = 5  # of the KV in memory: one in blocks, two contiguous ones, and as much again for their padding


@dataclass(frozen=True, slots=True)
class _Scale:
    """What a scale measures.

    `pasts` are the past KV-tokens of each request. `rounds` is the default number of rounds.
    """

    model: str
    pasts: tuple[int, ...]
    uneven: tuple[int, ...]
    queries_at: int  # the past KV-tokens at which the number of query tokens is varied
    rounds: int


SCALES = {
    "quick": _Scale("small", (64, 256), (128,), 128, 5),
    "cpu": _Scale("medium", (128, 256, 512, 1024, 2048, 4096), (256, 1024), 1024, 7),
    "paper": _Scale("opt-13b", (256, 512, 1024, 2048, 4096, 8192, 16384), (1024, 4096), 4096, 20),
}


class Setting:
    """Measures points on this machine, with the attention heads of a model.

    Raises:
        UsageError: these conditions cannot run here.
        MachineError: the scale is `paper`, and there is no GPU.
    """

    def __init__(self, conditions: Conditions) -> None:
        import torch

        gpu = torch.cuda.is_available() and conditions.scale != "cpu"
        if conditions.scale == "paper" and not gpu:
            raise MachineError(
                "--scale is paper and there is no CUDA device, which the paper's contexts need: give --scale cpu or "
                "quick, or run this where there is a GPU."
            )
        self.conditions = conditions
        self.scale = scale = SCALES[conditions.scale]
        self.source = text_model(conditions, scale.model)
        self.device = "cuda" if gpu else "cpu"
        self.dtype = conditions.dtype
        if self.dtype == "auto":
            self.dtype = HALF if gpu else half_precision()
        self.tokens = conditions.tokens or QUERIES
        self.rounds = conditions.rounds or scale.rounds
        if self.tokens > MOST_QUERIES:
            raise UsageError(
                f"--tokens is {self.tokens}, the query tokens of a request, each of which is a round of one of the "
                f"contenders: give at most {MOST_QUERIES}."
            )
        if gpu and self.dtype not in KERNEL_DTYPES:
            raise UsageError(
                f"--dtype is {self.dtype} and there is a GPU, whose kernels compute in {one_of(KERNEL_DTYPES)}: give "
                "one of these, or --scale cpu."
            )
        config = self.source.config
        longest = max(scale.pasts) + 2 * self.tokens
        needed = COPIES * BATCH * longest * 2 * config.kv_size * DTYPE_BYTES[self.dtype]
        free = free_bytes(self.device)
        if free is not None and needed > free:
            raise UsageError(
                f"The KV of {BATCH} contexts of {longest} tokens with {config.num_kv_heads} KV heads of "
                f"{config.head_dim} in {self.dtype} takes {needed / 1e9:.1f} GB, contiguous copies included, and "
                f"{free / 1e9:.1f} GB are free on {self.device}: give a --model with less KV, a shorter --dtype or a "
                "smaller --scale."
            )

    def start(self, say: Say) -> None:
        """Do nothing: each point makes its own batch."""

    def notes(self) -> tuple[str, ...]:
        return ()

    def contest(self, tokens: int, pasts: Sequence[int]) -> Values:
        """Time all contenders on one batch; request i has `tokens` queries after `pasts[i]` tokens."""
        import torch

        from minifuse.papers.pensieve.kernels import contenders
        from minifuse.papers.pensieve.scene import Scene

        config, device = self.source.config, torch.device(self.device)
        heads = config.num_heads, config.num_kv_heads, config.head_dim
        scene = Scene.drawn(tokens, pasts, heads, getattr(torch, self.dtype), device, self.conditions.seed)
        four, fused = contenders(scene)
        taken = time_in_turns({name: contender.run for name, contender in four.items()}, self.rounds, self.device)
        middle = {name: median(seconds) for name, seconds in taken.items()}
        measured: Values = {"fused": fused}
        for name, contender in four.items():
            measured[f"{name}_ms"] = middle[name] * 1e3
            measured[f"{name}_ms_rounds"] = tuple(seconds * 1e3 for seconds in taken[name])
            if name != "ideal":
                measured[f"{name}_index_ms"] = contender.index_s * 1e3
                measured[name] = middle[name] / middle["ideal"]
                pairs = zip(taken[name], taken["ideal"], strict=True)
                measured[f"{name}_rounds"] = tuple(seconds / ideal_s for seconds, ideal_s in pairs)
        return measured

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        config = self.source.config
        return {
            "scale": self.conditions.scale,
            "model": self.source.name,
            "num_heads": config.num_heads,
            "num_kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "num_layers": config.num_layers,
            "dtype": self.dtype,
            "device": self.device,
            "clock": "real",
            "batch": BATCH,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "seed": self.conditions.seed,
            "paper_batch": BATCH,
            "paper_tokens": QUERIES,
        }


@spec(
    "Pensieve",
    "3.17",
    "attention of 8 query tokens over past KV in blocks, against copying it out, rounds and contiguous KV",
    Setting,
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure equal contexts, as in the paper; then uneven ones and other numbers of queries."""
    scale, tokens = setting.scale, setting.tokens
    titles = (
        f"Fig. 3.17: {BATCH} requests of {tokens} query tokens",
        "Not in the paper: uneven contexts of the same mean",
        f"Not in the paper: other numbers of query tokens, {scale.queries_at:,} past tokens",
    )
    plots = [Plot(say, title, columns) for title, columns in zip(titles, tables("pensieve/fig3_17"), strict=True)]
    equal, uneven, varied = plots
    counts = (tokens // 2, tokens, 2 * tokens)
    say.expect(len(scale.pasts) + len(scale.uneven) + len(counts))
    for past in scale.pasts:
        say(f"{past} past tokens")
        equal.add({"past_tokens": past}, setting.contest(tokens, [past] * BATCH), PAPER)
    for mean in scale.uneven:
        pasts = spread(mean, BATCH, setting.conditions.seed)
        shortest, longest = min(pasts), max(pasts)
        say(f"{shortest} to {longest} past tokens")
        at = {"past_tokens": mean, "shortest": shortest, "longest": longest}
        uneven.add(at, setting.contest(tokens, pasts))
    for count in counts:
        say(f"{count} query tokens")
        at = {"past_tokens": scale.queries_at, "tokens": count}
        varied.add(at, setting.contest(count, [scale.queries_at] * BATCH))
    extra_ms = [point.measured["copied_ms"] - point.measured["ideal_ms"] for point in equal.points]
    rounds_ms = [point.measured["rounds_ms"] for point in varied.points]
    copied = slope(list(zip(scale.pasts, extra_ms, strict=True)))
    rounds = slope(list(zip(counts, rounds_ms, strict=True)))
    fused = dict.fromkeys(f'"{point.measured["fused"]}"' for plot in plots for point in plot.points)
    return Drawn(
        [plot.panel for plot in plots],
        {"copied_exponent": copied, "rounds_exponent": rounds},
        config=setting.source.config,
        gpu=setting.device == "cuda",
        ways=" or ".join(fused),
        copied=_power(copied),
        rounds=_power(rounds),
        order=order(equal.points),
    )


def _power(exponent: float | None) -> str:
    return "(too few points to tell)" if exponent is None else f"{exponent:.2f}"


def spread(mean: int, count: int, seed: int) -> list[int]:
    """Draw lengths from a quarter to seven quarters of `mean`, in pairs with this mean.

    >>> sum(spread(100, 32, 0))
    3200
    """
    rng = random.Random(f"pensieve lengths {seed}")
    off = [rng.randint(0, 3 * mean // 4) for _ in range(count // 2)]
    lengths = [*(mean - n for n in off), *(mean + n for n in off)]
    rng.shuffle(lengths)
    return lengths


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the exponent of the best-fitting power law; None for fewer than two points.

    >>> slope([(1, 3.0), (2, 6.0), (4, 12.0)])  # proportional
    1.0
    """
    positive = [(log(x), log(y)) for x, y in points if y > 0]
    if len({x for x, _ in positive}) < 2:
        return None
    return linear_regression(*zip(*positive, strict=True)).slope


def order(points: Sequence[Point]) -> list[str]:
    """Judge each contender's time over the ideal's, in every round."""
    claims = {
        "ours": ("Ours", replace(LOWER, text="slightly better than the ideal")),
        "copied": ("Copying out", replace(MORE, text="significant overhead")),
        "rounds": ("Rounds", replace(MORE, text="significant overhead")),
    }
    return [
        by_rate(
            f"{whose}, time over that of the ideal",
            {float(point.at["past_tokens"]): point.measured[f"{key}_rounds"] for point in points},
            claim,
            by="past tokens",
        )
        for key, (whose, claim) in claims.items()
    ]

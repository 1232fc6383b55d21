"""Pensieve's Figure 3.17 (section 3.6.6): attention of a few query tokens over past KV that lies in blocks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import linear_regression, median
from typing import Any

from minifuse.attention.layouts import KERNEL_DTYPES
from minifuse.errors import MachineError, UsageError
from minifuse.model.device import free_bytes
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.load import resolve_text
from minifuse.parsing import one_of
from minifuse.reproduce.experiment import Column, Conditions, Experiment, Finding, Panel, Point, Run, Say, Value
from minifuse.reproduce.flover_setting import half_precision
from minifuse.reproduce.pensieve_notes import notes

__all__ = ["EXPERIMENTS"]

# The paper's: requests in the batch and query tokens of each; what it says of the bars, in times the ideal's time.
BATCH, QUERIES = 32, 8
PAPER: Mapping[str, Value] = {"ours": "<1", "copied": ">1", "rounds": ">1"}
PAPER_MODEL, PAPER_DTYPE = "random:opt-13b", "float16"

MOST_QUERIES = 256
COPIES = 5  # of the KV that there may be at once: in blocks, contiguous for two, and what padding adds to these


@dataclass(frozen=True, slots=True)
class _Scale:
    """`pasts` are the past KV-tokens of each request; `rounds` the fewest by which milliseconds can be measured."""

    model: str
    pasts: tuple[int, ...]
    uneven: tuple[int, ...]
    queries_at: int  # the past KV-tokens at which the number of query tokens is varied
    rounds: int


SCALES = {
    "quick": _Scale("random:small", (64, 256), (128,), 128, 5),
    "cpu": _Scale("random:medium", (128, 256, 512, 1024, 2048, 4096), (256, 1024), 1024, 7),
    "paper": _Scale(PAPER_MODEL, (256, 512, 1024, 2048, 4096, 8192, 16384), (1024, 4096), 4096, 20),
}

PAST = Column("past\ntokens", "at", "past_tokens", "{:,}")
IDEAL = Column("ideal\nms", "measured", "ideal_ms")
INDEX = Column("index\nms", "measured", "ours_index_ms")


def _against(name: str, head: str, paper: bool) -> Iterator[Column]:
    yield Column(f"{head}\nms", "measured", f"{name}_ms")
    if paper:
        yield Column(f"{head}\npaper", "paper", name, "{}x")
    yield Column(f"{head}\nhere", "measured", name, "{:.2f}x")


def _columns(first: Column, paper: bool = False) -> tuple[Column, ...]:
    names = {"ours": "ours", "copied": "copy-out", "rounds": "rounds"}
    return first, IDEAL, *(column for name in names for column in _against(name, names[name], paper)), INDEX


class Setting:
    """The machine, the shape of the heads, and how a point of the figure is measured.

    Raises:
        UsageError: it cannot run here.
    """

    def __init__(self, conditions: Conditions) -> None:
        import torch

        gpu = torch.cuda.is_available() and conditions.scale != "cpu"
        if conditions.scale == "paper" and not gpu:
            raise MachineError(
                "--scale is paper and there is no CUDA device, on which alone the paper's contexts can be measured: "
                "give --scale cpu or quick, or run this where there is a GPU."
            )
        self.conditions = conditions
        self.scale = SCALES[conditions.scale]
        self.source = resolve_text(conditions.model or self.scale.model)
        self.device = "cuda" if gpu else "cpu"
        self.dtype = conditions.dtype
        if self.dtype == "auto":
            self.dtype = PAPER_DTYPE if gpu else half_precision()
        self.tokens = conditions.tokens or QUERIES
        self.rounds = max(conditions.rounds, self.scale.rounds)
        self._check()

    def _check(self) -> None:
        if self.tokens > MOST_QUERIES:
            raise UsageError(
                f"--tokens is {self.tokens}, the query tokens of a request, each of which is a round of one of the "
                f"contenders: give at most {MOST_QUERIES}."
            )
        if self.device == "cuda" and self.dtype not in KERNEL_DTYPES:
            raise UsageError(
                f"--dtype is {self.dtype} and there is a GPU, whose kernels compute in {one_of(KERNEL_DTYPES)}: give "
                "one of these, or --scale cpu."
            )
        config = self.source.config
        longest = max(self.scale.pasts) + 2 * self.tokens
        needed = COPIES * BATCH * longest * 2 * config.kv_size * DTYPE_BYTES[self.dtype]
        free = free_bytes(self.device)
        if free is not None and needed > free:
            raise UsageError(
                f"The KV of {BATCH} contexts of {longest} tokens with {config.num_kv_heads} KV heads of "
                f"{config.head_dim} in {self.dtype} takes {needed / 1e9:.1f} GB, contiguous copies included, and "
                f"{free / 1e9:.1f} GB are free on {self.device}: give a --model with less KV, a shorter --dtype or a "
                "smaller --scale."
            )

    def point(self, at: Mapping[str, Value], tokens: int, pasts: Sequence[int], paper: bool = False) -> Point:
        """All contenders on one batch, each of whose requests has `tokens` queries after so many past tokens."""
        import torch

        from minifuse.reproduce.pensieve_contenders import contenders
        from minifuse.reproduce.pensieve_scene import Scene, take_turns

        config, device = self.source.config, torch.device(self.device)
        heads = config.num_heads, config.num_kv_heads, config.head_dim
        scene = Scene.drawn(tokens, pasts, heads, getattr(torch, self.dtype), device, self.conditions.seed)
        four, fused = contenders(scene)
        taken = take_turns({name: contender.run for name, contender in four.items()}, self.rounds, device)
        middle = {name: median(seconds) for name, seconds in taken.items()}
        measured: dict[str, Value] = {"fused": fused}
        for name, contender in four.items():
            measured[f"{name}_ms"] = middle[name] * 1e3
            measured[f"{name}_rounds_ms"] = tuple(seconds * 1e3 for seconds in taken[name])
            if name != "ideal":
                measured[f"{name}_index_ms"] = contender.index_s * 1e3
                measured[name] = middle[name] / middle["ideal"]
        return Point(at, measured, PAPER if paper else {})

    def facts(self) -> dict[str, Any]:
        """The conditions of everything that was measured, as plain values."""
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


def fig317(setting: Setting, say: Say) -> Finding:
    """The paper's equal contexts; uneven ones, and other numbers of query tokens, which the paper does not show."""
    scale, tokens = setting.scale, setting.tokens
    equal, uneven, varied = [], [], []
    for past in scale.pasts:
        say(f"{past} past tokens")
        equal.append(setting.point({"past_tokens": past}, tokens, [past] * BATCH, paper=True))
    for mean in scale.uneven:
        pasts = spread(mean, BATCH, setting.conditions.seed)
        say(f"{min(pasts)} to {max(pasts)} past tokens")
        at: dict[str, Value] = {"past_tokens": mean, "shortest": min(pasts), "longest": max(pasts)}
        uneven.append(setting.point(at, tokens, pasts))
    for count in (tokens // 2, tokens, 2 * tokens):
        say(f"{count} query tokens")
        at = {"past_tokens": scale.queries_at, "tokens": count}
        varied.append(setting.point(at, count, [scale.queries_at] * BATCH))
    panels = (
        Panel(f"Fig. 3.17: {BATCH} requests of {tokens} query tokens", _columns(PAST, paper=True), tuple(equal)),
        Panel("Not in the paper: uneven contexts of the same mean", _columns(PAST), tuple(uneven)),
        Panel(
            f"Not in the paper: other numbers of query tokens, {scale.queries_at:,} past tokens",
            _columns(Column("query\ntokens", "at", "tokens", "{}")),
            tuple(varied),
        ),
    )
    slopes = {
        "copied": slope([(p.at["past_tokens"], _extra(p)) for p in equal]),
        "rounds": slope([(p.at["tokens"], p.measured["rounds_ms"]) for p in varied]),
    }
    facts = {**setting.facts(), "copied_exponent": slopes["copied"], "rounds_exponent": slopes["rounds"]}
    return Finding(facts, panels, notes(facts, slopes, equal, (*uneven, *varied)))


def _extra(point: Point) -> float:
    """Milliseconds that copying adds to the ideal."""
    copied, ideal = point.measured["copied_ms"], point.measured["ideal_ms"]
    assert isinstance(copied, float)
    assert isinstance(ideal, float)
    return copied - ideal


def spread(mean: int, count: int, seed: int) -> list[int]:
    """Lengths between a quarter and seven quarters of `mean`, in pairs about it, so that theirs is the same.

    >>> sum(spread(100, 32, 0))
    3200
    """
    rng = random.Random(f"pensieve lengths {seed}")
    off = [rng.randint(0, 3 * mean // 4) for _ in range(count // 2)]
    lengths = [*(mean - n for n in off), *(mean + n for n in off)]
    rng.shuffle(lengths)
    return lengths


def slope(points: Sequence[tuple[Any, Any]]) -> float | None:
    """The exponent p of the power law y = c x^p that fits best; None without two points to tell.

    >>> slope([(1, 3.0), (2, 6.0), (4, 12.0)])  # proportional
    1.0
    """
    positive = [(log(x), log(y)) for x, y in points if y > 0]
    if len({x for x, _ in positive}) < 2:
        return None
    return linear_regression(*zip(*positive, strict=True)).slope


def prepare(conditions: Conditions) -> Run:
    """Refuse what cannot run here, and return what runs the rest."""
    setting = Setting(conditions)
    return lambda say: fig317(setting, say)


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        "pensieve-fig3.17",
        "Pensieve",
        "Fig. 3.17",
        "attention of 8 query tokens over past KV in blocks, against copying it out, rounds and contiguous KV",
        prepare,
    ),
)

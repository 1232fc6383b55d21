"""Pensieve's Figure 3.4 (section 3.3.2): attention of a chunk by its context, against the rest of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import correlation, linear_regression, median
from typing import Any, Literal

from minifuse.core.errors import UsageError
from minifuse.memory.tiered.profile import powers_of_two
from minifuse.model.text.load import load_weights, resolve_text
from minifuse.reproduce.experiment import Column, Conditions, Experiment, Finding, Panel, Point, Run, Say, Value
from minifuse.reproduce.machine import half_precision
from minifuse.reproduce.verdict import spread
from minifuse.simulate.cost import Roofline, hardware

CHUNK = 32  # tokens, the thesis'
LINEAR = 0.98  # the part of the variance that a straight line explains, from which on growth is called linear


@dataclass(frozen=True, slots=True)
class _Scale:
    model: str
    clock: Literal["real", "virtual"]
    longest: int  # context
    rounds: int  # the fewest
    machine: str = "cpu"  # that virtual time simulates


SCALES = {
    "quick": _Scale("random:small", "real", 512, 3),
    "cpu": _Scale("random:medium", "real", 2048, 15),
    "paper": _Scale("random:opt-13b", "virtual", 16384, 1, "a100-80g"),  # the longest text of the thesis
}


@dataclass(frozen=True, slots=True)
class Line:
    """The straight line through attention by context that fits best, relative to the rest of a layer.

    >>> Line.of([32, 64, 128], [0.6, 1.0, 1.8])  # 0.2 + context / 80
    Line(start=0.2, slope=0.0125, explained=1.0)
    """

    start: float
    slope: float
    explained: float  # part of the variance

    @classmethod
    def of(cls, contexts: Sequence[int], attention: Sequence[float]) -> Line:
        slope, start = linear_regression(contexts, attention)
        return cls(start, slope, correlation(contexts, attention) ** 2)

    @property
    def equal_at(self) -> float | None:
        """The context at which attention takes as long as the rest; None: it does not grow."""
        return (1 - self.start) / self.slope if self.slope > 0 else None


class Setting:
    """A model on one machine.

    Raises:
        UsageError: its context is shorter than two chunks.
    """

    def __init__(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self.scale = scale = SCALES[conditions.scale]
        self.source = resolve_text(conditions.model or scale.model)
        self.rounds = max(conditions.rounds, scale.rounds)
        self.virtual = scale.clock == "virtual"
        self.dtype = conditions.dtype
        if self.dtype == "auto":
            self.dtype = "float16" if self.virtual else half_precision()
        context = self.source.config.max_context
        self.contexts = powers_of_two(CHUNK, scale.longest if self.virtual else min(scale.longest, context))
        if len(self.contexts) < 3:
            raise UsageError(
                f"The context of {self.source.name} is {context}, and three powers of two from {CHUNK} on are needed: "
                f"give a --model with a context of at least {4 * CHUNK}."
            )

    def points(self) -> list[Point]:
        """A point for each context; seconds are those of one layer."""
        layers = self.source.config.num_layers
        if self.virtual:
            cost = Roofline(self.source.config, self.dtype, hardware(self.scale.machine))
            profile = cost.recomputation(CHUNK, self.contexts)
            return [
                _point(c, (a / layers,), (profile.other / layers,))
                for c, a in zip(self.contexts, profile.attention, strict=True)
            ]
        from minifuse.simulate.calibration import measure

        model = load_weights(self.source, self.dtype, seed=self.conditions.seed)
        measured = measure(model, self.contexts, CHUNK, self.rounds)
        rest = tuple(seconds / layers for seconds in measured.other_s)
        return [_point(c, tuple(s / layers for s in taken), rest) for c, taken in measured.attention_s.items()]

    def facts(self) -> dict[str, Any]:
        """The conditions of all measurements, as plain values."""
        return {
            "scale": self.conditions.scale,
            "model": self.source.name,
            "num_layers": self.source.config.num_layers,
            "dtype": self.dtype,
            "device": None if self.virtual else "cpu",
            "clock": self.scale.clock,
            "hardware": self.scale.machine if self.virtual else None,
            "chunk": CHUNK,
            "rounds": self.rounds,
            "seed": self.conditions.seed,
        }


def _point(context: int, attention_s: tuple[float, ...], rest_s: tuple[float, ...]) -> Point:
    measured: dict[str, Value] = {
        "attention_ms": median(attention_s) * 1e3,
        "attention_rounds_ms": tuple(seconds * 1e3 for seconds in attention_s),
        "rest_ms": median(rest_s) * 1e3,
        "rest_rounds_ms": tuple(seconds * 1e3 for seconds in rest_s),
        "share": median(attention_s) / median(rest_s),
    }
    if len(attention_s) > 1:
        measured["spread"] = spread([seconds * 1e3 for seconds in attention_s])
    return Point({"context": context}, measured, {})


CONTEXT = Column("context\ntokens", "at", "context", "{:,}")
ATTENTION = Column("attention\nms", "measured", "attention_ms")
SPREAD = Column("attention\nspread", "measured", "spread", "{}")
REST = Column("the rest\nms", "measured", "rest_ms")
SHARE = Column("attention by\nthe rest", "measured", "share", "{:.3f}x")


def draw(setting: Setting, say: Say) -> Finding:
    """All contexts, which take turns."""
    say.expect(1)
    say(f"contexts of {setting.contexts[0]} to {setting.contexts[-1]:,} tokens")
    points = setting.points()
    columns = (CONTEXT, ATTENTION, *([] if setting.virtual else [SPREAD]), REST, SHARE)
    panel = Panel(f"Fig. 3.4: attention of {CHUNK} tokens in one layer", columns, tuple(points))
    say.keep(panel)
    line = line_of(points)
    facts = {"slope": line.slope, "start": line.start, "explained": line.explained, "equal_at": line.equal_at}
    return Finding({**setting.facts(), **facts}, (panel,), notes(setting, line))


def line_of(points: Sequence[Point]) -> Line:
    contexts = [point.at["context"] for point in points]
    shares = [point.measured["share"] for point in points]
    return Line.of(contexts, shares)  # type: ignore[arg-type]


def notes(setting: Setting, line: Line) -> tuple[str, ...]:
    """How it was measured, what the thesis says, and what was found."""
    if setting.virtual:
        how = (
            f"virtual time of an {setting.scale.machine} by its data sheet: what a context adds to the time of a chunk "
            "there can only be linear. A chunk by itself waits for the weights of a layer; in a large batch it "
            "would take less time, and attention more of it"
        )
    else:
        how = (
            f"real time, medians of {setting.rounds} rounds, in which the contexts take turns. Attention is that of "
            "the stage paged, over blocks in a random order, as minifuse calibrate measures it"
        )
    linear = line.explained >= LINEAR
    verdict = "As in the thesis, attention grows" if linear else "Not as in the thesis: attention does not grow"
    return (
        f"{setting.source.name} in {setting.dtype}, {how}.",
        "The thesis' text gives no numbers, only that the cost of attention grows linearly with the context. The rest "
        "is everything else in a layer, for the same tokens.",
        f"{verdict} linearly: a straight line explains {line.explained:.1%} of the variance (linear: {LINEAR:.0%} or "
        "more).",
        "On that line attention takes as long as the rest at no context."
        if line.equal_at is None
        else f"On that line attention takes as long as the rest at {line.equal_at:,.0f} tokens of context"
        f"{'' if line.equal_at <= setting.contexts[-1] else ', longer than any here'}.",
    )


def prepare(conditions: Conditions) -> Run:
    return partial(draw, Setting(conditions))


EXPERIMENT = Experiment(
    "Pensieve",
    "3.4",
    "attention of a chunk of 32 tokens by its context, against the rest of a layer",
    prepare,
    takes=frozenset({"model"}),
)

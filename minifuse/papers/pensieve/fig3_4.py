"""Pensieve's Figure 3.4 (section 3.3.2): a chunk's attention, against the rest of a layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import correlation, linear_regression, median
from typing import Any

from minifuse.core.errors import UsageError
from minifuse.memory.tiered.profile import powers_of_two
from minifuse.model.text.load import TextSource
from minifuse.papers.contest import Bench, text_model
from minifuse.papers.experiment import Conditions, Panel, Point, Say
from minifuse.papers.page import Drawn, spec, tables
from minifuse.simulate.cost import Roofline, hardware

CHUNK = 32  # tokens, the thesis'
LINEAR = 0.98  # growth is called linear if a straight line explains this part of the variance


@dataclass(frozen=True, slots=True)
class _Scale:
    model: str
    longest: int  # the longest context
    rounds: int  # unless the conditions name another number
    machine: str = "cpu"  # the machine that virtual time simulates


SCALES = {
    "quick": _Scale("small", 512, 3),
    "cpu": _Scale("medium", 2048, 15),
    "paper": _Scale("opt-13b", 16384, 1, "a100-80g"),  # the longest text of the thesis
}


@dataclass(frozen=True, slots=True)
class Line:
    """The straight line that best fits attention by context.

    Attention is given as a multiple of the rest of a layer.

    >>> line = Line.of([32, 64, 128], [0.6, 1.0, 1.8])  # 0.2 + context / 80
    >>> round(line.start, 9), round(line.slope, 9), round(line.explained, 9)
    (0.2, 0.0125, 1.0)
    """

    start: float
    slope: float
    explained: float  # the part of the variance that it explains

    @classmethod
    def of(cls, contexts: Sequence[int], attention: Sequence[float]) -> Line:
        slope, start = linear_regression(contexts, attention)
        return cls(start, slope, correlation(contexts, attention) ** 2)

    @property
    def equal_at(self) -> float | None:
        """The context at which attention equals the rest; None if attention does not grow."""
        return (1 - self.start) / self.slope if self.slope > 0 else None


class Setting(Bench[TextSource]):
    """Measures the layers of a model on one machine.

    Raises:
        UsageError: the model's context is shorter than four chunks.
    """

    def __init__(self, conditions: Conditions) -> None:
        self.scale = scale = SCALES[conditions.scale]
        super().__init__(conditions, text_model(conditions, scale.model), scale.machine, drawn=False)
        self.rounds = conditions.rounds or scale.rounds
        context = self.source.config.max_context
        self.contexts = powers_of_two(CHUNK, scale.longest if self.virtual else min(scale.longest, context))
        if len(self.contexts) < 3:
            raise UsageError(
                f"The context of {self.source.name} is {context}, and three powers of two from {CHUNK} on are needed: "
                f"give a --model with a context of at least {4 * CHUNK}."
            )

    def points(self) -> dict[int, Point]:
        """Measure a point for each context, in seconds of one layer."""
        layers = self.source.config.num_layers
        attention_s: dict[int, tuple[float, ...]]
        rest_s: tuple[float, ...]
        if self.virtual:
            cost = Roofline(self.source.config, self.dtype, hardware(self.scale.machine))
            profile = cost.recomputation(CHUNK, self.contexts)
            attention_s = {c: (s,) for c, s in zip(self.contexts, profile.attention, strict=True)}
            rest_s = (profile.other,)
        else:
            from minifuse.simulate.chunk_cost import measure

            self.load(share=False)
            attention_s, rest_s, _ = measure(self.model, self.contexts, CHUNK, self.rounds)
        rest_s = tuple(seconds / layers for seconds in rest_s)
        return {c: _point(c, tuple(seconds / layers for seconds in taken), rest_s) for c, taken in attention_s.items()}

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        return self.facts(
            self.scale.machine,
            num_layers=self.source.config.num_layers,
            device=None if self.virtual else "cpu",
            chunk=CHUNK,
        )


def _point(context: int, attention_s: tuple[float, ...], rest_s: tuple[float, ...]) -> Point:
    attention_ms, rest_ms = (tuple(seconds * 1e3 for seconds in taken) for taken in (attention_s, rest_s))
    measured = {
        "attention_ms": median(attention_s) * 1e3,
        "attention_ms_rounds": attention_ms,
        "rest_ms": median(rest_s) * 1e3,
        "rest_ms_rounds": rest_ms,
        "share": median(attention_s) / median(rest_s),
    }
    return Point({"context": context}, measured, {})


def by_round(points: Mapping[int, Point]) -> list[Line]:
    """Return the line of each round's times of attention."""
    rounds = zip(*(point.measured["attention_ms_rounds"] for point in points.values()), strict=True)
    return [Line.of(list(points), of_round) for of_round in rounds]


@spec(
    "Pensieve",
    "3.4",
    "attention of a chunk of 32 tokens by its context, against the rest of a layer",
    Setting,
    takes=("model",),
    threshold=LINEAR,
)
def figure(setting: Setting, say: Say) -> Drawn:
    """Measure all contexts, in turns."""
    say.expect(1)
    say(f"contexts of {setting.contexts[0]} to {setting.contexts[-1]:,} tokens")
    points = setting.points()
    (columns,) = tables("pensieve/fig3_4")
    panel = Panel(f"Fig. 3.4: attention of {CHUNK} tokens in one layer", columns, tuple(points.values()))
    say.keep(panel)
    line = Line.of(list(points), [point.measured["share"] for point in points.values()])
    explained = [one.explained for one in by_round(points)]
    return Drawn(
        (panel,),
        {"slope": line.slope, "start": line.start, "explained": line.explained, "equal_at": line.equal_at},
        line=line,
        linear=[one >= LINEAR for one in explained],
        several=len(explained) > 1,
        least=min(explained),
        most=max(explained),
        never=line.equal_at is None,
        longer=(line.equal_at or 0.0) > setting.contexts[-1],
    )

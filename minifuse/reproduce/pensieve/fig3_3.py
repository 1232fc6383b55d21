"""Pensieve's Figure 3.3 (section 3.3.1): prefill behind a history, computed again or kept, against generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Literal

from minifuse.core.errors import UsageError
from minifuse.core.report import StepReport
from minifuse.core.request import Request
from minifuse.execute.cores import share_cores
from minifuse.model.text.load import load_weights, resolve_text
from minifuse.reproduce.contest import serve_all
from minifuse.reproduce.experiment import Column, Conditions, Experiment, Finding, Panel, Point, Run, Say, Value
from minifuse.reproduce.machine import half_precision
from minifuse.reproduce.verdict import spread
from minifuse.serve.resolve import resolve_run
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Hardware, hardware
from minifuse.simulate.timing import take_turns
from minifuse.techniques import technique

BATCH, PROMPT, STEPS = 32, 32, 200  # the thesis': requests, new tokens of each, steps of generation
CHUNK = 32
REACHED = (1.0, 0.75, 0.5, 0.25)  # parts of the arithmetic rate of the data sheet


@dataclass(frozen=True, slots=True)
class _Scale:
    model: str
    clock: Literal["real", "virtual"]
    batch: int
    histories: tuple[int, ...]
    rounds: int = 1  # the fewest
    machine: str = "cpu"  # that virtual time simulates


SCALES = {
    "quick": _Scale("random:small", "real", 4, (0, 64)),
    "cpu": _Scale("random:small", "real", 8, (0, 64, 128, 256, 512, 1024), rounds=5),
    "paper": _Scale("random:opt-13b", "virtual", BATCH, (0, 256, 512, 768, 1024, 1280, 1536, 1792), machine="a100-80g"),
}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a batch: from its first iteration to the first token of each request, and from there to the end."""

    prefill_s: float
    generation_s: float


def times_of(reports: Sequence[StepReport], names: Sequence[str]) -> Times:
    """The times of the requests `names`, all of which got their first token in one iteration.

    >>> # prompts from 0 s to 3 s, then two iterations of 1 s: Times(3.0, 2.0)
    """
    wanted = {*names}
    own = [report for report in reports if any(work.sequence in wanted for work in report.plan.work)]
    first = next(report for report in own if wanted <= report.tokens.keys())
    return Times(first.ended_s - own[0].started_s, own[-1].ended_s - first.ended_s)


class Setting:
    """A batch of requests, each behind a history, on one machine.

    Raises:
        UsageError: the texts are longer than the model's context, or do not fit the machine.
    """

    def __init__(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self.scale = scale = SCALES[conditions.scale]
        self.rounds = max(conditions.rounds, scale.rounds)
        self.steps = conditions.tokens or STEPS
        self.source = resolve_text(conditions.model or scale.model)
        dtype = conditions.dtype
        if dtype == "auto":
            dtype = "float16" if scale.clock == "virtual" else half_precision()
        self.settings = Settings(dtype=dtype, clock=scale.clock, hardware=scale.machine, seed=conditions.seed)
        self.model: Any = None
        longest, context = max(scale.histories), self.source.config.max_context
        if self._length(longest) > context:
            raise UsageError(
                f"{self.steps} steps of generation behind {longest} tokens of history and {PROMPT} new ones make a "
                f"text of {self._length(longest)} tokens, and the context of {self.source.name} is {context}: give "
                "fewer --tokens, a --model with a longer context, or a smaller --scale."
            )
        resolve_run(technique("pensieve"), self.source, self._settings(longest))

    def _length(self, history: int) -> int:
        """Tokens of a text in the end: the prefill produces the first token, before all steps of generation."""
        return history + PROMPT + 1 + self.steps

    def _settings(self, history: int) -> Settings:
        """Memory for the batch and no more, and no bound on the tokens of an iteration: all prompts are in one."""
        capacity = self.scale.batch * -(-self._length(history) // CHUNK) * CHUNK
        options = {
            "memory.chunk": CHUNK,
            "memory.host": 0,
            "memory.ahead": 0,
            "memory.reserve": 0,
            "batching.max_batch": self.scale.batch,
            "batching.max_tokens": capacity,
        }
        kv_memory = capacity * self.source.slot_bytes(self.settings.dtype)
        return replace(self.settings, kv_memory=kv_memory, stage_options=options)

    @property
    def virtual(self) -> bool:
        return self.settings.clock == "virtual"

    def start(self, say: Say) -> None:
        """Load the weights, and warm up."""
        if not self.virtual:
            say("warming up")
            share_cores(self.source.config.num_parameters, None)
            self.model = load_weights(self.source, self.settings.dtype, seed=self.conditions.seed)
            self.run(max(self.scale.histories[:2]), kept=True)

    def requests(self, history: int, kept: bool) -> list[Request]:
        """The batch; with `kept`, each request behind a turn of its conversation that has computed its history.

        The last token of such a history is that turn's answer, whose KV is computed with the new tokens.
        """
        batch, vocab = range(self.scale.batch), self.source.config.vocab_size
        texts = [tuple((7 * i + 3 * t) % vocab for t in range(history + PROMPT)) for i in batch]
        ask = partial(Request, max_new_tokens=self.steps + 1, ignore_eos=True)
        if not kept or not history:
            return [ask(f"r{i}", texts[i]) for i in batch]
        told = [Request(f"h{i}", texts[i][1:history], 1, ignore_eos=True, conversation=f"c{i}") for i in batch]
        return told + [ask(f"r{i}", texts[i][history:], conversation=f"c{i}", after=f"h{i}") for i in batch]

    def run(self, history: int, kept: bool, machine: Hardware | None = None) -> Times:
        """Serve the batch, on the machine of the scale unless another is given."""
        settings = replace(self._settings(history), hardware=machine or self.settings.hardware)
        requests = self.requests(history, kept)
        _, reports = serve_all("pensieve", self.source, settings, self.model, requests, collect=not self.virtual)
        return times_of(reports, [request.id for request in requests[-self.scale.batch :]])

    def point(self, history: int, first: int) -> Point:
        """The history computed again and kept, in turns; medians of the rounds."""
        again, kept = partial(self.run, history, False), partial(self.run, history, True)
        runs = take_turns({"again": again, "kept": kept}, self.rounds, first)
        values: dict[str, Value] = {}
        for name, times in runs.items():
            prefills, generations = [one.prefill_s for one in times], [one.generation_s for one in times]
            values |= {f"{name}_s": median(prefills), f"{name}_rounds_s": tuple(prefills)}
            values |= {f"{name}_generation_s": median(generations), f"{name}_generation_rounds_s": tuple(generations)}
            if self.rounds > 1:
                values |= {f"{name}_spread": spread(prefills), f"{name}_generation_spread": spread(generations)}
        values["generation_s"] = values["again_generation_s"]
        values["share"] = _seconds(values, "again_s") / _seconds(values, "generation_s")
        return Point({"history": history}, values, {})

    def facts(self) -> dict[str, Any]:
        """The conditions of all measurements, as plain values."""
        return {
            "scale": self.conditions.scale,
            "model": self.source.name,
            "dtype": self.settings.dtype,
            "clock": self.settings.clock,
            "hardware": self.scale.machine if self.virtual else None,
            "batch": self.scale.batch,
            "prompt_tokens": PROMPT,
            "steps": self.steps,
            "rounds": self.rounds,
            "seed": self.conditions.seed,
            "paper_batch": BATCH,
            "paper_steps": STEPS,
        }


def _seconds(values: Mapping[str, Value], key: str) -> float:
    value = values[key]
    assert isinstance(value, float)
    return value


HISTORY = Column("history\ntokens", "at", "history", "{:,}")
SHARE = Column("again by\ngeneration", "measured", "share", "{:.2f}x")
COLUMNS = (
    HISTORY,
    Column("prefill s\nagain", "measured", "again_s"),
    Column("prefill s\nkept", "measured", "kept_s"),
    Column("generation\ns", "measured", "generation_s"),
    SHARE,
)
SPREADS = (
    HISTORY,
    Column("prefill s\nagain", "measured", "again_s"),
    Column("again\nspread", "measured", "again_spread", "{}"),
    Column("prefill s\nkept", "measured", "kept_s"),
    Column("kept\nspread", "measured", "kept_spread", "{}"),
    Column("generation\ns", "measured", "generation_s"),
    Column("generation\nspread", "measured", "again_generation_spread", "{}"),
    SHARE,
)


def draw(setting: Setting, say: Say) -> Finding:
    """Every history; in virtual time, also machines that reach a part of their arithmetic rate."""
    setting.start(say)
    histories = setting.scale.histories
    say.expect(len(histories) + len(REACHED) * setting.virtual)
    points: list[Point] = []
    for number, history in enumerate(histories):
        say(f"{history} tokens of history")
        points.append(setting.point(history, first=number))
        say.keep(_panel(setting, points))
    panels = [_panel(setting, points)]
    reached = []
    for part in REACHED if setting.virtual else ():
        say(f"{part:.0%} of the arithmetic rate")
        reached.append(_reached(setting, part))
    if reached:
        columns = (
            Column("arithmetic\nreached", "at", "part", "{:.0%}"),
            Column("outgrown at\nhistory", "measured", "crossing", "{:,.0f}"),
            SHARE,
        )
        panels.append(Panel("Not in the paper: by the part of the data sheet that is reached", columns, tuple(reached)))
    return Finding({**setting.facts(), "crossing": crossing(points)}, tuple(panels), notes(setting, points))


def _panel(setting: Setting, points: Sequence[Point]) -> Panel:
    title = f"Fig. 3.3: {setting.scale.batch} requests, {PROMPT} new tokens, {setting.steps} steps of generation"
    return Panel(title, SPREADS if setting.rounds > 1 else COLUMNS, tuple(points))


def _reached(setting: Setting, part: float) -> Point:
    """The same on a machine of less arithmetic, with the longest history and where generation is outgrown."""
    machine = hardware(setting.settings.hardware)
    slower = replace(machine, flops=part * machine.flops)
    points = []
    for history in setting.scale.histories:
        times = setting.run(history, False, slower)
        values = {"again_s": times.prefill_s, "generation_s": times.generation_s}
        points.append(Point({"history": history}, values, {}))
    last = points[-1].measured
    share = _seconds(last, "again_s") / _seconds(last, "generation_s")
    return Point({"part": part}, {"crossing": crossing(points), "share": share}, {})


def crossing(points: Sequence[Point]) -> float | None:
    """The history from which on the prefill that computes it again takes longer than generation; None: none that was
    measured. Between two points both times are taken to be straight lines.
    """
    before: tuple[float, float] | None = None
    for point in points:
        history = point.at["history"]
        assert isinstance(history, int)
        ahead = _seconds(point.measured, "again_s") - _seconds(point.measured, "generation_s")
        if ahead > 0:
            if before is None:
                return float(history)
            return before[0] + (history - before[0]) * before[1] / (before[1] - ahead)
        before = history, ahead
    return None


def notes(setting: Setting, points: Sequence[Point]) -> tuple[str, ...]:
    """How it was measured, what the thesis says, and what was found."""
    rounds = setting.rounds
    where = f"virtual time of an {setting.scale.machine} by its data sheet" if setting.virtual else "real time"
    last = points[-1]
    longest, share = last.at["history"], _seconds(last.measured, "share")
    at = crossing(points)
    if at is None:
        outgrown = (
            f"Not as in the thesis: up to {longest:,} tokens of history no prefill takes longer than generation; with "
            f"{longest:,} it takes {share:.2f} times as long"
        )
    else:
        outgrown = f"As in the thesis: from about {at:,.0f} tokens of history on, prefill takes longer than generation"
    grown = [
        _seconds(last.measured, f"{name}_s") / _seconds(points[0].measured, f"{name}_s") for name in ("again", "kept")
    ]
    return (
        f"{setting.source.name} in {setting.settings.dtype}, {where}"
        f"{f', medians of {rounds} rounds' if rounds > 1 else ''}. The technique is pensieve for both: again, requests "
        f"whose prompts are the history and {PROMPT} new tokens; kept, turns of {PROMPT} new tokens of conversations "
        "whose KV is on the device. All prompts are computed in one iteration.",
        "The thesis' text gives no numbers, only that recomputing the history makes prefill \"soon outgrow the "
        f'generation phase" with a batch of {BATCH} and {STEPS} steps.',
        f"{outgrown}.",
        f"From no history to {longest:,} tokens, prefill becomes {grown[0]:.1f} times as long if the history is "
        f"computed again, and {grown[1]:.1f} times if it is kept.",
        *(
            [
                "Prefill waits for arithmetic and generation for memory. What part of either the thesis' machine "
                "reached is not known: the last table lowers the first alone. - stands where "
                "generation is not outgrown."
            ]
            if setting.virtual
            else []
        ),
    )


def prepare(conditions: Conditions) -> Run:
    return partial(draw, Setting(conditions))


EXPERIMENT = Experiment(
    "Pensieve",
    "3.3",
    "prefill behind a history, computed again or kept, against 200 steps of generation",
    prepare,
)

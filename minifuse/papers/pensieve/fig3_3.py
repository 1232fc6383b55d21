"""Pensieve's Figure 3.3 (section 3.3.1): prefill behind a recomputed or kept history, against generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from minifuse.core.errors import UsageError
from minifuse.core.report import StepReport
from minifuse.core.request import Request
from minifuse.model.text.load import TextSource
from minifuse.papers.contest import Bench, text_model
from minifuse.papers.curve import Served, run_rounds
from minifuse.papers.experiment import Conditions, Panel, Plot, Point, Say, Values
from minifuse.papers.page import Drawn, notes, spec, tables
from minifuse.serve.resolve import resolve_run
from minifuse.simulate.cost import Hardware, hardware
from minifuse.techniques import technique

BATCH, PROMPT, STEPS = 32, 32, 200  # the thesis' requests, new tokens per request, and steps of generation
CHUNK = 32
REACHED = (1.0, 0.75, 0.5, 0.25)  # parts of the data sheet's arithmetic rate


@dataclass(frozen=True, slots=True)
class _Scale:
    models: Mapping[str, Sequence[int]]  # the lengths of the histories, by model
    batch: int
    machine: str = "cpu"  # the machine that virtual time simulates


# The thesis names no model. These are its smallest ones; of the histories of OPT-13B, 32 longer ones exceed the memory.
OF_THESIS = {"opt-13b": range(0, 2048, 256), "llama-2-13b-gqa-16k": (*range(0, 2048, 256), 2048, 3072, 4096)}
SCALES = {
    "quick": _Scale({"small": (0, 64)}, 4),
    "cpu": _Scale({"small": (0, 64, 128, 256, 512, 1024)}, 8),
    "paper": _Scale(OF_THESIS, BATCH, machine="a100-80g"),
}


def times_of(reports: Sequence[StepReport], names: Sequence[str]) -> Served:
    """Return the seconds of prefill and of generation of the requests `names`.

    Prefill lasts from their first iteration to the end of the one that produces all their first tokens. Then generation
    begins.

    >>> # prompts from 0 s to 3 s, then two iterations of 1 s: {"prefill": 3.0, "generation": 2.0}
    """
    wanted = {*names}
    own = [report for report in reports if any(work.sequence in wanted for work in report.plan.work)]
    first = next(report for report in own if wanted <= report.tokens.keys())
    return {"prefill": first.ended_s - own[0].started_s, "generation": own[-1].ended_s - first.ended_s}


class Setting(Bench[TextSource]):
    """Serves a batch of requests, each behind a history, on one machine.

    Raises:
        UsageError: the texts do not fit the model's context, or the machine's memory.
    """

    def __init__(self, conditions: Conditions, model: str) -> None:
        self.scale = scale = SCALES[conditions.scale]
        super().__init__(conditions, text_model(conditions, model), scale.machine, drawn=False)
        self.steps = conditions.tokens or STEPS
        self.histories = scale.models[model]
        longest, context = max(self.histories), self.source.config.max_context
        if self._length(longest) > context:
            raise UsageError(
                f"{self.steps} steps of generation behind {longest} tokens of history and {PROMPT} new ones make a "
                f"text of {self._length(longest)} tokens, and the context of {self.source.name} is {context}: give "
                "fewer --tokens, a --model with a longer context, or a smaller --scale."
            )
        tokens, options = self._memory(longest)
        settings = replace(self.settings, kv_memory=tokens * self.slot_bytes, stage_options=options)
        resolve_run(technique("pensieve"), self.source, settings)

    def _length(self, history: int) -> int:
        """Return the tokens of a text at its end, including the one that prefill produces."""
        return history + PROMPT + 1 + self.steps

    def _memory(self, history: int) -> tuple[int, dict[str, Any]]:
        """Return KV tokens and options that fit the batch, with all prompts in one iteration."""
        capacity = self.scale.batch * -(-self._length(history) // CHUNK) * CHUNK
        return capacity, {
            "memory.chunk": CHUNK,
            "memory.host": 0,
            "memory.ahead": 0,
            "memory.reserve": 0,
            "batching.max_batch": self.scale.batch,
            "batching.max_tokens": capacity,
        }

    def requests(self, history: int, kept: bool) -> list[Request]:
        """Make the requests of the batch; if `kept`, after turns that compute the histories.

        The last token of a kept history is the answer of its turn; its KV is computed with the new tokens.
        """
        batch, vocab = range(self.scale.batch), self.source.config.vocab_size
        texts = [tuple((7 * i + 3 * t) % vocab for t in range(history + PROMPT)) for i in batch]
        ask = partial(Request, max_new_tokens=self.steps + 1, ignore_eos=True)
        if not kept or not history:
            return [ask(f"r{i}", texts[i]) for i in batch]
        told = [Request(f"h{i}", texts[i][1:history], 1, ignore_eos=True, conversation=f"c{i}") for i in batch]
        return told + [ask(f"r{i}", texts[i][history:], conversation=f"c{i}", after=f"h{i}") for i in batch]

    def run(self, history: int, kept: bool, machine: Hardware | None = None) -> Served:
        """Serve the batch on `machine`, or by default on the scale's machine."""
        reports: list[StepReport] = []
        requests = self.requests(history, kept)
        self.serve("pensieve", requests, *self._memory(history), on_step=reports.append, machine=machine)
        return times_of(reports, [request.id for request in requests[-self.scale.batch :]])

    def contest(self, history: int, first: int) -> Values:
        """Measure a recomputed and a kept history in turns; return medians of the rounds."""

        def serving(kept: bool) -> Callable[[int], Served]:
            return lambda number: self.run(history, kept)

        runs = {"again": serving(kept=False), "kept": serving(kept=True)}
        values: Values = {}
        for name, outcome in run_rounds(runs, self.rounds, first).items():
            for part, seconds in (("", "prefill"), ("_generation", "generation")):
                rounds_s = outcome.each(seconds)
                values |= {f"{name}{part}_s": median(rounds_s), f"{name}{part}_s_rounds": rounds_s}
        values["generation_s"] = values["again_generation_s"]
        values["share"] = values["again_s"] / values["generation_s"]
        return values

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        return self.facts(
            self.scale.machine,
            batch=self.scale.batch,
            prompt_tokens=PROMPT,
            steps=self.steps,
            paper_batch=BATCH,
            paper_steps=STEPS,
        )


class Settings(tuple[Setting, ...]):
    """The models of the figure; each has its own panels."""

    def start(self, say: Say) -> None:
        """Do nothing: the first run of each model loads it."""

    def described(self) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values."""
        return {**self[0].described(), "models": [setting.described() for setting in self]}

    def notes(self) -> tuple[str, ...]:
        """Return no notes on the conditions: each model has its own."""
        return ()


def _settings(conditions: Conditions) -> Settings:
    """Return the scale's models; a model of the conditions replaces the first."""
    models = list(SCALES[conditions.scale].models)
    return Settings(Setting(conditions, model) for model in (models[:1] if conditions.model else models))


@spec("Pensieve", "3.3", "prefill behind a history, computed again or kept, against 200 steps of generation", _settings)
def figure(settings: Settings, say: Say) -> Drawn:
    """Measure every history of every model, in virtual time also with slower arithmetic."""
    say.expect(sum(len(setting.histories) + (len(REACHED) if setting.virtual else 1) for setting in settings))
    panels: list[Panel] = []
    models: list[str] = []
    crossings: dict[str, float | None] = {}
    for setting in settings:
        found = _measured(setting, say)
        panels += found
        first, *_, last = found[0].points
        at = crossings[setting.source.name] = crossing(found[0].points)
        models += notes(
            "pensieve/fig3_3_model",
            setting=setting,
            prompt=PROMPT,
            outgrown=[one is not None for one in crossings_of(found[0].points)],
            at=at,
            last=last,
            again=last.measured["again_s"] / first.measured["again_s"],
            kept=last.measured["kept_s"] / first.measured["kept_s"],
        )
    return Drawn(panels, {"crossings": crossings}, models=models, virtual=settings[0].virtual, batch=BATCH, steps=STEPS)


def _measured(setting: Setting, say: Say) -> list[Panel]:
    """Measure one model by history, and in virtual time by the rate of arithmetic."""
    if not setting.virtual:
        say("warming up")
        setting.load()
        setting.run(max(setting.histories[:2]), kept=True)
    name = setting.source.name.removeprefix("random:")
    title = (
        f"Fig. 3.3, {name}: {setting.scale.batch} requests, {PROMPT} new tokens, {setting.steps} steps of generation"
    )
    columns, reached_columns = tables("pensieve/fig3_3")
    plot = Plot(say, title, columns)
    for number, history in enumerate(setting.histories):
        say(f"{name}: {history} tokens of history")
        plot.add({"history": history}, setting.contest(history, first=number))
    if not setting.virtual:
        return [plot.panel]
    title = f"{name}, not in the thesis: by the part of the data sheet that is reached"
    return [plot.panel, Panel(title, reached_columns, tuple(_reached(setting, part, say) for part in REACHED))]


def _reached(setting: Setting, part: float, say: Say) -> Point:
    """Measure recomputed histories on a machine that reaches a part of its arithmetic rate."""
    say(f"{part:.0%} of the arithmetic rate")
    machine = hardware(setting.settings.hardware)
    slower = replace(machine, flops=part * machine.flops)
    points = []
    for history in setting.histories:
        times = setting.run(history, False, slower)
        values = {"again_s": times["prefill"], "generation_s": times["generation"]}
        points.append(Point({"history": history}, values, {}))
    share = points[-1].measured["again_s"] / points[-1].measured["generation_s"]
    return Point({"part": part}, {"crossing": crossing(points), "share": share}, {})


def crossings_of(points: Sequence[Point]) -> list[float | None]:
    """Return the crossing of each round."""
    names = ("again_s", "again_generation_s")
    num_rounds = len(points[0].measured["again_s_rounds"])

    def of_round(point: Point, number: int) -> Point:
        again_s, generation_s = (point.measured[f"{name}_rounds"][number] for name in names)
        return Point(point.at, {"again_s": again_s, "generation_s": generation_s}, {})

    return [crossing([of_round(point, number) for point in points]) for number in range(num_rounds)]


def crossing(points: Sequence[Point]) -> float | None:
    """Return the history from which on prefill takes longer than generation.

    Prefill recomputes the history. Between two points, both times are interpolated linearly. None: prefill never takes
    longer in the measured range.
    """
    before: tuple[float, float] | None = None
    for point in points:
        history = float(point.at["history"])
        ahead: float = point.measured["again_s"] - point.measured["generation_s"]
        if ahead > 0:
            if before is None:
                return history
            last, behind = before
            return last + (history - last) * behind / (behind - ahead)
        before = history, ahead
    return None

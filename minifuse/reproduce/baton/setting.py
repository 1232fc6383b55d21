"""What Baton's experiments share (5.1): scales, the machine, the sets of queries, and the four variants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median_low
from typing import Any, Literal

import minifuse.reproduce.baton.paper as paper
from minifuse.core.errors import UsageError
from minifuse.execute.cores import share_cores
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.text.load import load_weights, resolve_text
from minifuse.model.text.presets import preset
from minifuse.reproduce.baton.course import Course
from minifuse.reproduce.baton.queries import Query, first_set, requests_of, second_set
from minifuse.reproduce.contest import serve_watched
from minifuse.reproduce.experiment import Conditions, Experiment, Finding, Run, Say
from minifuse.reproduce.machine import half_precision
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import hardware
from minifuse.simulate.timing import take_turns
from minifuse.techniques import technique

VARIANTS = ("static", "pd", "baton", "baton-pd")
OTHERS = ("orca", "vllm")  # which re-batching does without rectangles, as they are here
APART = 0.25  # of memory, for prompts that are computed apart
BLOCK = 16  # tokens of vllm's blocks

Which = Literal["first", "second"]


@dataclass(frozen=True, slots=True)
class _Scale:
    """`lengths`: times those of the paper; `queries`: None for as many as the paper has."""

    model: str
    clock: Literal["real", "virtual"]
    lengths: float
    batches: tuple[int, ...]
    queries: int | None = None
    rounds: int = 1  # the fewest


SCALES: dict[Which, dict[str, _Scale]] = {
    "first": {
        "quick": _Scale("small", "real", 1 / 200, (4,), 6),
        "cpu": _Scale("small", "real", 1 / 32, tuple(paper.TABLE_1), rounds=3),
        "paper": _Scale(paper.MODEL, "virtual", 1, tuple(paper.TABLE_1)),
    },
    "second": {
        "quick": _Scale("small", "real", 1 / 16, (2,), 4),
        "cpu": _Scale("small", "real", 1, tuple(paper.TABLE_2), rounds=3),
        "paper": _Scale(paper.MODEL, "virtual", 1, tuple(paper.TABLE_2)),
    },
}


@dataclass(frozen=True, slots=True)
class Served:
    """The run of a contender whose seconds are the median of all rounds, and those of all."""

    course: Course
    rounds_s: tuple[float, ...]

    @classmethod
    def of(cls, courses: Sequence[Course]) -> Served:
        seconds = tuple(course.seconds for course in courses)
        return cls(courses[seconds.index(median_low(seconds))], seconds)

    def over(self, other: Served) -> tuple[float, ...]:
        """How many times as fast as another this is, round by round."""
        return tuple(theirs / ours for ours, theirs in zip(self.rounds_s, other.rounds_s, strict=True))


class Setting:
    """A set of queries and a machine.

    Raises:
        UsageError: the model's context is too short for them, or they do not fit the machine.
    """

    def __init__(self, which: Which, conditions: Conditions) -> None:
        self.which: Which = which
        self.conditions = conditions
        self.scale = scale = SCALES[which][conditions.scale]
        self.source = resolve_text(conditions.model or f"random:{scale.model}")
        dtype = conditions.dtype
        if dtype == "auto":
            dtype = paper.DTYPE if self.virtual else half_precision()
        self.machine = paper.MACHINES[which]
        on = self.machine if self.virtual else "cpu"
        self.settings = Settings(dtype=dtype, clock=scale.clock, hardware=on, seed=conditions.seed)
        self.num_queries = conditions.requests or scale.queries or paper.SIZES[which]
        self.rounds = max(conditions.rounds, scale.rounds)
        self.batches = scale.batches
        self._model: Any = None
        for batch in self.batches:
            self._check(batch)

    @property
    def virtual(self) -> bool:
        return self.scale.clock == "virtual"

    def queries(self, batch: int) -> list[Query]:
        """The set, for a batch of this size: with one of four sequences of the first set are twice as long."""
        draw = first_set if self.which == "first" else second_set
        twice = self.which == "first" and batch == paper.DOUBLED
        return draw(self.num_queries, self.conditions.seed, self.scale.lengths * (1 + twice))

    @property
    def tokens(self) -> int:
        """KV tokens that memory has room for, the same for all: what the paper's machine has beside the weights."""
        model = preset(paper.MODEL)
        left = hardware(self.machine).memory - model.num_parameters * DTYPE_BYTES[paper.DTYPE]
        tokens = int(self.scale.lengths * left / model.kv_bytes_per_token(paper.DTYPE))
        return tokens // BLOCK * BLOCK

    def _check(self, batch: int) -> None:
        longest, context = max(map(sum, self.queries(batch))), self.source.config.max_context
        if longest > context:
            raise UsageError(
                f"Queries have up to {longest:,} tokens at a batch of {batch}, and the context of {self.source.name} "
                f"is {context:,}: give a --model with a longer context, or a smaller --scale."
            )
        if not self.virtual:
            return
        config, dtype = self.source.config, self.settings.dtype
        needed = config.num_parameters * DTYPE_BYTES[dtype] + self.tokens * config.kv_bytes_per_token(dtype)
        if needed > (memory := hardware(self.machine).memory):
            raise UsageError(
                f"{self.source.name} in {dtype} and KV of {self.tokens:,} tokens take {needed / 1e9:.1f} GB, and the "
                f"paper's machine has {memory / 1e9:.0f} GB: give a smaller --model or a shorter --dtype."
            )

    def start(self, say: Say, contenders: Sequence[str]) -> None:
        """Load the model, and warm up."""
        if self.virtual:
            return
        say("warming up")
        share_cores(self.source.config.num_parameters, None)
        self._model = load_weights(self.source, self.settings.dtype, seed=self.conditions.seed)
        batch = max(self.batches)
        for name in contenders:
            self._serve(name, batch, self.queries(batch)[:2])

    def _serve(self, name: str, batch: int, queries: Sequence[Query]) -> Course:
        options: dict[str, Any] = {"batching.max_batch": batch, "memory.rows": batch, "memory.prefill": APART}
        settings = replace(
            self.settings,
            kv_memory=self.tokens * self.source.config.kv_bytes_per_token(self.settings.dtype),
            stage_options={key: value for key, value in options.items() if key in technique(name).option_names},
        )
        course = Course()
        requests = requests_of(queries, self.source.config.vocab_size, self.conditions.seed)
        serve_watched(name, self.source, settings, self._model, requests, course.read, collect=not self.virtual)
        return course

    def race(self, batch: int, contenders: Sequence[str]) -> dict[str, Served]:
        """All contenders on the same queries, in turns."""
        queries = self.queries(batch)
        runs: dict[str, Callable[[], Course]] = {
            name: partial(self._serve, name, batch, queries) for name in contenders
        }
        courses = take_turns(runs, self.rounds, first=self.batches.index(batch))
        return {name: Served.of(found) for name, found in courses.items()}

    def facts(self) -> dict[str, Any]:
        """The conditions of all measurements, as plain values."""
        return {
            "scale": self.conditions.scale,
            "model": self.source.name,
            "dtype": self.settings.dtype,
            "clock": self.settings.clock,
            "hardware": self.machine if self.virtual else None,
            "lengths": self.scale.lengths,
            "queries": self.num_queries,
            "kv_tokens": self.tokens,
            "rounds": self.rounds,
            "seed": self.conditions.seed,
            "paper_model": paper.MODEL,
        }

    def note(self) -> str:
        """What is measured, and on what."""
        kinds = {
            "first": "long prompts with short answers, the reverse, and both short, 1:1:2",
            "second": "short prompts with short answers",
        }
        size = f"{self.num_queries} queries ({kinds[self.which]}), {self.source.name} in {self.settings.dtype}"
        twice = " With a batch of 4 all sequences are twice as long, as in the paper." if self.which == "first" else ""
        same = (
            "All queries come at time 0, in any order, the same for all contenders, which have the same largest batch "
            f"and KV memory for {self.tokens:,} tokens: what the paper's machine has beside the weights, at this "
            f"scale.{twice} A word of the paper is a token here. Rows of baton and baton-pd have a "
            "part of the memory each: a newcomer whose gap would outgrow a row that goes on waits. static computes "
            "every row to the end of its batch, pd none after the last whose request still runs. An insertion copies "
            "KV of its own sequence, and sets the rest of its row to zero."
        )
        if self.virtual:
            return (
                f"{size}, virtual time of an {self.machine} by its data sheet: nothing is fitted. {same} The "
                "prompts of pd and baton-pd are computed between two iterations of the batch, not beside it."
            )
        rounds = f", medians of {self.rounds} interleaved rounds" if self.rounds > 1 else ""
        return f"{size}, real time{rounds}; lengths are {self.scale.lengths:.3g} times the paper's. {same}"


Draw = Callable[[Setting, Say], Finding]


def experiment(which: Which, kind: Literal["fig", "table"], number: str, shows: str, draw: Draw) -> Experiment:
    """The experiment of a table or figure on one of the sets."""

    def prepare(conditions: Conditions) -> Run:
        if conditions.requests is not None and conditions.requests > 10_000:
            raise UsageError(f"--requests is {conditions.requests:,}, of each run of this figure: give at most 10,000.")
        return partial(draw, Setting(which, conditions))

    return Experiment("Baton", number, shows, prepare, frozenset({"model", "requests"}), kind)

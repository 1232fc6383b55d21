"""Contests: contenders serve the same requests on one bench, in turns, and are timed alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any, Generic, TypeVar

from minifuse.core.errors import UsageError
from minifuse.core.report import StepReport
from minifuse.core.request import FinishReason, Request
from minifuse.execute.cores import share_cores
from minifuse.execute.timing import take_turns
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.source import Source
from minifuse.model.text.load import TextSource, resolve_text
from minifuse.papers.experiment import Conditions, Say
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Hardware, hardware
from minifuse.techniques import Technique, technique
from minifuse.trace.log import Event, Trace

S = TypeVar("S", bound=Source)
T = TypeVar("T")
ROUNDS = {"quick": 1, "cpu": 5, "paper": 5}  # by scale: runs of each point
HALF = "float16"  # the half precision of the papers' machines


def half_precision() -> str:
    """Choose bfloat16 if this CPU has tiles for it, else float32."""
    import torch

    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return "bfloat16" if supported is not None and supported() else "float32"


def several(one: Hardware, count: int) -> Hardware:
    """Add up the rates of several GPUs; messages between them are not modelled."""
    return replace(
        one,
        bandwidth=count * one.bandwidth,
        flops=count * one.flops,
        memory=count * one.memory,
        link=None if one.link is None else count * one.link,
        processors=None if one.processors is None else count * one.processors,
    )


def text_model(conditions: Conditions, name: str) -> TextSource:
    """Find the model of the conditions, or else the preset of this name.

    Raises:
        UsageError: there is no such model.
    """
    return resolve_text(conditions.model or f"random:{name}")


def ignore(told: object) -> None:
    """Keep nothing of an iteration, or of an event."""


class Bench(Generic[S]):
    """A model on a machine, which serves the requests of a paper's experiments.

    Args:
        machine: simulated at the paper's scale; time is real at the others.
        virtual_dtype, real_dtype: unless the conditions name another; None: the half precision of this machine.
        drawn: each round draws arrivals or lengths of its own. What is not drawn takes the same virtual time each time.
    """

    model: Any = None  # until `load`

    def __init__(
        self,
        conditions: Conditions,
        source: S,
        machine: str | Hardware,
        *,
        virtual_dtype: str = HALF,
        real_dtype: str | None = None,
        drawn: bool = True,
    ) -> None:
        self.conditions = conditions
        self.virtual = conditions.scale == "paper"
        self.source = source
        self.rounds = conditions.rounds or ROUNDS[conditions.scale]
        if self.virtual and not drawn:
            self.rounds = 1
        dtype = conditions.dtype
        if dtype == "auto":
            dtype = virtual_dtype if self.virtual else real_dtype or half_precision()
        self.settings = Settings(
            dtype=dtype,
            clock="virtual" if self.virtual else "real",
            hardware=machine if self.virtual else "cpu",
            seed=conditions.seed,
        )

    @property
    def dtype(self) -> str:
        return self.settings.dtype

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot: the KV of a token, or the states of a node."""
        return self.source.slot_bytes(self.dtype)

    @property
    def several(self) -> bool:
        """Whether medians of several rounds count."""
        return self.rounds > 1

    def start(self, say: Say) -> None:
        """Prepare the measurements, where there is something to prepare."""

    def notes(self) -> tuple[str, ...]:
        """The conditions in words, where they have notes of their own."""
        return ()

    def load(self, share: bool = True) -> None:
        """Load the weights; virtual time needs none.

        Args:
            share: use the cores that a model of this size is worth.
        """
        if self.virtual:
            return
        if share:
            share_cores(self.source.config.num_parameters, None)
        self.model = self.source.load(self.dtype, seed=self.conditions.seed)

    def check_memory(self, tokens: int, what: str, remedy: str) -> None:
        """Refuse a model that does not fit the simulated machine beside this many KV tokens."""
        if not self.virtual:
            return
        memory = hardware(self.settings.hardware).memory
        needed = self.source.config.num_parameters * DTYPE_BYTES[self.dtype] + tokens * self.slot_bytes
        if needed > memory:
            raise UsageError(
                f"{self.source.name} in {self.dtype} and {what} take {needed / 1e9:.1f} GB, and the paper's machine "
                f"has {memory / 1e9:.0f} GB: give {remedy}."
            )

    def check_requests(self, most: int) -> None:
        """Refuse more requests than a run can have."""
        asked = self.conditions.requests
        if asked is not None and asked > most:
            raise UsageError(f"--requests is {asked:,}, of each run of this figure: give at most {most:,}.")

    def serve(
        self,
        row: str | Technique,
        requests: Sequence[Request],
        slots: int,
        options: Mapping[str, Any],
        *,
        on_step: Callable[[StepReport], None] = ignore,
        into: Callable[[Event], None] | None = None,
        machine: Hardware | None = None,
        slot_bytes: int | None = None,
    ) -> Trace:
        """Serve all requests with a technique and return the trace.

        Args:
            slots: of memory.
            on_step: called with the report of every iteration.
            into: called with every event instead of keeping the trace, as by `build_engine`.
            machine: simulate this one instead.
            slot_bytes: if not the model's.

        Raises:
            UsageError: a request was refused, or the model and its memory do not fit the simulated machine.
            KeyboardInterrupt: Ctrl-C, which `minifuse.serve.run.serve` by itself survives.
        """
        memory = slots * (slot_bytes or self.slot_bytes)
        settings = replace(self.settings, kv_memory=memory, stage_options=options)
        if machine is not None:
            settings = replace(settings, clock="virtual", hardware=machine)
        row = technique(row) if isinstance(row, str) else row
        model = None if settings.clock == "virtual" else self.model
        engine = build_engine(resolve_run(row, self.source, settings), model, into=into)
        if self.conditions.scale == "cpu":
            gc.collect()  # what the last run left is not cleared away during this one
        served = serve(engine, requests, on_step=on_step).whole()
        refused = next((a.why_refused for a in served.answers if a.finish_reason is FinishReason.REFUSED), None)
        if refused is not None:
            raise UsageError(refused)
        return served.trace

    def race(
        self,
        runs: Mapping[str, Callable[[int], T]],
        seconds: Callable[[T], float],
        first: int,
        rounds: int | None = None,
    ) -> dict[str, Raced[T]]:
        """Run every contender in every round, in turns.

        Args:
            runs: called with the number of the round.
            seconds: the duration of a run.
            first: number of the contender that begins.
            rounds: instead of the bench's own number.
        """
        turns = take_turns(runs, rounds or self.rounds, first)
        return {name: Raced.of(found, seconds) for name, found in turns.items()}

    def facts(self, machine: str, **more: Any) -> dict[str, Any]:
        """The conditions of all measurements, as plain values.

        Args:
            machine: the name of what virtual time simulates.
        """
        return {
            "scale": self.conditions.scale,
            "model": self.source.name,
            "dtype": self.dtype,
            "clock": self.settings.clock,
            "hardware": machine if self.virtual else None,
            **more,
            "rounds": self.rounds,
            "seed": self.conditions.seed,
        }


@dataclass(frozen=True, slots=True)
class Raced(Generic[T]):
    """The run of median duration (the shorter of two), and the seconds of all rounds."""

    run: T
    rounds_s: tuple[float, ...]

    @classmethod
    def of(cls, runs: Sequence[T], seconds: Callable[[T], float]) -> Raced[T]:
        rounds_s = tuple(map(seconds, runs))
        return cls(runs[rounds_s.index(median_low(rounds_s))], rounds_s)

    def over(self, other: Raced[T]) -> tuple[float, ...]:
        """How many times as fast as another this is, round by round."""
        return tuple(theirs / ours for ours, theirs in zip(self.rounds_s, other.rounds_s, strict=True))


def known(row: Technique, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that this technique has."""
    names = row.option_names
    return {name: value for name, value in options.items() if name in names}

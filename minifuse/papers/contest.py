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
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.source import Source
from minifuse.model.text.load import load_weights, resolve_text
from minifuse.papers.experiment import Conditions, Say
from minifuse.papers.machine import half_precision
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Hardware, hardware
from minifuse.techniques import Technique, technique
from minifuse.trace.log import Event, Trace

T = TypeVar("T")
HALF = "float16"  # the half precision of the papers' machines


def ignore(told: object) -> None:
    """Keep nothing of an iteration, or of an event."""


def serve_all(
    row: str | Technique,
    source: Source,
    settings: Settings,
    model: Any,
    requests: Sequence[Request],
    *,
    on_step: Callable[[StepReport], None] = ignore,
    into: Callable[[Event], None] | None = None,
    collect: bool = False,
) -> Trace:
    """Serve all requests with a technique, and return the trace.

    Args:
        model: None in virtual time with a transformer, where no weights are needed.
        on_step: is handed the report of every iteration.
        into: is handed every event instead of the trace, as by `build_engine`.
        collect: collect garbage first, so that what the last run left is not cleared away during this one.

    Raises:
        UsageError: a request was refused, or the model and its KV memory do not fit the machine of virtual time.
        KeyboardInterrupt: Ctrl-C, which `minifuse.serve.run.serve` by itself survives.
    """
    row = technique(row) if isinstance(row, str) else row
    engine = build_engine(resolve_run(row, source, settings), model, into=into)
    if collect:
        gc.collect()
    served = serve(engine, requests, on_step=on_step).whole()
    refused = next((a.why_refused for a in served.answers if a.finish_reason is FinishReason.REFUSED), None)
    if refused is not None:
        raise UsageError(refused)
    return served.trace


class Bench:
    """A text model on a machine, which serves the requests of a paper's experiments.

    Args:
        model: of the scale, unless the conditions name another.
        machine: what virtual time simulates, at the paper's scale; time is real at the others.
        real_dtype: in real time, unless the conditions name another; None: the half precision that suits this machine.
        rounds: the fewest.

    Raises:
        UsageError: there is no such model.
    """

    def __init__(
        self,
        conditions: Conditions,
        model: str,
        machine: str | Hardware,
        *,
        real_dtype: str | None = None,
        rounds: int = 1,
    ) -> None:
        self.conditions = conditions
        self.virtual = conditions.scale == "paper"
        self.source = resolve_text(conditions.model or f"random:{model}")
        self.rounds = max(conditions.rounds, rounds)
        dtype = conditions.dtype
        if dtype == "auto":
            dtype = HALF if self.virtual else real_dtype or half_precision()
        self.settings = Settings(
            dtype=dtype,
            clock="virtual" if self.virtual else "real",
            hardware=machine if self.virtual else "cpu",
            seed=conditions.seed,
        )
        self.model: Any = None

    @property
    def dtype(self) -> str:
        return self.settings.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's KV."""
        return self.source.config.kv_bytes_per_token(self.dtype)

    @property
    def several(self) -> bool:
        """Whether medians of several rounds count."""
        return self.rounds > 1

    def start(self, say: Say) -> None:
        """Prepare the measurements, where there is something to prepare."""

    def load(self, share: bool = True) -> None:
        """Load the weights; virtual time needs none.

        Args:
            share: use the cores that a model of this size is worth.
        """
        if self.virtual:
            return
        if share:
            share_cores(self.source.config.num_parameters, None)
        self.model = load_weights(self.source, self.dtype, seed=self.conditions.seed)

    def check_memory(self, tokens: int, what: str, remedy: str) -> None:
        """Refuse a model that does not fit the simulated machine beside so many KV tokens."""
        if not self.virtual:
            return
        memory = hardware(self.settings.hardware).memory
        needed = self.source.config.num_parameters * DTYPE_BYTES[self.dtype] + tokens * self.token_bytes
        if needed > memory:
            raise UsageError(
                f"{self.source.name} in {self.dtype} and {what} take {needed / 1e9:.1f} GB, and the paper's machine "
                f"has {memory / 1e9:.0f} GB: give {remedy}."
            )

    def serve(
        self,
        row: str | Technique,
        requests: Sequence[Request],
        tokens: int,
        options: Mapping[str, Any],
        *,
        on_step: Callable[[StepReport], None] = ignore,
        into: Callable[[Event], None] | None = None,
        machine: Hardware | None = None,
    ) -> None:
        """Serve requests with a technique, these options, and memory for KV of so many tokens.

        Args:
            on_step, into: as of `serve_all`.
            machine: simulate this one instead.
        """
        settings = replace(self.settings, kv_memory=tokens * self.token_bytes, stage_options=options)
        if machine is not None:
            settings = replace(settings, clock="virtual", hardware=machine)
        model = None if settings.clock == "virtual" else self.model
        collect = not self.virtual
        serve_all(row, self.source, settings, model, requests, on_step=on_step, into=into, collect=collect)

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
        }


@dataclass(frozen=True, slots=True)
class Raced(Generic[T]):
    """The run of median duration, and the seconds of all rounds.

    Of an even number of rounds it is the lower median.

    Of an even number of rounds it is the lower median.
    """

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

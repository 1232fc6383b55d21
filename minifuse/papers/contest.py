"""Serves the same requests with several contenders, in turns on one machine, and times them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
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
from minifuse.simulate.cost import Hardware, Machine
from minifuse.techniques import Technique, technique
from minifuse.trace.log import Event, Trace

S = TypeVar("S", bound=Source)
T = TypeVar("T")
ROUNDS = {"quick": 1, "cpu": 5, "paper": 5}  # by scale: how often each contender runs each point
HALF = "float16"  # the half precision of the papers' machines


def half_precision() -> str:
    """Choose bfloat16 if this CPU has AMX tiles for it, else float32."""
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
    """Find the model that the conditions name, otherwise the random preset `name`.

    Raises:
        UsageError: there is no such model.
    """
    return resolve_text(conditions.model or f"random:{name}")


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend the garbage collector.

    Simulated runs and graphs of cells have nearly no cycles; searching their objects takes a third of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def ignore(told: object) -> None:
    """Do nothing: a callback for reports or events that are not needed."""


class Bench(Generic[S]):
    """Serves the requests of a paper's experiments with one model on one machine.

    Args:
        machine: the machine to simulate at the scale `paper`. At other scales, the computer at hand runs in real time.
        virtual_dtype: the dtype in virtual time, if the conditions name none.
        real_dtype: the dtype in real time, if the conditions name none; None: `half_precision`.
        drawn: whether each round has random arrivals or lengths of its own. If not, virtual time needs only one round.
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
        """Whether medians of several rounds are reported."""
        return self.rounds > 1

    def start(self, say: Say) -> None:
        """Prepare the measurements; by default, do nothing."""

    def notes(self) -> tuple[str, ...]:
        """Return notes on the conditions; by default, none."""
        return ()

    def load(self, share: bool = True) -> None:
        """Load the weights, which virtual time does not need.

        Args:
            share: whether to limit the threads to those that a model of this size can use.
        """
        if self.virtual:
            return
        if share:
            share_cores(self.source.config.num_parameters, None)
        self.model = self.source.load(self.dtype, seed=self.conditions.seed)

    def check_memory(self, tokens: int, what: str, remedy: str) -> None:
        """Raise `UsageError` if the model and `tokens` KV tokens do not fit the simulated machine.

        Args:
            what: names these tokens in the message.
            remedy: the options that the message advises to give.
        """
        if not self.virtual:
            return
        memory = self.settings.memory
        needed = self.source.config.num_parameters * DTYPE_BYTES[self.dtype] + tokens * self.slot_bytes
        if needed > memory:
            raise UsageError(
                f"{self.source.name} in {self.dtype} and {what} take {needed / 1e9:.1f} GB, and the paper's machine "
                f"has {memory / 1e9:.0f} GB: give {remedy}."
            )

    def check_requests(self, most: int) -> None:
        """Raise `UsageError` if the user asked for more than `most` requests."""
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
        machine: Machine | None = None,
        slot_bytes: int | None = None,
    ) -> Trace:
        """Serve all requests with a technique and return the trace.

        Args:
            slots: the number of memory slots.
            on_step: called with the report of every iteration.
            into: called with every event; the trace then keeps none (see `build_engine`).
            machine: a machine to simulate instead of the bench's.
            slot_bytes: bytes of a slot, if not `slot_bytes` of the bench.

        Raises:
            UsageError: a request was refused, or the model and its memory do not fit the simulated machine.
            KeyboardInterrupt: Ctrl-C interrupted the run.
        """
        memory = slots * (slot_bytes or self.slot_bytes)
        settings = replace(self.settings, kv_memory=memory, stage_options=options)
        if machine is not None:
            settings = replace(settings, clock="virtual", hardware=machine)
        row = technique(row) if isinstance(row, str) else row
        model = None if settings.clock == "virtual" else self.model
        engine = build_engine(resolve_run(row, self.source, settings), model, into=into)
        if self.conditions.scale == "cpu":
            gc.collect()  # so that this run spends no time on the garbage of the last one
        with uncollected() if self.virtual else nullcontext():
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
    ) -> dict[str, Raced[T]]:
        """Run every contender in every round, in turns.

        Args:
            runs: the contenders by name; each is called with the number of the round.
            seconds: returns the duration of a run.
            first: the number of the contender that begins the first round.
        """
        turns = take_turns(runs, self.rounds, first)
        return {name: Raced.of(found, seconds) for name, found in turns.items()}

    def facts(self, machine: str, **more: Any) -> dict[str, Any]:
        """Return the conditions of all measurements, as plain values.

        Args:
            machine: the name of the machine that virtual time simulates.
            more: further conditions.
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
    """A contender's runs, one for each round, and their seconds."""

    runs: tuple[T, ...]
    rounds_s: tuple[float, ...]

    @classmethod
    def of(cls, runs: Sequence[T], seconds: Callable[[T], float]) -> Raced[T]:
        return cls(tuple(runs), tuple(map(seconds, runs)))

    @property
    def middle(self) -> int:
        """The number of the round of median duration, or of the shorter middle one."""
        return self.rounds_s.index(median_low(self.rounds_s))

    @property
    def run(self) -> T:
        """The run of the middle round."""
        return self.runs[self.middle]

    def over(self, other: Raced[T]) -> tuple[float, ...]:
        """Return how many times as fast as `other` this contender is, in each round."""
        return tuple(theirs / ours for ours, theirs in zip(self.rounds_s, other.rounds_s, strict=True))


def known(row: Technique, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that this technique has, and leave out the others."""
    names = row.option_names
    return {name: value for name, value in options.items() if name in names}

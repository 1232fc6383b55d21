"""Plays one run of a technique, as `minifuse run` does, and keeps its results."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from minifuse.core.errors import UsageError
from minifuse.core.request import Request
from minifuse.execute.cores import load_on_free_cores
from minifuse.io.parsing import MANY, check_word, one_of, parse_int, parse_size
from minifuse.model.choices import NUMERICS
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.source import Source, resolve
from minifuse.serve.assembly import choose
from minifuse.serve.build import build_engine
from minifuse.serve.engine import ServingEngine
from minifuse.serve.refusals import Refusals
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import Served, serve
from minifuse.serve.settings import CLOCKS, Settings, simulated
from minifuse.simulate.cost import Hardware
from minifuse.stages import KINDS
from minifuse.techniques import mix_for, technique
from minifuse.trace.ended import Metrics
from minifuse.trace.history import History
from minifuse.trace.log import Event
from minifuse.trace.metrics import compute_metrics
from minifuse.trace.reading import parse_trace


@dataclass(frozen=True)
class Played:
    """A run that has ended.

    `events` are the lines of its trace, as `minifuse run --trace` writes them (docs/traces.md, "A trace's lines").
    `served` has the answers with their times; `served.rows()` and `served.to_frame()` return them as a table.
    """

    name: str  # its label, or else the name of the technique or of the mix of stages
    events: list[Event]
    engine: ServingEngine
    source: Source
    served: Served

    @cached_property
    def history(self) -> History:
        """Return the iterations in order of time, and the story of every request."""
        return History.of(self.events, self.name)

    @cached_property
    def metrics(self) -> Metrics:
        """Return the metrics that the command line prints, see `minifuse.trace.metrics`; times in seconds."""
        return compute_metrics(self.events)

    @property
    def of_cells(self) -> bool:
        """Return whether the model is made of cells: it has nodes and states, not KV."""
        return self.source.kind == "cells"

    @property
    def capacity(self) -> int:
        """Return the slots of the device's memory: tokens of KV, or states of cells."""
        return int(self.events[0]["kv_capacity_tokens"])

    @property
    def tokens(self) -> dict[str, list[int]]:
        """Return the new tokens of requests that were not refused, stop tokens included."""
        return {one.request.id: list(one.token_ids) for one in self.served.answers if one.why_refused is None}

    @property
    def answers(self) -> dict[str, str]:
        """Return `tokens` as texts, without blanks around them.

        Raises:
            ModelError: the model has no tokenizer.
        """
        decode = self.source.tokenizer().decode
        return {name: decode(tokens).strip() for name, tokens in self.tokens.items()}

    @property
    def refused(self) -> dict[str, str]:
        """Return why requests were refused, by id."""
        return {one.request.id: one.why_refused for one in self.served.answers if one.why_refused is not None}

    @cached_property
    def steps(self) -> list[int]:
        """Return the numbers of the iterations, in order of time."""
        return [one.step for one in self.history.iterations if one.work]

    def __repr__(self) -> str:
        refused = f", {len(self.refused)} refused" if self.refused else ""
        return (
            f"<{self.name}: {len(self.tokens)} requests in {len(self.steps)} iterations, "
            f"{self.history.last_s * 1e3:.4g} ms{refused}>"
        )


def play(
    name: str,
    requests: Iterable[Request],
    *,
    label: str | None = None,
    kv_memory: str | None = "192KiB",
    clock: Literal["real", "virtual"] = "virtual",
    hardware: str | Hardware | None = None,
    max_batch: int | None = None,
    batching: str | None = None,
    memory: str | None = None,
    attention: str | None = None,
    model: str = "tiny",
    dtype: str = "float32",
    numerics: Literal["fast", "reference"] = "fast",
    tensor_parallel: int = 1,
    seed: int = 0,
    why: bool = False,
    **options: Any,
) -> Played:
    """Serve requests with a technique, as `minifuse run --technique NAME` does.

        played = play("vllm", asks("sort 7 2 5"), max_batch=2, memory__block_size=4)

    Every argument means the same as the option of that name of `minifuse run`, and errors have the same messages.
    Time is virtual by default: then a run is the same each time, on any machine. In virtual time a model without a
    checkpoint has no weights: every token is the placeholder -1, and cells are not computed. Refused requests are
    reported on stderr, as by `minifuse run`; the others are served.

    Args:
        name: the technique, see `minifuse list`.
        label: the name of the run in pictures, messages and on the replay page; None: the technique's name.
        kv_memory: KV memory of the device; 192KiB hold 128 tokens of tiny; None: the command line's default, 64MiB or
            more.
        hardware: the machine that virtual time simulates, by name or as `Hardware`; None: cpu.
        max_batch: the most requests served at once, for every stage that has such a limit.
        batching, memory, attention: the name of a stage that replaces the technique's own.
        tensor_parallel: processes that share the model; in virtual time, simulated machines.
        seed: the seed of random weights; each request has its own seed for sampling.
        why: give a reason for each waiting request in every iteration.
        options: options of stages, `memory__block_size=4` for `--set memory.block_size=4`; True is on, False is off.

    Raises:
        UsageError: an argument is wrong, or contradicts another, or an element of `requests` is not a request.
        LawBroken: a stage has a defect.
    """
    if label is not None and not (isinstance(label, str) and label.strip()):
        raise UsageError(f"label is {label!r:.60}: give a text, as the name of the run.")
    check_word(dtype, "--dtype", DTYPE_BYTES)
    check_word(clock, "--clock", CLOCKS)
    check_word(numerics, "--numerics", NUMERICS)
    settings = Settings(
        dtype=dtype,
        device="auto",
        kv_memory=None if kv_memory is None else parse_size(str(kv_memory), "--kv-memory"),
        clock=clock,
        hardware=simulated(hardware, clock),
        seed=parse_int(str(seed), "--seed", 0, MANY),
        tensor_parallel=parse_int(str(tensor_parallel), "--tensor-parallel", 1, MANY),
        numerics=numerics,
        why=why,
    )
    batch = None if max_batch is None else parse_int(str(max_batch), "--max-batch", 1, MANY)
    source = resolve(model)
    row = mix_for(technique(name), source.kind, batching=batching, memory=memory, attention=attention)
    choices = choose(row, dict(_option(key, value) for key, value in options.items()), batch)
    resolved = resolve_run(choices, source, settings)
    if resolved.placeholders:
        weights = resolved.outline
    else:
        weights = load_on_free_cores(source.config.num_parameters, resolved.load)
    lines = io.StringIO()
    engine = build_engine(resolved, weights, lines)
    served = serve(engine, requests).whole()
    _tell_refused(served)
    called = label or row.name
    return Played(called, parse_trace(lines.getvalue(), called).events, engine, source, served)


def _option(name: str, value: object) -> tuple[str, str]:
    """Return a stage's option and its value, as they are typed after --set."""
    kind, between, option = name.partition("__")
    if not between or kind not in KINDS:
        stages = one_of(f"{kind}__" for kind in KINDS)
        raise UsageError(f"play has no argument {name!r}: name an option of a stage with {stages} before it.")
    text = {True: "on", False: "off", None: "none"}[value] if value is None or isinstance(value, bool) else value
    return f"{kind}.{option}", str(text)


def _tell_refused(served: Served) -> None:
    """Print refused requests on stderr: some of each cause in full, and a count."""
    refusals = Refusals([one.request for one in served.answers])
    told = [refusals.sentence(one.request, one.why_refused) for one in served.answers if one.why_refused is not None]
    for sentence in (*told, *refusals.rest()):
        if sentence is not None:
            print(f"error: {sentence}", file=sys.stderr)

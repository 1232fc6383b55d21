"""Runs a student's stage in the engine, under the laws and with counted costs."""

from __future__ import annotations

import io
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.core.request import Request
from minifuse.labs.judge import Unmet, Work
from minifuse.model.source import resolve
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.simulate.cost import Hardware
from minifuse.techniques import Technique
from minifuse.testing.search import Search, compared_laws
from minifuse.testing.texts.scripted import SCRIPTED
from minifuse.trace.ended import Metrics
from minifuse.trace.log import Event
from minifuse.trace.metrics import compute_metrics
from minifuse.trace.reading import parse_trace

MODEL = "random:llama-2-7b"  # only its shape is used, for the time of iterations and the bytes of KV


class OfStudent:
    """Base of a stage that calls a student's file for its decisions, through `self.work`.

    @register
    class Students(OfStudent, QueuePolicy): ...

    Students.work = work
    """

    work: ClassVar[Work]


def keeps_the_laws(
    work: Work, row: Technique, stage: type[OfStudent], scenarios: int = 30, *, compared: bool = True
) -> None:
    """Check the laws on a technique with the student's stage, on random scenarios.

    Args:
        compared: also check the laws that compare runs, which takes several times as long.

    Raises:
        LawBroken: a law is broken; the error shows the smallest scenario found. Its cause may be a `StudentFault`.
    """
    stage.work = work
    Search(SCRIPTED, row, compared_laws(SCRIPTED) if compared else ()).run(scenarios, work.random.randrange(2**32))


@dataclass(frozen=True)
class Run:
    """A run of requests: `metrics` as the command line prints them, and the trace's `events`."""

    metrics: Metrics
    events: list[Event]
    answers: dict[str, int]  # the number of new tokens of each request
    refused: dict[str, str]  # request -> why it was refused

    @property
    def steps(self) -> list[Event]:
        """Return the iterations with work, in the order in which they were decided."""
        return [event for event in self.events if event["event"] == "step" and event["work"]]


def run(work: Work, row: Technique, stage: type[OfStudent], requests: Seq[Request], **how: Any) -> Run:
    """Serve requests with the student's stage.

    Args:
        how: keyword arguments of `served`.

    Raises:
        StudentFault, LawBroken: the stage fails, or breaks a law.
    """
    stage.work = work
    return served(row, requests, **how)


def served(
    row: Technique,
    requests: Seq[Request],
    *,
    kv_tokens: int = 4096,
    hardware: str | Hardware = "a100-40g",
    **options: Any,
) -> Run:
    """Serve requests with any technique, in virtual time and without weights.

    Every answer has exactly as many tokens as its request allows.

    Args:
        kv_tokens: slots of memory.
        options: options of stages, such as `batching__token_budget=8`.
    """
    source = resolve(MODEL)
    slot = source.slot_bytes("float16")
    named = {name.replace("__", ".", 1): value for name, value in options.items()}
    settings = Settings(
        clock="virtual", hardware=hardware, dtype="float16", kv_memory=kv_tokens * slot, stage_options=named
    )
    lines = io.StringIO()
    engine = build_engine(resolve_run(row, source, settings), trace_path=lines)
    found = serve(engine, requests).whole()
    events = parse_trace(lines.getvalue(), row.name).events
    answers = {one.request.id: len(one.token_ids) for one in found.answers if one.why_refused is None}
    refused = {one.request.id: one.why_refused for one in found.answers if one.why_refused is not None}
    return Run(compute_metrics(events), events, answers, refused)


def check_schedule(found: Run, expected: Seq[Seq[tuple[str, int, int]]]) -> None:
    """Raise `Unmet` unless each iteration computes these (request, start, stop), in any order."""
    for i, (step, right) in enumerate(zip(found.steps, expected, strict=False)):
        work = sorted((name, start, stop) for name, start, stop, *_ in step["work"])
        if work != sorted(right):
            raise Unmet(
                f"iteration {i} computes {_told(work)}, and {_told(sorted(right))} was expected.", events=found.events
            )
    if len(found.steps) != len(expected):
        raise Unmet(f"there are {len(found.steps)} iterations, and {len(expected)} were expected.", events=found.events)


def _told(work: Seq[tuple[str, int, int]]) -> str:
    return ", ".join(f"[{start}, {stop}) of {name}" for name, start, stop in work) or "nothing"

"""`minifuse run`: requests in, answers out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from minifuse.cli.asked import AskedOfRun
from minifuse.cli.checked import check, check_trace, settings_for
from minifuse.cli.display import Display
from minifuse.cli.metric_rows import rows
from minifuse.cli.pipe import silence
from minifuse.cli.prepare import Prepared, load, prepare, rehearse
from minifuse.cli.text import answer_line, console, counted, is_right
from minifuse.errors import UsageError
from minifuse.metrics import compute_metrics
from minifuse.parsing import one_of
from minifuse.request import FinishReason
from minifuse.serve.build import build_engine
from minifuse.serve.interrupt import uninterrupted
from minifuse.serve.run import Answer, Served, serve
from minifuse.stages import stage, stages
from minifuse.techniques import MODELS, Technique, for_model, mix, technique

if TYPE_CHECKING:
    from minifuse.engine import Engine

__all__ = ["failed", "run", "show_served"]

SCHEMA = "minifuse.run/1"
DEFAULT = {"transformer": "orca", "cells": "cellular"}  # the technique, by kind of model
FAILED = (FinishReason.REFUSED, FinishReason.INTERRUPTED)


def run(typed: list[str], asked: AskedOfRun) -> int:
    """Serve what was asked and return the exit code: 1 if a request was refused or interrupted."""
    checked = check(asked)
    row = _chosen(asked, checked.kind)
    options = settings_for(row, checked, strict=True)
    trace = check_trace(asked.trace)
    prepared = prepare(checked, typed)
    rehearse(row, prepared, options)
    model, settings = load(prepared)
    engine = build_engine(row, prepared.source, replace(settings, stage_options=options), model, trace)
    try:
        served = show_served(engine, row, prepared, answers=not asked.json)
    except BrokenPipeError:
        silence()
        return 1  # the reader went away before everyone was answered
    metrics = compute_metrics(served.trace.events(), checked.goodput)
    if asked.json:
        print(json.dumps(_as_json(row, prepared, served, metrics)))
    else:
        _show_figures(prepared, served, metrics)
    return int(failed(served))


def _chosen(asked: AskedOfRun, kind: str) -> Technique:
    """The technique for this kind of model, with the stages that were exchanged."""
    row = for_model(technique(asked.technique or DEFAULT[kind]), kind)
    mixed = mix(row, batching=asked.batching, memory=asked.memory, attention=asked.attention)
    for place, name in mixed.stages.items():
        if kind not in stage(place, name).serves:
            fitting = [other for other, cls in stages(place).items() if kind in cls.serves]
            raise UsageError(f"The {place} {name!r} does not serve {MODELS[kind]}: choose {one_of(fitting)}.")
    return mixed


def failed(served: Served) -> bool:
    """Whether a request was refused or interrupted."""
    return any(answer.finish_reason in FAILED for answer in served.answers)


def show_served(engine: Engine, row: Technique, prepared: Prepared, answers: bool) -> Served:
    """Serve the requests, showing refusals and progress on stderr, and the answers on stdout if wanted."""
    shown: set[int] = set()
    with Display(
        f"{row.name} on {prepared.source.name}",
        prepared.requests,
        prepared.slot_bytes,
        of_cells=prepared.is_cells,
    ) as display:

        def show(answer: Answer) -> None:
            with uninterrupted():
                if answer.why_refused is not None:
                    display.refused(answer.request, answer.why_refused)
                else:
                    display.answer(answer_line(prepared, answer) if answers else None)
                shown.add(id(answer))

        served = serve(engine, prepared.requests, show, display.step)
        for answer in served.answers:  # Ctrl-C may have come just before one was shown
            if id(answer) not in shown:
                show(answer)
    return served


def _as_json(row: Technique, prepared: Prepared, served: Served, metrics: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "technique": row.name,
        "stages": row.stages,
        "model": prepared.source.name,
        "outputs": [_output(prepared, answer) for answer in served.answers],
        "metrics": metrics,
    }


def _output(prepared: Prepared, answer: Answer) -> dict[str, Any]:
    output: dict[str, Any] = {
        "id": answer.request.id,
        "group": answer.request.group,
        "prompt_token_ids": list(answer.request.prompt),
        "token_ids": list(answer.token_ids),
        "text": prepared.text(answer.token_ids),
        "finish_reason": answer.finish_reason.value,
        "arrival_s": answer.request.arrival_s,
        "first_token_s": answer.first_token_s,
        "finish_s": answer.finish_s,
    }
    if prepared.is_cells:
        output["results"] = [
            {"node": node, "outputs": [part.tolist() for part in outputs]}
            for node, outputs in sorted(answer.results.items())
        ]
    return output if answer.why_refused is None else {**output, "error": answer.why_refused}


def _show_figures(prepared: Prepared, served: Served, metrics: dict[str, Any]) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    unit = counted(prepared.requests)
    if unit == "prompts":  # the metrics are those of each prompt: they must not be taken for those of whole requests
        table.add_row("Requests", f"{prepared.num_requests:,}")
    for label, value in rows(metrics):
        table.add_row(
            Text(label.replace("Requests", unit.capitalize())), Text(value.replace("requests/s", f"{unit}/s"))
        )
    judged = [right for answer in served.answers if (right := is_right(prepared, answer)) is not None]
    if judged:
        table.add_row("Answers right", f"{sum(judged)} of {len(judged)}")
    console(stderr=True).print(table)

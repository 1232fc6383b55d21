"""`minifuse compare`: the same requests through several techniques, and whether all of them said the same."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from minifuse.cli.asked import Asked
from minifuse.cli.checked import Checked, check, has_batch_size, settings_for
from minifuse.cli.compare_table import CELL_LEGEND, LEGEND, comparison
from minifuse.cli.prepare import Prepared, load, prepare, rehearse
from minifuse.cli.run import failed, show_served
from minifuse.cli.text import console, counted
from minifuse.errors import UsageError
from minifuse.metrics import Metrics, compute_metrics
from minifuse.request import FinishReason
from minifuse.serve.build import build_engine
from minifuse.serve.run import Answer, Served, serve
from minifuse.serve.settings import Settings
from minifuse.techniques import Technique, for_model, technique

if TYPE_CHECKING:
    from minifuse.model.cells.model import CellModel
    from minifuse.model.text.transformer import Transformer

__all__ = ["compare"]

SCHEMA = "minifuse.compare/1"
WARM_UP_REQUESTS, WARM_UP_TOKENS = 4, 4
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-1}  # of results of cells
COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True)
class Result:
    """What one technique made of the requests. `differing` answers are other than the first technique's."""

    row: Technique
    served: Served
    metrics: Metrics
    differing: tuple[str, ...] | None  # None: placeholders, which say nothing


def compare(names: list[str], asked: Asked) -> int:
    """Serve and compare; the exit code is 1 if a request failed, or answers differ that must not."""
    rows = _techniques(names)
    checked = check(asked)
    rows = [for_model(row, checked.kind) for row in rows]
    options = _options(rows, checked)
    prepared = prepare(checked, [])
    for row, own in zip(rows, options, strict=True):
        rehearse(row, prepared, own)
    model, settings = load(prepared)
    results: list[Result] = []
    for row, own in zip(rows, options, strict=True):
        own_settings = replace(settings, stage_options=own)
        if settings.clock == "real":
            _warm_up(row, prepared, own_settings, model)
        engine = build_engine(row, prepared.source, own_settings, model)
        served = show_served(engine, row, prepared, answers=False)
        metrics = compute_metrics(served.trace.events(), checked.goodput)
        first = results[0].served if results else served
        differing = None if prepared.placeholders else _differing(first, served, settings.dtype)
        results.append(Result(row, served, metrics, differing))
        if served.interrupted:
            break
    if asked.json:
        print(json.dumps(_as_json(prepared, results)))
    else:
        lines = ((one.row.name, one.metrics, None if one.differing is None else len(one.differing)) for one in results)
        legend = CELL_LEGEND if prepared.is_cells else LEGEND
        console().print(comparison(lines, prepared.is_cells), "", legend, sep="\n")
    _say_what_is_missing(prepared, rows, results)
    wrong = _broken(prepared, results)
    numbers = "reference numerics" if prepared.settings.numerics == "reference" else "float64"
    for name, reference, ids in wrong:
        print(
            f"error: {name} answers {', '.join(ids)} otherwise than {reference}, in {numbers}: a stage of one of them "
            "has a defect.",
            file=sys.stderr,
        )
    return int(bool(wrong) or any(failed(result.served) for result in results))


def _say_what_is_missing(prepared: Prepared, rows: list[Technique], results: list[Result]) -> None:
    last = results[-1]
    if not last.served.interrupted:
        return
    answered = sum(answer.finish_reason in COMPLETE for answer in last.served.answers)
    left = ", ".join(row.name for row in rows[len(results) :])
    rest = f", and {left} did not run" if left else ""
    print(
        f"error: Interrupted: {last.row.name} had answered {answered} of {len(last.served.answers)} "
        f"{counted(prepared.requests)}, so its row is not comparable{rest}: run it again.",
        file=sys.stderr,
    )


def _techniques(names: list[str]) -> list[Technique]:
    rows = [technique(name) for name in names]
    if len(set(names)) < max(2, len(names)):
        given = " ".join(names) or "no technique"
        raise UsageError(f"compare was given {given}: name two or more different techniques of minifuse list.")
    return rows


def _options(rows: list[Technique], checked: Checked) -> list[dict[str, Any]]:
    """The settings of each technique: those that it has. One that nobody has is refused."""
    known = set().union(*(row.option_names for row in rows))
    for name in checked.settings:
        if name not in known:
            which = ", ".join(sorted(known)) or "none"
            raise UsageError(f"--set gives {name}, which none of these techniques has; their options are: {which}.")
    if checked.max_batch is not None and not any(map(has_batch_size, rows)):
        raise UsageError(
            f"--max-batch is {checked.max_batch}, and none of these techniques has a batch size: leave it out."
        )
    return [settings_for(row, checked, strict=False) for row in rows]


def _warm_up(row: Technique, prepared: Prepared, settings: Settings, model: Transformer | CellModel | None) -> None:
    """Serve a little unseen: what a first use costs should not be counted against whoever comes first."""
    engine = build_engine(row, prepared.source, settings, model)
    requests = [
        replace(request, max_new_tokens=max(1, min(request.max_new_tokens, WARM_UP_TOKENS)), arrival_s=0.0)
        for request in prepared.requests[:WARM_UP_REQUESTS]
    ]
    serve(engine, requests)


def _differing(first: Served, other: Served, dtype: str) -> tuple[str, ...]:
    """The ids of requests that both answered to the end, and not alike: other tokens, or other results of cells."""
    pairs = zip(first.answers, other.answers, strict=True)
    return tuple(
        a.request.id
        for a, b in pairs
        if a.finish_reason in COMPLETE
        and b.finish_reason in COMPLETE
        and not (a.token_ids == b.token_ids and _alike(a, b, TOLERANCE[dtype]))
    )


def _alike(a: Answer, b: Answer, tolerance: float) -> bool:
    """Whether cells came to the same, up to what batches of another size may round otherwise.

    Nodes are compared in their order: a model by operator numbers them otherwise.
    """
    mine, other = ([outputs for _, outputs in sorted(answer.results.items())] for answer in (a, b))
    return len(mine) == len(other) and all(
        one.shape == two.shape and one.allclose(two, tolerance, tolerance)
        for outputs, others in zip(mine, other, strict=True)
        for one, two in zip(outputs, others, strict=True)
    )


def _broken(prepared: Prepared, results: list[Result]) -> list[tuple[str, str, list[str]]]:
    """Answers that differ although nothing leaves room for it: technique, the one compared with, ids.

    In the reference numerics none may, and in float64 no greedy one.
    """
    exact = prepared.settings.numerics == "reference"
    if prepared.settings.dtype != "float64" and not exact:
        return []
    greedy = {request.id for request in prepared.requests if exact or request.sampling.greedy}
    found = [(result.row.name, [name for name in result.differing or () if name in greedy]) for result in results]
    return [(name, results[0].row.name, ids) for name, ids in found if ids]


def _as_json(prepared: Prepared, results: list[Result]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": prepared.source.name,
        "dtype": prepared.settings.dtype,
        "numerics": prepared.settings.numerics,
        "clock": prepared.settings.clock,
        "requests": prepared.num_requests,
        "prompts": len(prepared.requests),
        "techniques": [
            {
                "technique": result.row.name,
                "stages": result.row.stages,
                "differing": None if result.differing is None else list(result.differing),
                "metrics": result.metrics,
            }
            for result in results
        ],
    }

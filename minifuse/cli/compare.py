"""`minifuse compare`: the same requests through several techniques, and whether their answers agree."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from typing import Annotated, Any

from minifuse.cli.declare import argument, takes
from minifuse.cli.options import Options, refuse_contradictions
from minifuse.cli.requests import Workload, make_workload, note_priorities
from minifuse.cli.run import failed, load, placeholders, show_served
from minifuse.cli.text import console, counted
from minifuse.errors import UsageError
from minifuse.metrics import Metrics, RunningMetrics
from minifuse.model.source import resolve
from minifuse.request import FinishReason
from minifuse.serve.build import build_engine
from minifuse.serve.run import Answer, Served, serve
from minifuse.serve.settings import Settings
from minifuse.techniques import Technique, for_model, technique

__all__ = ["compare"]

SCHEMA = "minifuse.compare/1"
WARM_UP_REQUESTS, WARM_UP_TOKENS = 4, 4
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-1}  # of results of cells
COMPLETE = (FinishReason.STOP, FinishReason.LENGTH)
COMPARED = (*COMPLETE, FinishReason.NAN)


@dataclass(frozen=True)
class CompareOptions(Options):
    """The options of `compare`."""

    techniques: Annotated[list[str], argument("TECHNIQUE", "two or more, see minifuse list", many=True)]


@dataclass(frozen=True)
class Result:
    """How one technique served the requests. `differing` answers are unlike those of the first technique."""

    row: Technique
    served: Served
    metrics: Metrics
    differing: tuple[str, ...] | None  # None: of placeholders


@takes(CompareOptions)
def compare(options: CompareOptions) -> int:
    """Serve the same requests with several techniques, and show their metrics in one table."""
    rows = _techniques(options.techniques)
    source = resolve(options.model)
    rows = [for_model(row, source.kind) for row in rows]
    stage_options = _stage_options(rows, options)
    refuse_contradictions(options, source)
    workload = make_workload(options, source)
    note_priorities(workload, zip(rows, stage_options, strict=True))
    settings = options.settings
    outline = source.outline(settings.dtype, settings.seed)
    for row, own in zip(rows, stage_options, strict=True):  # refuse before any weights are loaded
        build_engine(row, source, replace(settings, stage_options=own), outline)
    model, settings = load(source, settings, outline)
    results: list[Result] = []
    for row, own in zip(rows, stage_options, strict=True):
        own_settings = replace(settings, stage_options=own)
        if settings.clock == "real":
            _warm_up(row, workload, own_settings, model)
        counted = RunningMetrics()
        engine = build_engine(row, source, own_settings, model, into=counted.read)
        served = show_served(engine, row, workload, answers=False)
        metrics = counted.result(options.goodput)
        first = results[0].served if results else served
        differing = None if placeholders(source, settings) else _differing(first, served, settings.dtype)
        results.append(Result(row, served, metrics, differing))
        if served.interrupted:
            break
    if options.json:
        print(json.dumps(_as_json(workload, settings, results)))
    else:
        _show(source.kind, results)
    return _report_errors(workload, settings, rows, results)


def _show(kind: str, results: list[Result]) -> None:
    from minifuse.cli.tables import LEGEND, comparison

    rows = ((one.row.name, one.metrics, None if one.differing is None else len(one.differing)) for one in results)
    console().print(comparison(rows, kind), "", LEGEND[kind], sep="\n")


def _report_errors(workload: Workload, settings: Settings, rows: list[Technique], results: list[Result]) -> int:
    """Print on stderr what is missing and which answers differ that must not; return the exit code."""
    last = results[-1]
    if last.served.interrupted:
        answered = sum(answer.finish_reason in COMPLETE for answer in last.served.answers)
        left = ", ".join(row.name for row in rows[len(results) :])
        rest = f", and {left} did not run" if left else ""
        print(
            f"error: Interrupted: {last.row.name} had answered {answered} of {len(last.served.answers)} "
            f"{counted(workload.requests)}, so its row is not comparable{rest}: run it again.",
            file=sys.stderr,
        )
    wrong = _wrong(workload, settings, results)
    numbers = "reference numerics" if settings.numerics == "reference" else "float64"
    for name, ids in wrong:
        print(
            f"error: {name} answers {', '.join(ids)} otherwise than {results[0].row.name}, in {numbers}: a stage of "
            "one of them has a defect.",
            file=sys.stderr,
        )
    return int(bool(wrong) or any(failed(result.served) for result in results))


def _techniques(names: list[str]) -> list[Technique]:
    rows = [technique(name) for name in names]
    if len(set(names)) < max(2, len(names)):
        given = " ".join(names) or "no technique"
        raise UsageError(f"compare was given {given}: name two or more different techniques of minifuse list.")
    return rows


def _stage_options(rows: list[Technique], options: Options) -> list[dict[str, Any]]:
    """The stage options of each technique: those that it has. One that none of them has is refused."""
    known = set().union(*(row.option_names for row in rows))
    for name in options.set:
        if name not in known:
            which = ", ".join(sorted(known)) or "none"
            raise UsageError(f"--set gives {name}, which none of these techniques has; their options are: {which}.")
    if options.max_batch is not None and not any(row.batch_sizes for row in rows):
        raise UsageError(
            f"--max-batch is {options.max_batch}, and none of these techniques has a batch size: leave it out."
        )
    return [options.stage_options(row, known_only=True) for row in rows]


def _warm_up(row: Technique, workload: Workload, settings: Settings, model: Any) -> None:
    """Serve a few requests unseen: the cost of a first use should not be counted against the first technique."""
    engine = build_engine(row, workload.source, settings, model)
    requests = [
        replace(request, max_new_tokens=max(1, min(request.max_new_tokens, WARM_UP_TOKENS)), arrival_s=0.0)
        for request in workload.requests[:WARM_UP_REQUESTS]
    ]
    serve(engine, requests)


def _differing(first: Served, other: Served, dtype: str) -> tuple[str, ...]:
    """The ids of requests that both answered to the end, or to logits that were not finite, with other tokens, another
    end, or other results of cells.
    """
    pairs = zip(first.answers, other.answers, strict=True)
    return tuple(
        a.request.id
        for a, b in pairs
        if a.finish_reason in COMPARED
        and b.finish_reason in COMPARED
        and not ((a.token_ids, a.finish_reason) == (b.token_ids, b.finish_reason) and _alike(a, b, TOLERANCE[dtype]))
    )


def _alike(a: Answer, b: Answer, tolerance: float) -> bool:
    """Whether results of cells agree, up to the rounding that depends on the size of a batch.

    Results are compared in the order of their nodes, whose numbers differ in a model by operator.
    """
    mine, other = ([outputs for _, outputs in sorted(answer.results.items())] for answer in (a, b))
    return len(mine) == len(other) and all(
        one.shape == two.shape and one.allclose(two, tolerance, tolerance)
        for outputs, others in zip(mine, other, strict=True)
        for one, two in zip(outputs, others, strict=True)
    )


def _wrong(workload: Workload, settings: Settings, results: list[Result]) -> list[tuple[str, list[str]]]:
    """Techniques, each with the ids of its answers that differ and must not.

    In the reference numerics none may differ, and in float64 no greedy one.
    """
    exact = settings.numerics == "reference"
    if settings.dtype != "float64" and not exact:
        return []
    fixed = {request.id for request in workload.requests if exact or request.sampling.greedy}
    found = [(result.row.name, [name for name in result.differing or () if name in fixed]) for result in results]
    return [(name, ids) for name, ids in found if ids]


def _as_json(workload: Workload, settings: Settings, results: list[Result]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": workload.source.name,
        "dtype": settings.dtype,
        "numerics": settings.numerics,
        "clock": settings.clock,
        "requests": workload.num_requests,
        "prompts": len(workload.requests),
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

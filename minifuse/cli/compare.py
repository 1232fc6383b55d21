"""`minifuse compare`: the same requests through several techniques, and whether all of them said the same."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.table import Table

from minifuse.cli.asked import Asked
from minifuse.cli.checked import Checked, check, has_batch_size, settings_for
from minifuse.cli.prepare import Prepared, load, prepare, rehearse
from minifuse.cli.run import failed, show_served
from minifuse.cli.text import console, counted
from minifuse.errors import UsageError
from minifuse.metrics import Metrics, compute_metrics
from minifuse.request import FinishReason
from minifuse.serve import Served, Settings, build_engine, serve
from minifuse.techniques import Technique, technique

if TYPE_CHECKING:
    from minifuse.model.transformer import Transformer

__all__ = ["compare"]

SCHEMA = "minifuse.compare/1"
WARM_UP_REQUESTS, WARM_UP_TOKENS = 4, 4
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
        results.append(Result(row, served, metrics, None if model is None else _differing(first, served)))
        if served.interrupted:
            break
    if asked.json:
        print(json.dumps(_as_json(prepared, results)))
    else:
        console().print(_table(results), "", LEGEND, sep="\n")
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


def _warm_up(row: Technique, prepared: Prepared, settings: Settings, model: Transformer | None) -> None:
    """Serve a little unseen: what a first use costs should not be counted against whoever comes first."""
    engine = build_engine(row, prepared.source, settings, model)
    requests = [
        replace(request, max_new_tokens=max(1, min(request.max_new_tokens, WARM_UP_TOKENS)), arrival_s=0.0)
        for request in prepared.requests[:WARM_UP_REQUESTS]
    ]
    serve(engine, requests)


def _differing(first: Served, other: Served) -> tuple[str, ...]:
    """The ids of requests that both answered to the end, and not alike."""
    pairs = zip(first.answers, other.answers, strict=True)
    return tuple(
        a.request.id
        for a, b in pairs
        if a.finish_reason in COMPLETE and b.finish_reason in COMPLETE and a.token_ids != b.token_ids
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


COLUMNS = (
    *("tokens\n/s", "TTFT\np50", "ms\np99", "TPOT\np50", "ms\np99", "norm.\nms"),
    *("iter-\nations", "idle\n%", "mean\nbatch", "KV\nMiB", "dif-\nfer"),
)
LEGEND = (
    "norm.: mean end-to-end time per output token; KV: peak in use;\ndiffer: answers unlike those of the first row."
)


def _table(results: list[Result]) -> Table:
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("\ntechnique", style="bold", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", overflow="fold")
    for result in results:
        table.add_row(result.row.name, *_cells(result))
    return table


def _cells(result: Result) -> list[str]:
    metrics = result.metrics
    ttft, tpot, normalized = (metrics[name] or {} for name in ("ttft_s", "tpot_s", "normalized_latency_s"))
    peak = metrics["kv"]["peak_used_bytes"]
    idle = metrics["tokens"]["idle_share"]
    return [
        _number(metrics["throughput"]["tokens_per_s"]),
        _number(ttft.get("p50"), 1e3),
        _number(ttft.get("p99"), 1e3),
        _number(tpot.get("p50"), 1e3),
        _number(tpot.get("p99"), 1e3),
        _number(normalized.get("mean"), 1e3),
        str(metrics["iterations"]),
        _number(idle, 100),
        _number(metrics["mean_batch_size"]),
        _number(peak, 2**-20),
        "-" if result.differing is None else str(len(result.differing)),
    ]


def _number(value: float | None, factor: float = 1.0) -> str:
    """Three digits, or all of a larger whole part."""
    if value is None:
        return "-"
    value *= factor
    return f"{value:.0f}" if value >= 99.95 or value == 0 else f"{value:.3g}" if value >= 1 else f"{value:.2f}"

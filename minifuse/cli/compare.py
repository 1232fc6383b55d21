"""`minifuse compare`: serves the same requests with several techniques, and compares the answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from minifuse.cli.answers import note_unevicted
from minifuse.cli.declare import argument, option, takes
from minifuse.cli.failures import told
from minifuse.cli.files import folder_to_be, refuse_overwriting, writable_file
from minifuse.cli.options import Options, refuse_contradictions, stage_options
from minifuse.cli.replay import REPLAY, Page, page_of
from minifuse.cli.requests import Workload, make_workload, note_priorities
from minifuse.cli.run import exit_code, load, show_served
from minifuse.cli.status import loading
from minifuse.cli.streams import print_result
from minifuse.cli.tables import LEGEND, by_group, comparison, groups_as_json, is_busy
from minifuse.cli.text import console, counted, tell
from minifuse.core.errors import MachineError, UsageError
from minifuse.ctrl_c import INTERRUPTED
from minifuse.io.parsing import all_of
from minifuse.model.source import resolve
from minifuse.serve.agreement import differing
from minifuse.serve.assembly import Choices
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import ResolvedRun, resolve_run
from minifuse.serve.run import Served, serve
from minifuse.techniques import Technique, for_model, technique
from minifuse.trace.ended import Metrics
from minifuse.trace.running import Groups, RunningMetrics

SCHEMA = "minifuse.compare/2"
WARM_UP_REQUESTS, WARM_UP_TOKENS = 4, 4
TRACES = "write each technique's decisions and times to DIR/TECHNIQUE.jsonl; DIR is made if it is missing"


@dataclass(frozen=True)
class CompareOptions(Options):
    """The options of `compare`."""

    techniques: Annotated[Sequence[str], argument("TECHNIQUE", "two or more, see minifuse list")] = ()
    trace: Annotated[Path | None, option("--trace", TRACES, "DIR", panel="Output", parse=folder_to_be)] = None
    replay: Annotated[Path | None, REPLAY] = None


@dataclass(frozen=True)
class Result:
    """How one technique served the requests."""

    run: ResolvedRun
    served: Served
    metrics: Metrics
    differing: tuple[str, ...] | None  # answers that differ from the first technique's; None if tokens are placeholders
    groups: Groups | None  # metrics per group of --by
    trace_failure: str | None  # why the trace ends before the run

    @property
    def name(self) -> str:
        return self.run.row.name


@takes(CompareOptions)
def compare(options: CompareOptions) -> int:
    """Serve the same requests with several techniques, and show their metrics in one table.

    A technique that fails is named, and the others go on.
    """
    rows = distinct(options.techniques, "compare", 2)
    source = resolve(options.model)
    choices = _choices([for_model(row, source.kind) for row in rows], options)
    refuse_contradictions(options, source)
    _check_files(options)
    workload = make_workload(options, source)
    note_priorities(workload, choices)
    settings = options.settings
    with loading(source.name):
        outline = source.outline(settings.dtype, settings.seed)
        runs = [resolve_run(one, source, settings, outline) for one in choices]
    if options.trace is not None:
        _make_folder(options.trace)
    model = load(runs[0])
    with page_of(options.replay, options.trace) as page:
        return _compare(options, page, runs, workload, model)


def _compare(options: CompareOptions, page: Page, runs: list[ResolvedRun], workload: Workload, model: Any) -> int:
    results: list[Result] = []
    failures: list[tuple[str, str]] = []
    failed = 0
    for run in runs:
        name = run.row.name
        try:
            if options.clock == "real":
                warm_up(run, workload, model)
            results.append(_result(options, run, workload, model, page.trace(name), results))
        except BrokenPipeError:
            raise
        except Exception as error:
            message, code = told(error)
            failures.append((name, message))
            failed = code if code == MachineError.exit_code else failed or 1
            tell(f"error: {name} failed, and has no row: {message}")
            continue
        if results[-1].served.interrupted:
            break
    note_unevicted((one.run.choices, one.metrics) for one in results)
    shown = page.write([one.name for one in results])  # before the table: its reader may close the pipe
    if options.json:
        print_result(json.dumps(_as_json(options, workload, results, failures)))
    elif results:
        _show(workload.source.kind, results, options.by)
    return _report_errors(options, workload, runs, results) or failed or int(not shown)


def _result(
    options: Options, run: ResolvedRun, workload: Workload, model: Any, trace: Path | None, before: list[Result]
) -> Result:
    """Serve the requests with a technique. Errors of its stages are raised."""
    metrics = RunningMetrics(options.goodput, options.by)
    engine = build_engine(run, model, trace, into=metrics.read)
    served = show_served(engine, run.row, workload, answers=False)
    first = before[0].served if before else served
    unlike = None if run.placeholders else differing(first, served, run.settings.dtype)
    groups = None if options.by is None else metrics.groups()
    return Result(run, served, metrics.result(), unlike, groups, engine.trace.failure)


def warm_up(run: ResolvedRun, workload: Workload, model: Any) -> None:
    """Serve a few requests without showing them, so that the measured run starts warm."""
    requests = [
        replace(request, max_new_tokens=max(1, min(request.max_new_tokens, WARM_UP_TOKENS)), arrival_s=0.0)
        for request in workload.requests[:WARM_UP_REQUESTS]
    ]
    with loading(f"{run.row.name}: warming up"):
        serve(build_engine(run, model), requests).whole()


def _check_files(options: CompareOptions) -> None:
    """Refuse traces and a page that would overwrite other files."""
    traces: list[Path] = []
    if options.trace is not None:
        traces = [options.trace / f"{name}.jsonl" for name in options.techniques]
    written = [*(("--trace", trace) for trace in traces), ("--replay", options.replay)]
    refuse_overwriting(written, [options.model, options.prompts])
    for trace in traces:
        if trace.exists():
            writable_file(str(trace), "--trace")


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--trace is {str(path)!r}, which cannot be made a folder ({error.strerror}).") from None


def _show(kind: str, results: list[Result], by: str | None) -> None:
    out = console()
    rows = [(one.name, one.metrics, None if one.differing is None else len(one.differing)) for one in results]
    for table in comparison(rows, kind, out.width):
        out.print(table, "", sep="\n")
    out.print(LEGEND[kind], soft_wrap=True)
    if by is not None:
        groups = {one.name: one.groups for one in results if one.groups is not None}
        out.print("", *by_group(groups, by, kind, out.width), sep="\n")
    if notes := _notes(results):
        out.print("", *notes, sep="\n")


def _notes(results: list[Result]) -> list[str]:
    """List the reasons why numbers in the table cannot be compared."""
    complete = {one.name: sum(answer.complete for answer in one.served.answers) for one in results}
    fewer = [name for name, number in complete.items() if number < max(complete.values())]
    notes = [f"{all_of(fewer)} answered fewer requests than others."] if fewer else []
    if any(is_busy(one.metrics) for one in results):
        notes.append("The machine was busy: these times compare with no others.")
    return notes


def _report_errors(options: Options, workload: Workload, runs: list[ResolvedRun], results: list[Result]) -> int:
    """Report on stderr what is missing and which answers wrongly differ; return the exit code."""
    lost = [result.trace_failure for result in results if result.trace_failure is not None]
    for failure in lost:
        tell(f"error: {failure}")
    last = results[-1] if results else None
    left = ", ".join(run.row.name for run in runs[runs.index(last.run) + 1 :]) if last is not None else ""
    interrupted = last is not None and last.served.interrupted and (left or exit_code(last.served))
    if last is not None and interrupted:
        answered = sum(answer.complete for answer in last.served.answers)
        rest = f", and {left} did not run" if left else ""
        tell(
            f"error: Interrupted: {last.name} had answered {answered} of {len(last.served.answers)} "
            f"{counted(workload.requests)}, so its row is not comparable{rest}: run it again."
        )
    wrong = _wrong(options, workload, results)
    numbers = "reference numerics" if options.numerics == "reference" else "float64"
    for name, ids in wrong.items():
        tell(
            f"error: {name} answers {', '.join(ids)} otherwise than {results[0].name}, in {numbers}: a stage of "
            "one of them has a defect."
        )
    if interrupted:
        return INTERRUPTED
    return max([int(bool(wrong or lost)), *(exit_code(one.served) for one in results)])


def distinct(names: Sequence[str], command: str, least: int = 1) -> list[Technique]:
    """Find the named techniques; refuse fewer than `least`, and a name given twice."""
    rows = [technique(name) for name in names]
    if len(set(names)) < max(least, len(names)):
        given, several = " ".join(names) or "no technique", "two or more " if least > 1 else ""
        raise UsageError(f"{command} was given {given}: name {several}different techniques of minifuse list.")
    return rows


def refuse_unknown(rows: Sequence[Technique], options: Options) -> None:
    """Refuse an option of --set that none of the techniques has."""
    known = set().union(*(row.option_names for row in rows))
    for name in stage_options(options.set):
        if name not in known:
            which = ", ".join(sorted(known)) or "none"
            raise UsageError(f"--set gives {name}, which none of these techniques has; their options are: {which}.")


def _choices(rows: list[Technique], options: Options) -> list[Choices]:
    """Apply the stage options to each technique; refuse an option that no technique has."""
    refuse_unknown(rows, options)
    found = [options.choices(row, known_only=True) for row in rows]
    unbounded = [row.name for row in rows if not row.batch_sizes]
    if options.max_batch is not None and unbounded:
        have = "has" if len(unbounded) == 1 else "have"
        tell(f"note: {all_of(unbounded)} {have} no batch size, which --max-batch could set.")
    return found


def _wrong(options: Options, workload: Workload, results: list[Result]) -> dict[str, list[str]]:
    """Find differing answers that should agree: all in reference numerics, greedy ones in float64."""
    exact = options.numerics == "reference"
    if options.dtype != "float64" and not exact:
        return {}
    fixed = {request.id for request in workload.requests if exact or request.sampling.greedy}
    found = {one.name: [name for name in one.differing or () if name in fixed] for one in results}
    return {name: ids for name, ids in found.items() if ids}


def _as_json(
    options: Options, workload: Workload, results: list[Result], failures: list[tuple[str, str]]
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": workload.source.name,
        "dtype": options.dtype,
        "numerics": options.numerics,
        "clock": options.clock,
        "requests": workload.num_requests,
        "prompts": len(workload.requests),
        "techniques": [
            {
                "technique": result.name,
                "stages": result.run.row.stages,
                "differing": None if result.differing is None else list(result.differing),
                "metrics": result.metrics,
                **groups_as_json(result.groups, options.by),
            }
            for result in results
        ],
        "failed": [{"technique": name, "error": why} for name, why in failures],
        "notes": _notes(results),
    }

"""`minifuse compare`: the same requests through several techniques, and whether their answers agree."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from minifuse.cli.answers import note_unevicted
from minifuse.cli.declare import argument, folder_to_be, option, takes, writable_file
from minifuse.cli.failures import told
from minifuse.cli.options import Options, refuse_contradictions
from minifuse.cli.plugin import refuse_overwriting
from minifuse.cli.replay import REPLAY, Page, page_of, refuse_overwriting_by_page
from minifuse.cli.requests import Workload, make_workload, note_priorities
from minifuse.cli.run import exit_code, load, show_served
from minifuse.cli.spinner import loading
from minifuse.cli.streams import print_result
from minifuse.cli.text import console, counted, tell
from minifuse.core.errors import MachineError, UsageError
from minifuse.core.request import FinishReason
from minifuse.ctrl_c import INTERRUPTED
from minifuse.io.parsing import all_of
from minifuse.model.source import resolve
from minifuse.serve.assembly import Choices
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import ResolvedRun, resolve_run
from minifuse.serve.run import Answer, Served, serve
from minifuse.serve.settings import Settings
from minifuse.techniques import Technique, for_model, technique
from minifuse.trace.metrics import GROUPINGS, Groups, Metrics, RunningMetrics

SCHEMA = "minifuse.compare/1"
WARM_UP_REQUESTS, WARM_UP_TOKENS = 4, 4
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-1}  # of results of cells
TRACES = "write each technique's decisions and times to DIR/TECHNIQUE.jsonl; DIR is made if it is missing"


@dataclass(frozen=True)
class CompareOptions(Options):
    """The options of `compare`."""

    techniques: Annotated[list[str], argument("TECHNIQUE", "two or more, see minifuse list", many=True)]
    trace: Annotated[Path | None, option("--trace", TRACES, "DIR", panel="Output", parse=folder_to_be)]
    replay: Annotated[Path | None, REPLAY]


@dataclass(frozen=True)
class Result:
    """How one technique served the requests. `differing` answers are unlike those of the first technique."""

    run: ResolvedRun
    served: Served
    metrics: Metrics
    differing: tuple[str, ...] | None  # None: of placeholders
    groups: dict[str, Groups]  # by user, by priority, and by what --by names
    trace_failure: str | None  # why the trace ends before the run does

    @property
    def row(self) -> Technique:
        return self.run.row


@takes(CompareOptions)
def compare(options: CompareOptions) -> int:
    """Serve the same requests with several techniques, and show their metrics in one table.

    A technique that fails is named, and the others go on.
    """
    rows = _techniques(options.techniques)
    source = resolve(options.model)
    rows = [for_model(row, source.kind) for row in rows]
    choices = _choices(rows, options)
    refuse_contradictions(options, source)
    traces = _traces(rows, options)
    refuse_overwriting_by_page(options, traces.values())
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


def _compare(
    options: CompareOptions,
    page: Page,
    runs: list[ResolvedRun],
    workload: Workload,
    model: Any,
) -> int:
    source, settings = workload.source, runs[0].settings
    contest = Contest(workload, model, options.goodput, options.by)
    results: list[Result] = []
    failures: list[tuple[Technique, str]] = []
    failed = 0
    for run in runs:
        row = run.row
        try:
            results.append(contest.run(run, page.trace(row.name), results))
        except BrokenPipeError:
            raise
        except Exception as error:
            message, code = told(error)
            failures.append((row, message))
            failed = code if code == MachineError.exit_code else failed or 1
            tell(f"error: {row.name} failed, and has no row: {failures[-1][1]}")
            continue
        if results[-1].served.interrupted:
            break
    note_unevicted((one.run.choices, one.metrics) for one in results)
    shown = page.write([result.row.name for result in results])  # before the table, whose reader may close the pipe
    if options.json:
        print_result(json.dumps(_as_json(workload, settings, results, failures, options.by)))
    elif results:
        _show(source.kind, settings.clock, results, options.by)
    return _report_errors(workload, runs, results) or failed or int(not shown)


@dataclass(frozen=True)
class Contest:
    """The same requests for several techniques, each of which is warmed up first."""

    workload: Workload
    model: Any
    goodput: dict[str, float] | None
    by: str | None

    def run(self, run: ResolvedRun, trace: Path | None, before: list[Result]) -> Result:
        """Serve the requests with a technique; raises what its stages do."""
        if run.settings.clock == "real":
            with loading(f"{run.row.name}: warming up"):
                self._warm_up(run)
        counted = RunningMetrics()
        engine = build_engine(run, self.model, trace, into=counted.read)
        served = show_served(engine, run.row, self.workload, answers=False)
        first = before[0].served if before else served
        differing = None if run.placeholders else _differing(first, served, run.settings.dtype)
        groups = {by: counted.grouped(by) for by in GROUPINGS if by in ("user", "priority", self.by)}
        return Result(run, served, counted.result(self.goodput), differing, groups, engine.trace.failure)

    def _warm_up(self, run: ResolvedRun) -> None:
        """Serve a few requests unseen: the cost of a first use should not be counted against the first technique."""
        requests = [
            replace(request, max_new_tokens=max(1, min(request.max_new_tokens, WARM_UP_TOKENS)), arrival_s=0.0)
            for request in self.workload.requests[:WARM_UP_REQUESTS]
        ]
        serve(build_engine(run, self.model), requests).whole()


def _traces(rows: list[Technique], options: CompareOptions) -> dict[str, Path]:
    """The file of each technique's trace, if traces are to be written."""
    if options.trace is None:
        return {}
    traces = {row.name: options.trace / f"{row.name}.jsonl" for row in rows}
    for trace in traces.values():
        refuse_overwriting(trace, options.model, options.prompts)
        if trace.exists():
            writable_file(str(trace), "--trace")
    return traces


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--trace is {str(path)!r}, which cannot be made a folder ({error.strerror}).") from None


def _show(kind: str, clock: str, results: list[Result], by: str | None) -> None:
    from minifuse.cli.tables import LEGEND, by_group, comparison

    out = console()
    rows = ((one.row.name, one.metrics, None if one.differing is None else len(one.differing)) for one in results)
    for table in comparison(rows, kind, out.width):
        out.print(table, "", sep="\n")
    out.print(LEGEND[kind], soft_wrap=True)
    if by is not None:
        out.print("", *by_group({one.row.name: one.groups[by] for one in results}, by, kind, out.width), sep="\n")
    if verdict := _verdict(kind, clock, results):
        out.print("", *verdict, sep="\n")


def _verdict(kind: str, clock: str, results: list[Result]) -> list[str]:
    from minifuse.cli.leaders import leaders

    complete = [one for one in results if not one.served.interrupted]
    if len(complete) < 2:
        return []
    groups = {one.row.name: one.groups for one in complete}
    return leaders([(one.row.name, one.metrics) for one in complete], kind, clock, groups)


def _report_errors(workload: Workload, runs: list[ResolvedRun], results: list[Result]) -> int:
    """Print on stderr what is missing and which answers differ that must not; return the exit code."""
    settings = runs[0].settings
    for result in results:
        if result.trace_failure is not None:
            tell(f"error: {result.trace_failure}")
    last = results[-1] if results else None
    left = ", ".join(run.row.name for run in runs[runs.index(last.run) + 1 :]) if last is not None else ""
    interrupted = last is not None and last.served.interrupted and (left or exit_code(last.served))
    if last is not None and interrupted:
        answered = sum(answer.complete for answer in last.served.answers)
        rest = f", and {left} did not run" if left else ""
        tell(
            f"error: Interrupted: {last.row.name} had answered {answered} of {len(last.served.answers)} "
            f"{counted(workload.requests)}, so its row is not comparable{rest}: run it again."
        )
    wrong = _wrong(workload, settings, results)
    numbers = "reference numerics" if settings.numerics == "reference" else "float64"
    for name, ids in wrong:
        tell(
            f"error: {name} answers {', '.join(ids)} otherwise than {results[0].row.name}, in {numbers}: a stage of "
            "one of them has a defect."
        )
    if interrupted:
        return INTERRUPTED
    lost = bool(wrong) or any(one.trace_failure is not None for one in results)
    return max([int(lost), *(exit_code(one.served) for one in results)])


def _techniques(names: list[str]) -> list[Technique]:
    rows = [technique(name) for name in names]
    if len(set(names)) < max(2, len(names)):
        given = " ".join(names) or "no technique"
        raise UsageError(f"compare was given {given}: name two or more different techniques of minifuse list.")
    return rows


def _choices(rows: list[Technique], options: Options) -> list[Choices]:
    """Each technique with the stage options that it has. A --set that none of them has is refused."""
    known = set().union(*(row.option_names for row in rows))
    for name in options.set:
        if name not in known:
            which = ", ".join(sorted(known)) or "none"
            raise UsageError(f"--set gives {name}, which none of these techniques has; their options are: {which}.")
    found = [options.choices(row, known_only=True) for row in rows]
    unbounded = [row.name for row in rows if not row.batch_sizes]
    if options.max_batch is not None and unbounded:
        have = "has" if len(unbounded) == 1 else "have"
        tell(f"note: {all_of(unbounded)} {have} no batch size, which --max-batch could set.")
    return found


def _differing(first: Served, other: Served, dtype: str) -> tuple[str, ...]:
    """The ids of requests that both answered to the end, or to logits that were not finite, with other tokens, another
    end, or other results of cells.
    """
    pairs = zip(first.answers, other.answers, strict=True)
    return tuple(
        a.request.id
        for a, b in pairs
        if _comparable(a)
        and _comparable(b)
        and not ((a.token_ids, a.finish_reason) == (b.token_ids, b.finish_reason) and _alike(a, b, TOLERANCE[dtype]))
    )


def _comparable(answer: Answer) -> bool:
    """Whether it came to an end that must be the same under every technique."""
    return answer.complete or answer.finish_reason is FinishReason.NAN


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


def _as_json(
    workload: Workload,
    settings: Settings,
    results: list[Result],
    failures: list[tuple[Technique, str]],
    by: str | None,
) -> dict[str, Any]:
    from minifuse.cli.tables import groups_as_json

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
                **({} if by is None else {"groups": groups_as_json(result.groups[by], by)}),
            }
            for result in results
        ],
        "failed": [{"technique": row.name, "error": why} for row, why in failures],
        "verdict": _verdict(workload.source.kind, settings.clock, results),
    }

"""`minifuse run`: requests in, answers out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from minifuse.cli.declare import STDOUT, argument, file_or_stdout, option, switch, takes
from minifuse.cli.failures import told
from minifuse.cli.options import Options, refuse_contradictions
from minifuse.cli.plugin import refuse_overwriting
from minifuse.cli.replay import REPLAY, Page, page_of, refuse_overwriting_by_page
from minifuse.cli.requests import Workload, make_workload, note_priorities
from minifuse.cli.spinner import loading
from minifuse.cli.state import STATE, begun, open_state, refuse_overwriting_state, report_unstored
from minifuse.cli.streams import print_result, result_stream, silence
from minifuse.cli.text import first_few, tell
from minifuse.core.errors import UsageError
from minifuse.core.request import FinishReason
from minifuse.ctrl_c import INTERRUPTED
from minifuse.execute.cores import load_on_free_cores
from minifuse.model.source import Source, resolve
from minifuse.serve.build import build_engine
from minifuse.serve.interrupt import uninterrupted
from minifuse.serve.resolve import ResolvedRun, resolve_run
from minifuse.serve.run import Answer, Served, serve
from minifuse.techniques import Technique, mix_for, technique
from minifuse.trace.log import Event
from minifuse.trace.metrics import RunningMetrics

if TYPE_CHECKING:
    from minifuse.serve.conversations import Conversations
    from minifuse.serve.engine import ServingEngine


SCHEMA = "minifuse.run/1"
TRACE = "write every decision and time here, as JSON lines (- is standard output)"
WHY = "show for each iteration which requests it admits, and why each other that waits is not among them"
LIVE = (
    "show lanes and memory on the terminal while it runs; a line every 25 iterations where stderr is a file or a pipe"
)
DEFAULT = {"transformer": "orca", "cells": "cellular"}  # the technique, by kind of model
NAMED = 3  # requests, in a message
FAILED = (FinishReason.REFUSED, FinishReason.INTERRUPTED, FinishReason.NAN)

_stage = partial(option, panel="Technique")


@dataclass(frozen=True)
class RunOptions(Options):
    """The options of `run`: one technique, its stages exchanged at will, its trace."""

    texts: Annotated[list[str], argument("PROMPT", "texts, each in quotes", many=True)]
    state: Annotated[Path | None, STATE]
    technique: Annotated[str | None, _stage("--technique", "see minifuse list: orca, or cellular for cells", "NAME")]
    batching: Annotated[str | None, _stage("--batching", "another batching stage", "NAME")]
    memory: Annotated[str | None, _stage("--memory", "another memory stage", "NAME")]
    attention: Annotated[str | None, _stage("--attention", "another attention stage", "NAME")]
    trace: Annotated[Path | Literal["-"] | None, option("--trace", TRACE, "FILE", panel="Output", parse=file_or_stdout)]
    why: Annotated[bool, switch("--why", WHY, panel="Output")]
    live: Annotated[bool, switch("--live", LIVE, panel="Output")]
    replay: Annotated[Path | None, REPLAY]


@takes(RunOptions)
def run(options: RunOptions) -> int:
    """Serve requests with one technique and show the answers as they finish.

    Without a prompt and without --prompts, synthetic requests are served. With --trace - the answers go to stderr.
    """
    if options.json and options.trace == STDOUT:
        raise UsageError("--json and --trace - are both given, and each fills standard output: give --trace a file.")
    if options.live and options.why:
        raise UsageError("--live and --why are both given, and each fills the error stream: give one of them.")
    if options.live and options.trace == STDOUT:
        raise UsageError(
            "--live and --trace - are both given, and would write into each other on a terminal: give --trace a file."
        )
    if options.replay is not None and options.trace == STDOUT:
        raise UsageError("--replay and --trace - are both given, and a page is made of a file: give --trace a file.")
    source = resolve(options.model)
    row = chosen(options, source.kind, DEFAULT[source.kind])
    if isinstance(options.trace, Path):
        refuse_overwriting(options.trace, options.model, options.prompts)
    refuse_overwriting_by_page(options, [options.trace, options.state])
    refuse_overwriting_state(
        options.state, options.model, options.prompts, options.trace if isinstance(options.trace, Path) else None
    )
    choices = options.choices(row)
    refuse_contradictions(options, source, options.texts)
    workload = make_workload(options, source, options.texts, begun(options.state))
    note_priorities(workload, [choices])
    with loading(source.name):
        resolved = resolve_run(choices, source, replace(options.settings, why=options.why))
    names = [request.conversation for request in workload.requests]
    with open_state(options.state, source, names, not resolved.placeholders) as conversations:
        model = load(resolved)
        with page_of(options.replay, None if options.trace == STDOUT else options.trace) as page:
            return _served(options, page, resolved, workload, model, conversations)


def _served(
    options: RunOptions,
    page: Page,
    resolved: ResolvedRun,
    workload: Workload,
    model: Any,
    conversations: Conversations | None,
) -> int:
    from minifuse.cli.answers import answer_json, note_unevicted, show_groups, show_metrics
    from minifuse.cli.judge import report_wrong
    from minifuse.cli.tables import groups_as_json
    from minifuse.cli.why import WhyLines

    row, source = resolved.row, workload.source
    counted = RunningMetrics()
    failures: list[BaseException] = []
    readers = [counted.read, *([WhyLines().read] if options.why else [])]

    def into(event: Event) -> None:
        for read in readers:
            read(event)

    trace = result_stream() if options.trace == STDOUT else page.trace(row.name)
    engine = build_engine(resolved, model, trace, into=into)
    try:
        served = show_served(
            *(engine, row, workload, not options.json, failures.append),
            live=not options.why,
            lanes=options.live,
            conversations=conversations,
        )
    except BrokenPipeError:
        silence()
        return 1  # the reader went away before the last answer
    metrics = counted.result(options.goodput)
    groups = None if options.by is None else counted.grouped(options.by)
    note_unevicted([(resolved.choices, metrics)])
    shown = page.write([row.name])  # before the metrics, whose reader may close the pipe
    if options.json:
        result = {
            "schema": SCHEMA,
            "technique": row.name,
            "stages": row.stages,
            "model": source.name,
            "outputs": [answer_json(workload, answer) for answer in served.answers],
            "metrics": metrics,
            **({} if groups is None else {"groups": groups_as_json(groups, str(options.by))}),
            **({} if conversations is None else {"not_stored": [*conversations.failures]}),
        }
        print_result(json.dumps(result))
    else:
        show_metrics(workload, served, metrics)
        if groups is not None:
            show_groups(groups, str(options.by), source.kind)
    unstored = report_unstored(conversations)
    if engine.trace.failure:
        tell(f"error: {engine.trace.failure}")
    if failures:  # told here: a broken pipe among them is the plugin's, not that of who reads the answers
        message, code = told(failures[0])
        tell(f"error: {message}")
        return code
    wrong = report_wrong(resolved, workload, served, model)
    return exit_code(served) or int(wrong or bool(engine.trace.failure or unstored) or not shown)


def chosen(options: RunOptions, kind: str, default: str) -> Technique:
    """The technique for this kind of model, with the stages that were exchanged."""
    row = technique(default if options.technique is None else options.technique)
    return mix_for(row, kind, batching=options.batching, memory=options.memory, attention=options.attention)


def load(resolved: ResolvedRun) -> Any:
    """Read the weights and settle on torch's threads; or tell that no weights are needed, and take the outline.

    Raises:
        ModelError: the checkpoint is not what its config.json says.
        MachineError: there is too little memory.
    """
    source = resolved.source
    if resolved.placeholders:
        what = "every token is the placeholder -1" if resolved.outline is None else "nothing is computed"
        tell(f"note: in virtual time no weights are made for {source.name}: {what}.")
        return resolved.outline
    return load_weights(source, resolved.load)


def load_weights(source: Source, load: Callable[[], Any]) -> Any:
    """Call what reads the weights of a model, and settle on torch's threads."""
    with loading(source.name):
        return load_on_free_cores(source.config.num_parameters, load)


def exit_code(served: Served) -> int:
    """That of Ctrl-C; 1 if a request was refused or interrupted, or ended since its logits were not finite; else 0."""
    if not any(answer.finish_reason in FAILED for answer in served.answers):
        return 0
    return INTERRUPTED if served.interrupted else 1


def show_served(
    engine: ServingEngine,
    row: Technique,
    workload: Workload,
    answers: bool,
    on_failure: Callable[[BaseException], None] | None = None,
    live: bool = True,
    conversations: Conversations | None = None,
    lanes: bool = False,
) -> Served:
    """Serve the requests, showing refusals, failures and progress on stderr, and the answers on stdout if wanted.

    `on_failure` and `conversations` are as for `serve`, `live` and `lanes` as for `Display`.
    """
    from minifuse.cli.answers import answer_line
    from minifuse.cli.display import Display

    shown: set[int] = set()
    with Display(f"{row.name} on {workload.source.name}", workload, engine, live, lanes) as display:

        def show(answer: Answer) -> None:
            with uninterrupted():
                if answer.why_refused is not None:
                    display.refused(answer.request, answer.why_refused)
                else:
                    display.answer(answer_line(workload, answer) if answers else None)
                shown.add(id(answer))

        served = serve(engine, workload.requests, show, display.step, on_failure, conversations=conversations)
        for answer in served.answers:  # Ctrl-C may have come just before one was shown
            if id(answer) not in shown:
                show(answer)
    if ended := [answer.request.id for answer in served.answers if answer.finish_reason is FinishReason.NAN]:
        tell(
            f"error: {first_few(ended, NAMED)} ended early, for the logits were NaN or infinite: "
            "choose a --dtype of more range, or look for a defect in the model's weights or in a stage."
        )
    return served

"""`minifuse run`: requests in, answers out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from minifuse.cli.declare import argument, option, switch, takes
from minifuse.cli.failures import told
from minifuse.cli.files import STDOUT, file_or_stdout, refuse_overwriting
from minifuse.cli.options import Options, refuse_contradictions
from minifuse.cli.replay import REPLAY, Page, page_of
from minifuse.cli.requests import Workload, make_workload, note_priorities, note_techniques
from minifuse.cli.state import STATE, begun, open_state, report_unstored
from minifuse.cli.status import loading
from minifuse.cli.streams import print_result, result_stream, silence
from minifuse.cli.text import tell
from minifuse.core.errors import UsageError
from minifuse.core.request import FinishReason
from minifuse.ctrl_c import INTERRUPTED
from minifuse.execute.cores import load_on_free_cores
from minifuse.model.source import Source, resolve
from minifuse.serve.build import build_engine
from minifuse.serve.interrupt import uninterrupted
from minifuse.serve.resolve import ResolvedRun, resolve_run
from minifuse.serve.run import Answer, Served, serve
from minifuse.show.figures import first_few
from minifuse.techniques import Technique, mix_for, technique
from minifuse.trace.log import Event
from minifuse.trace.metrics import read_events
from minifuse.trace.running import RunningMetrics

if TYPE_CHECKING:
    from minifuse.serve.conversations import Conversations
    from minifuse.serve.engine import ServingEngine


SCHEMA = "minifuse.run/1"
TRACE = "write every decision and time here, as JSON lines (- is standard output)"
WHY = "show for each iteration which requests it admits, and why each other that waits is not among them"
LIVE = "draw a lane for each request on the terminal while it runs; elsewhere once, at the end"
DEFAULT = {"transformer": "orca", "cells": "cellular"}  # the default technique, by kind of model
NAMED = 3  # how many requests a message names
FAILED = (FinishReason.REFUSED, FinishReason.INTERRUPTED, FinishReason.NAN)

_stage = partial(option, metavar="NAME", panel="Technique")


@dataclass(frozen=True)
class RunOptions(Options):
    """The options of `run`: the technique, stages to exchange, the trace, and the output."""

    texts: Annotated[Sequence[str], argument("PROMPT", "texts, each in quotes")] = ()
    state: Annotated[Path | None, STATE] = None
    technique: Annotated[str | None, _stage("--technique", "see minifuse list: orca, or cellular for cells")] = None
    batching: Annotated[str | None, _stage("--batching", "another batching stage")] = None
    memory: Annotated[str | None, _stage("--memory", "another memory stage")] = None
    attention: Annotated[str | None, _stage("--attention", "another attention stage")] = None
    trace: Annotated[
        Path | Literal["-"] | None, option("--trace", TRACE, "FILE", panel="Output", parse=file_or_stdout)
    ] = None
    why: Annotated[bool, switch("--why", WHY, panel="Output")] = False
    live: Annotated[bool, switch("--live", LIVE, panel="Output")] = False
    replay: Annotated[Path | None, REPLAY] = None


@takes(RunOptions)
def run(options: RunOptions) -> int:
    """Serve requests with one technique and show the answers as they finish.

    Without a prompt and without --prompts, synthetic requests are served. With --trace - the answers go to stderr.
    """
    to_stdout = options.trace == STDOUT
    if options.live and options.why:
        raise UsageError("--live and --why are both given, and each fills the error stream: give one of them.")
    for flag, given in (("--json", options.json), ("--live", options.live), ("--replay", options.replay)):
        if given and to_stdout:
            raise UsageError(f"{flag} and --trace - are both given: give --trace a file.")
    written = [("--trace", options.trace), ("--state", options.state), ("--replay", options.replay)]
    refuse_overwriting(written, [options.model, options.prompts])
    source = resolve(options.model)
    choices = options.choices(chosen(options, source.kind, DEFAULT[source.kind]))
    note_techniques(options.texts)
    refuse_contradictions(options, source, options.texts)
    workload = make_workload(options, source, options.texts, begun(options.state))
    note_priorities(workload, [choices])
    with loading(source.name):
        resolved = resolve_run(choices, source, replace(options.settings, why=options.why))
    names = [request.conversation for request in workload.requests]
    with open_state(options.state, source, names, not resolved.placeholders) as conversations:
        model = load(resolved)
        with page_of(options.replay, options.trace if isinstance(options.trace, Path) else None) as page:
            return _served(options, page, resolved, workload, model, conversations)


def _served(
    options: RunOptions,
    page: Page,
    resolved: ResolvedRun,
    workload: Workload,
    model: Any,
    conversations: Conversations | None,
) -> int:
    from minifuse.cli.answers import answer_json, note_unevicted, report_wrong, show_groups, show_metrics
    from minifuse.cli.tables import groups_as_json
    from minifuse.cli.why import WhyLines

    row, source = resolved.row, workload.source
    counted = RunningMetrics(options.goodput, options.by)
    failures: list[BaseException] = []
    readers: list[Callable[[Event], None]] = [counted.read]
    if options.why:
        readers.append(WhyLines().read)

    def into(event: Event) -> None:
        for read in readers:
            read(event)

    trace = result_stream() if options.trace == STDOUT else page.trace(row.name)
    engine = build_engine(resolved, model, trace, into=None if options.live else into)  # lanes need kept events
    try:
        served = show_served(
            engine,
            row,
            workload,
            answers=not options.json,
            on_failure=failures.append,
            live=not options.why,
            conversations=conversations,
            lanes=options.live,
        )
    except BrokenPipeError:
        silence()
        return 1  # the reader went away before the last answer
    if options.live:
        counted = read_events(engine.trace.kept(), options.goodput, options.by)
    metrics = counted.result()
    groups = None if options.by is None else counted.groups()
    note_unevicted([(resolved.choices, metrics)])
    shown = page.write([row.name])  # before the metrics: their reader may close the pipe
    if options.json:
        result = {
            "schema": SCHEMA,
            "technique": row.name,
            "stages": row.stages,
            "model": source.name,
            "outputs": [answer_json(workload, answer) for answer in served.answers],
            "metrics": metrics,
            **groups_as_json(groups, options.by),
            **({} if conversations is None else {"not_stored": [*conversations.failures]}),
        }
        print_result(json.dumps(result))
    else:
        show_metrics(workload, served, metrics)
        show_groups(groups, options.by, source.kind)
    unstored = report_unstored(conversations)
    if engine.trace.failure:
        tell(f"error: {engine.trace.failure}")
    if failures:  # reported here: a BrokenPipeError among them comes from a plugin, not from the reader of the answers
        message, code = told(failures[0])
        tell(f"error: {message}")
        return code
    wrong = report_wrong(resolved, workload, served, model)
    return exit_code(served) or int(wrong or bool(engine.trace.failure or unstored) or not shown)


def chosen(options: RunOptions, kind: str, default: str) -> Technique:
    """Return the technique for this kind of model, with the stages that the options exchange."""
    row = technique(default if options.technique is None else options.technique)
    return mix_for(row, kind, batching=options.batching, memory=options.memory, attention=options.attention)


def load(resolved: ResolvedRun) -> Any:
    """Load the model; if no weights are needed, say so and return its outline.

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
    """Load a model by calling `load`, and choose torch's number of threads."""
    with loading(source.name):
        return load_on_free_cores(source.config.num_parameters, load)


def exit_code(served: Served) -> int:
    """Return 130 after Ctrl-C, 1 if a request failed, else 0."""
    if not any(answer.finish_reason in FAILED for answer in served.answers):
        return 0
    return INTERRUPTED if served.interrupted else 1


def show_served(
    engine: ServingEngine,
    row: Technique,
    workload: Workload,
    *,
    answers: bool,
    on_failure: Callable[[BaseException], None] | None = None,
    live: bool = True,
    conversations: Conversations | None = None,
    lanes: bool = False,
) -> Served:
    """Serve the requests; show progress and failures on stderr, answers on stdout.

    `on_failure` and `conversations` are passed to `serve`, `live` and `lanes` to `Display`.
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
        for answer in served.answers:  # Ctrl-C may have come just before an answer was shown
            if id(answer) not in shown:
                show(answer)
    if ended := [answer.request.id for answer in served.answers if answer.finish_reason is FinishReason.NAN]:
        tell(
            f"error: {first_few(ended, NAMED)} ended early, for the logits were NaN or infinite: "
            "choose a --dtype of more range, or look for a defect in the model's weights or in a stage."
        )
    return served

"""Shows answers as lines and as JSON, and the metrics of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table
from rich.text import Text

from minifuse.cli.requests import Workload
from minifuse.cli.tables import by_group, metric_rows
from minifuse.cli.text import console, counted, tell
from minifuse.contracts.fault import is_own
from minifuse.core.errors import one_line, shortened
from minifuse.core.request import FinishReason
from minifuse.model.cells.config import BUILT_IN
from minifuse.serve.assembly import Choices
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import ResolvedRun, resolve_run
from minifuse.serve.run import Answer, Served, serve
from minifuse.show.figures import first_few
from minifuse.stages import stage
from minifuse.techniques import technique
from minifuse.trace.ended import Metrics
from minifuse.trace.running import Groups

PLACEHOLDER = -1
PROMPT_WIDTH = 36
SHOWN = 3  # how many numbers of a result, and results of a graph, are shown
NAMED = 8  # how many wrong answers are named


def answer_line(workload: Workload, answer: Answer) -> Text:
    """Write an answer as `r3 [length, wrong: expected 42] add 17 and 25 -> 43`.

    A graph of cells without tokens shows its first numbers: `r3: h = 0.0123 -0.2310 0.0088 ... (1024 numbers)`.
    """
    line = Text(one_line(answer.request.id), style="bold")
    marks = [] if answer.finish_reason is FinishReason.STOP else [Text(answer.finish_reason.value, "yellow")]
    right = is_right(workload, answer)
    if right is not None:
        expected = workload.expected[answer.request.id]
        marks.append(Text("right", "green") if right else Text(f"wrong: expected {expected}", "red"))
    if marks:
        line = Text.assemble(line, " [", Text(", ").join(marks), "]")
    if workload.source.kind == "cells" and not answer.token_ids:
        return Text.assemble(line, ": ", _results(workload, answer))
    prompt = shortened(_tokens(workload, answer.new_prompt), PROMPT_WIDTH)
    return Text.assemble(line, " ", (prompt, "dim"), " -> ", _tokens(workload, answer.token_ids))


def _tokens(workload: Workload, token_ids: Sequence[int]) -> str:
    if token_ids and set(token_ids) == {PLACEHOLDER}:
        return f"{PLACEHOLDER} x{len(token_ids)}"
    text = workload.text(token_ids)
    return " ".join(map(str, token_ids)) if text is None else one_line(text.strip())


def _results(workload: Workload, answer: Answer) -> str:
    if not answer.results:
        return "not computed"
    name = "h" if workload.source.config.kind in BUILT_IN else "output"
    shown = []
    for node, (first, *_) in sorted(answer.results.items())[:SHOWN]:
        numbers = first.flatten()
        some = " ".join(f"{number:.4f}" for number in numbers[:SHOWN].tolist())
        rest = f" ... ({len(numbers)} numbers)" if len(numbers) > SHOWN else ""
        shown.append((f"node {node}: " if len(answer.results) > 1 else "") + f"{name} = {some}{rest}")
    if len(answer.results) > SHOWN:
        shown.append(f"and {len(answer.results) - SHOWN} more nodes")
    return "; ".join(shown)


def is_right(workload: Workload, answer: Answer) -> bool | None:
    """Return whether a task was solved; None without a task or complete answer."""
    expected = workload.expected.get(answer.request.id)
    if expected is None or not answer.complete:
        return None
    return (workload.text(answer.token_ids) or "").strip() == expected


def answer_json(workload: Workload, answer: Answer) -> dict[str, Any]:
    """Return an answer as an item of `outputs` in --json."""
    output: dict[str, Any] = {
        **answer.row(),
        "prompt_token_ids": list(answer.new_prompt),
        "token_ids": list(answer.token_ids),
        "text": workload.text(answer.token_ids),
    }
    if workload.source.kind == "cells":
        output["results"] = [
            {"node": node, "outputs": [part.tolist() for part in outputs]}
            for node, outputs in sorted(answer.results.items())
        ]
    return output if answer.why_refused is None else {**output, "error": answer.why_refused}


def note_unevicted(served: Iterable[tuple[Choices, Metrics]]) -> None:
    """Say on stderr which stage options changed nothing because no request was evicted."""
    idle: dict[str, None] = {}
    for choices, metrics in served:
        of_evictions = {option["name"] for option in choices.row.described_options() if option["of_evictions"]}
        if given := of_evictions & set(choices.given):
            if metrics["evictions"]:
                return
            idle |= dict.fromkeys(sorted(given))
    if idle:
        tell(
            f"note: no request was evicted, so {' and '.join(idle)} changed nothing: lower --kv-memory, or choose a "
            "batching that evicts, such as prefill_first."
        )


def show_metrics(workload: Workload, served: Served, metrics: Metrics) -> None:
    """Print the metrics of a run on stderr, unless nothing was served."""
    if not metrics["iterations"] and metrics["requests"]["total"]:
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    unit = counted(workload.requests)
    if unit == "prompts":  # these metrics are per prompt: they must not be read as metrics of whole requests
        table.add_row("Requests", f"{workload.num_requests:,}")
    for label, value in metric_rows(metrics):
        table.add_row(
            Text(label.replace("Requests", unit.capitalize())), Text(value.replace("requests/s", f"{unit}/s"))
        )
    judged = [right for answer in served.answers if (right := is_right(workload, answer)) is not None]
    if judged:
        table.add_row("Answers right", f"{sum(judged)} of {len(judged)}")
    console(stderr=True).print(table)


def show_groups(groups: Groups | None, by: str | None, kind: str) -> None:
    """Print the latencies of each group of a run on stderr, if `by` is given."""
    if groups is not None and by is not None:
        out = console(stderr=True)
        out.print("", *by_group({"": groups}, by, kind, out.width), sep="\n")


def report_wrong(resolved: ResolvedRun, workload: Workload, served: Served, model: Any) -> bool:
    """Say on stderr which greedy answers a plugin's stages made wrong.

    Returns whether there are any. The model makes mistakes, too: a wrong answer counts only if the technique `naive`
    gives another answer.
    """
    own = [f"{kind} {name!r}" for kind, name in resolved.row.stages.items() if not is_own(stage(kind, name))]
    wrong = {a.request.id: a for a in served.answers if is_right(workload, a) is False and a.request.sampling.greedy}
    if not own or not wrong:
        return False
    again = [replace(answer.request, arrival_s=0.0, group=None) for answer in wrong.values()]
    naive = resolve_run(technique("naive"), workload.source, replace(resolved.settings, stage_options={}))
    alone = serve(build_engine(naive, model), again).whole().answers
    faults = [answer.request.id for answer in alone if answer.token_ids != wrong[answer.request.id].token_ids]
    if faults:
        text = (
            f"error: {len(faults)} of {len(served.answers)} answers are wrong, and naive answers otherwise "
            f"({first_few(faults, NAMED)}): "
            f"correct the {' or the '.join(own)}; its laws say what is wrong: minifuse check."
        )
        console(stderr=True).print(Text(one_line(text), "bold red"), soft_wrap=True)
    return bool(faults)

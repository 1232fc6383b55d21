"""Answers as lines and as JSON, and the metrics of a run beneath them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from minifuse.cli.requests import Workload
from minifuse.cli.tables import by_group, metric_rows
from minifuse.cli.text import console, counted, tell
from minifuse.core.errors import one_line, shortened
from minifuse.core.request import FinishReason
from minifuse.model.cells.config import BUILT_IN
from minifuse.serve.assembly import Choices
from minifuse.serve.run import Answer, Served
from minifuse.trace.metrics import Groups, Metrics

PLACEHOLDER = -1
PROMPT_WIDTH = 36
SHOWN = 3  # numbers of a result, and results of a graph


def answer_line(workload: Workload, answer: Answer) -> Text:
    """`r3 [length, wrong: expected 42] add 17 and 25 -> 43`; of several prompts each has a line, `r3/0`, `r3/1`, ...

    A graph of cells that produces no tokens: `r3: h = 0.0123 -0.2310 0.0088 ... (1024 numbers)`, the beginning of the
    first output of its result.
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
    """Whether a task was solved; None for a request that is no task, or was not answered to its end."""
    expected = workload.expected.get(answer.request.id)
    if expected is None or not answer.complete:
        return None
    return (workload.text(answer.token_ids) or "").strip() == expected


def answer_json(workload: Workload, answer: Answer) -> dict[str, Any]:
    """An answer as an object of `outputs`."""
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
    """Say once, on stderr, which stage options changed nothing because no request was evicted.

    Args:
        served: the techniques, each with the metrics of its run.
    """
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
    """Print the metrics of a run on stderr; of one in which nothing was served there are none."""
    if not metrics["iterations"] and metrics["requests"]["total"]:
        return
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    unit = counted(workload.requests)
    if unit == "prompts":  # the metrics are those of each prompt: they must not be taken for those of whole requests
        table.add_row("Requests", f"{workload.num_requests:,}")
    for label, value in metric_rows(metrics):
        table.add_row(
            Text(label.replace("Requests", unit.capitalize())), Text(value.replace("requests/s", f"{unit}/s"))
        )
    judged = [right for answer in served.answers if (right := is_right(workload, answer)) is not None]
    if judged:
        table.add_row("Answers right", f"{sum(judged)} of {len(judged)}")
    console(stderr=True).print(table)


def show_groups(groups: Groups, by: str, kind: str) -> None:
    """Print the latencies of each user, priority or conversation of a run on stderr."""
    out = console(stderr=True)
    out.print("", *by_group({"": groups}, by, kind, out.width), sep="\n")

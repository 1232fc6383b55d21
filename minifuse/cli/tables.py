"""Shows metrics as tables: of one run, or of several techniques side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from rich.table import Table

from minifuse.core.errors import one_line, shortened
from minifuse.core.request import FinishReason
from minifuse.execute.cores import usable_cores
from minifuse.show.figures import in_bytes, in_time, plain
from minifuse.show.summary import LABEL_WIDTH
from minifuse.trace.ended import Metrics
from minifuse.trace.metrics import flat_metrics
from minifuse.trace.running import Groups

BUSY = 0.25  # tables mention cores used by other processes from this number on


def metric_rows(metrics: Metrics) -> list[tuple[str, str]]:
    """Return the most important metrics as pairs (label, value)."""
    requests, tokens, kv, goodput = (metrics[name] for name in ("requests", "tokens", "kv", "goodput"))
    reasons = [f"{requests[reason.value]} {reason.value}" for reason in FinishReason if requests[reason.value]]
    moves = [
        f"{moved['count']:,} {kind} ({_amount(moved, '')})"
        for kind, moved in metrics["moves"].items()
        if moved["count"]
    ]
    speed = metrics["throughput"]
    unit, state = ("Nodes", "States") if metrics["nodes"] else ("Tokens", "KV")
    table = [
        ("Requests", f"{requests['total']:,}" + (f": {', '.join(reasons)}" if reasons else "")),
        ("Duration", in_time(metrics["duration_s"])),
        (
            "Throughput",
            (f"{plain(speed['tokens_per_s'])} tokens/s, " if tokens["output"] or not metrics["nodes"] else "")
            + f"{plain(speed['requests_per_s'])} requests/s",
        ),
        ("Time to first token (p50, p99)", _times(metrics["ttft_s"], "p50", "p99")),
        ("Time per output token (p50, p99)", _times(metrics["tpot_s"], "p50", "p99")),
        ("Inter-token latency (p50, p99)", _times(metrics["itl_s"], "p50", "p99")),
        ("Latency bound", in_time(metrics["latency_bound_s"])),
        ("End-to-end time (p50, p99)", _times(metrics["e2e_s"], "p50", "p99")),
        ("Normalized latency (mean, p90)", _times(metrics["normalized_latency_s"], "mean", "p90")),
        ("Queueing (mean, p99)", _times(metrics["queueing_s"], "mean", "p99")),
        ("Computing (mean, p99)", _times(metrics["computing_s"], "mean", "p99")),
        (
            "Iterations",
            f"{metrics['iterations']:,} (mean batch size {plain(metrics['mean_batch_size'])})"
            + (f", and {metrics['preprocessing_steps']:,} of pre-processing" if metrics["preprocessing_steps"] else ""),
        ),
        (f"{unit} computed", f"{tokens['computed']:,} ({tokens['recomputed']:,} recomputed)"),
        *([(f"{unit} found in memory", f"{tokens['reused']:,}")] if tokens["reused"] else []),
        (f"Idle {unit.lower()}", f"{tokens['idle']:,}" + (f" ({tokens['idle_share']:.1%})" if tokens["idle"] else "")),
        (f"{state} in use (peak, mean)", f"{_amount(kv, 'peak_used_')}, {_amount(kv, 'mean_used_')}"),
        (f"{state} reserved (peak)", f"{_amount(kv, 'peak_reserved_')} of {_amount(kv, 'capacity_')}"),
        (
            "KV moves",
            ", ".join(moves) + (f" in {in_time(metrics['moving_s'])}" if metrics["moving_s"] else "")
            if moves
            else "none",
        ),
    ]
    if metrics["nodes"]:  # leaves out rows that do not apply to cell graphs
        table = [(label, value) for label, value in table if not value.startswith("-") and label != "KV moves"]
    sent = metrics["transfers"]
    if sent["to_host"]["bytes"] or sent["to_device"]["bytes"]:
        ways = f"{_amount(sent['to_host'], '')} to the host, {_amount(sent['to_device'], '')} to the device"
        table.append(
            ("Transfers", f"{ways} ({in_time(sent['hidden_s'])} hidden, {in_time(sent['exposed_s'])} exposed)")
        )
    if (on_host := metrics["on_host"])["seconds"]:
        told = (
            f"{in_time(on_host['seconds'])}; the device waited {in_time(on_host['awaited_s'])} for it and its transfers"
        )
        table.append(("Attention on the host", told))
    if metrics["gathers"]["count"]:
        done = metrics["gathers"]
        table.append(("Gathers", f"{done['count']:,} ({done['rows']:,} rows) in {in_time(done['seconds'])}"))
    if metrics["discarded"]:
        table.append(("Discarded", f"{metrics['discarded']:,} {unit.lower()}, computed past an end not known yet"))
    if (history := metrics["history"])["tokens"]:
        rates = f"{history['device_hit_rate']:.1%} on the device, {history['host_hit_rate']:.1%} on the host"
        table.append(("History found in memory", f"{rates}, of {history['tokens']:,} tokens"))
    if metrics["evictions"]:
        table.append(("Evictions", f"{metrics['evictions']:,} (at most {_amount(kv, 'peak_host_')} on the host)"))
    if metrics["most_overtaken"]:
        table.append(("Overtaken (one request, at most)", f"by {metrics['most_overtaken']:,}"))
    if metrics["messages"]["count"]:
        sent = metrics["messages"]
        table.append(("Messages of each rank", f"{sent['count']:,} ({_amount(sent, '')})"))
    if is_busy(metrics):
        other = f"{plain(metrics['other_cores'])} of {len(usable_cores())} cores"
        table.append(("Busy machine", f"other processes used {other}, so these times compare with no others"))
    if goodput is not None:
        bounds = ", ".join(f"{name} <= {in_time(limit)}" for name, limit in goodput["bounds_s"].items())
        table.append((f"Goodput ({bounds})", f"{plain(goodput['requests_per_s'])} requests/s"))
    return table


def is_busy(metrics: Metrics) -> bool:
    """Return whether other processes used too much of the machine for times to be reliable."""
    return (metrics["other_cores"] or 0.0) >= BUSY


def _times(values: dict[str, float] | None, first: str, second: str) -> str:
    return f"{in_time(values[first])}, {in_time(values[second])}" if values else "-"


def _amount(found: Mapping[str, float | None], prefix: str) -> str:
    """Write bytes if they are known, else tokens."""
    size = found[f"{prefix}bytes"]
    return plain(found[f"{prefix}tokens"], " tokens") if size is None else in_bytes(size)


Column = tuple[str, str, float]  # the column's head, the path of the metric, and a factor


def _median_and_tail(head: str, name: str) -> tuple[Column, Column]:
    return (f"{head}\np50", f"{name}.p50", 1e3), (f"{head}\np99", f"{name}.p99", 1e3)


# The columns of `comparison` and of `by_group`, by kind of model.
COLUMNS: dict[str, tuple[Column, ...]] = {
    "transformer": (
        ("tokens\n/s", "throughput.tokens_per_s", 1),
        *_median_and_tail("TTFT", "ttft_s"),
        *_median_and_tail("TPOT", "tpot_s"),
        ("ITL\np99", "itl_s.p99", 1e3),
        ("norm.\nmean", "normalized_latency_s.mean", 1e3),
        ("iter-\nations", "iterations", 1),
        ("idle\n%", "tokens.idle_share", 100),
        ("mean\nbatch", "mean_batch_size", 1),
        ("KV\nMiB", "kv.peak_used_bytes", 2**-20),
    ),
    "cells": (
        ("req.\n/s", "throughput.requests_per_s", 1),
        *_median_and_tail("e2e", "e2e_s"),
        *_median_and_tail("queue", "queueing_s"),
        ("batch-\nes", "iterations", 1),
        ("idle\n%", "tokens.idle_share", 100),
        ("mean\nbatch", "mean_batch_size", 1),
        ("gath-\ners", "gathers.count", 1),
        ("states\nMiB", "kv.peak_used_bytes", 2**-20),
    ),
}
GROUP_COLUMNS: dict[str, tuple[Column, ...]] = {
    "transformer": (
        ("requ-\nests", "requests", 1),
        ("new\ntokens", "output_tokens", 1),
        *_median_and_tail("TTFT", "ttft_s"),
        *_median_and_tail("ITL", "itl_s"),
        *_median_and_tail("queue", "queueing_s"),
        *_median_and_tail("norm.", "normalized_latency_s"),
    ),
    "cells": (
        ("requ-\nests", "requests", 1),
        *_median_and_tail("e2e", "e2e_s"),
        *_median_and_tail("queue", "queueing_s"),
    ),
}
LEGEND = {
    "transformer": "TTFT, TPOT, ITL, norm. (end-to-end time per output token): ms; KV: peak in use;\n"
    "differ: answers unlike those of the first row.",
    "cells": "e2e (end-to-end time), queue (arrival to first start): ms; states: peak in use;\n"
    "differ: answers or results unlike those of the first row.",
}


def comparison(rows: Iterable[tuple[str, Metrics, int | None]], kind: str, width: int) -> list[Table]:
    """Make a line for each technique: name, metrics, differing answers.

    Args:
        rows: per technique its name, its metrics, and its number of differing answers (None if they cannot differ).
        kind: the kind of the model.
        width: the width of a line, in characters.
    """
    heads = ["\ntechnique", *_heads(COLUMNS[kind]), "dif-\nfer"]
    cells = [
        [name, *_figures(metrics, COLUMNS[kind]), "-" if differing is None else str(differing)]
        for name, metrics, differing in rows
    ]
    return cut_to(width, heads, cells)


def sweep_tables(rows: Iterable[tuple[str, Metrics]], kind: str, width: int) -> list[Table]:
    """Make a line for each run of a sweep: its label, and its metrics."""
    cells = [[label, *_figures(metrics, COLUMNS[kind])] for label, metrics in rows]
    return cut_to(width, ["\nrun", *_heads(COLUMNS[kind])], cells)


GROUP_LEGEND = {
    "transformer": "TTFT, ITL (between two tokens), queue (arrival to first start), norm.: ms.",
    "cells": "e2e, queue (arrival to first start): ms.",
}
MOST_GROUPS = 20  # columns that are shown


def by_group(runs: Mapping[str, Groups], by: str, kind: str, width: int) -> list[Table | str]:
    """Make a line for each group of each run, and a legend.

    Args:
        runs: technique -> its groups; the name of a single run is "".
        by: what the groups are: "user", "priority" or "conversation".
        kind: the kind of the model.
        width: the width of a line, in characters.
    """
    head = f"\ntechnique, {by}" if "" not in runs else f"\n{by}"
    lines = []
    for technique, groups in runs.items():
        for name, metrics in islice(groups.items(), MOST_GROUPS):
            label = "-" if name is None else shortened(one_line(str(name)), LABEL_WIDTH)
            lines.append([f"{technique} {label}".strip(), *_figures(metrics, GROUP_COLUMNS[kind])])
    tables = cut_to(width, [head, *_heads(GROUP_COLUMNS[kind])], lines)
    left = max(map(len, runs.values()), default=0) - MOST_GROUPS
    more = f" {left:,} more are left out: --json has all." if left > 0 else ""
    return [*tables, f"{GROUP_LEGEND[kind]}{more}"]


def groups_as_json(groups: Groups | None, by: str | None) -> dict[str, Any]:
    """Return {"groups": ...}, each group with its name under `by`; {} without groups."""
    return {} if groups is None else {"groups": [{str(by): name, **metrics} for name, metrics in groups.items()]}


def cut_to(width: int, heads: Sequence[str], rows: Sequence[Sequence[str]], named: bool = True) -> list[Table]:
    """Cut a wide table between columns into narrow ones, each with the first column.

    Args:
        heads: column heads of two lines each; if neighbours share the first line, it is shown once.
        named: whether the first column has names, not numbers.

    >>> [len(table.columns) for table in cut_to(9, ["\\na", "\\nb", "\\nc"], [["one", "2.5", "3.5"]])]
    [2, 2]
    """
    wide = [max(map(len, (*head.split("\n"), *(row[i] for row in rows)))) for i, head in enumerate(heads)]
    pieces: list[list[int]] = [[]]
    used = wide[0]
    for i in range(1, len(heads)):
        used += 1 + wide[i]
        if used > width and pieces[-1]:
            pieces.append([])
            used = wide[0] + 1 + wide[i]
        pieces[-1].append(i)
    return [_piece(heads, rows, (0, *piece), named) for piece in pieces]


def _piece(heads: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int], named: bool) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    before = ""
    for i in columns:
        first, _, second = heads[i].partition("\n")
        shown = f"{'' if first == before else first}\n{second}"
        name = named and i == 0
        table.add_column(shown, justify="left" if name else "right", style="bold" if name else "", no_wrap=True)
        before = first
    for row in rows:
        table.add_row(*(row[i] for i in columns))
    return table


def _heads(columns: Sequence[Column]) -> list[str]:
    return [head for head, _, _ in columns]


def _figures(metrics: Metrics, columns: Sequence[Column]) -> list[str]:
    """Write the metrics of these columns, with a dash for each missing metric."""
    flat = flat_metrics(metrics)
    return [_number(flat.get(path), factor) for _, path, factor in columns]


def _number(value: float | None, factor: float) -> str:
    """Write a number with three digits, or more if its whole part has more."""
    if value is None:
        return "-"
    value *= factor
    return f"{value:.0f}" if value >= 99.95 or value == 0 else f"{value:.3g}" if value >= 1 else f"{value:.2f}"

"""What several techniques made of the same requests, in one table."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from minifuse.metrics import Metrics

__all__ = ["CELL_LEGEND", "LEGEND", "comparison"]

COLUMNS = (
    *("tokens\n/s", "TTFT\np50", "ms\np99", "TPOT\np50", "ms\np99", "norm.\nms"),
    *("iter-\nations", "idle\n%", "mean\nbatch", "KV\nMiB", "dif-\nfer"),
)
LEGEND = (
    "norm.: mean end-to-end time per output token; KV: peak in use;\ndiffer: answers unlike those of the first row."
)
CELL_COLUMNS = (
    *("req.\n/s", "e2e\np50", "ms\np99", "queue\np50", "ms\np99", "batch-\nes"),
    *("idle\n%", "mean\nbatch", "gath-\ners", "states\nMiB", "dif-\nfer"),
)
CELL_LEGEND = (
    "e2e: end-to-end time; queue: arrival to first start; states: peak in use;\n"
    "differ: answers or results unlike those of the first row."
)


def comparison(rows: Iterable[tuple[str, Metrics, int | None]], of_cells: bool) -> Table:
    """A line for each technique: its name, its metrics, and how many answers differ, None where it means nothing."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("\ntechnique", style="bold", no_wrap=True)
    for column in CELL_COLUMNS if of_cells else COLUMNS:
        table.add_column(column, justify="right", overflow="fold")
    for name, metrics, differing in rows:
        figures = _of_cells(metrics) if of_cells else _of_texts(metrics)
        table.add_row(name, *figures, "-" if differing is None else str(differing))
    return table


def _of_texts(metrics: Metrics) -> list[str]:
    ttft, tpot, normalized = (metrics[name] or {} for name in ("ttft_s", "tpot_s", "normalized_latency_s"))
    return [
        _number(metrics["throughput"]["tokens_per_s"]),
        _number(ttft.get("p50"), 1e3),
        _number(ttft.get("p99"), 1e3),
        _number(tpot.get("p50"), 1e3),
        _number(tpot.get("p99"), 1e3),
        _number(normalized.get("mean"), 1e3),
        str(metrics["iterations"]),
        _number(metrics["tokens"]["idle_share"], 100),
        _number(metrics["mean_batch_size"]),
        _number(metrics["kv"]["peak_used_bytes"], 2**-20),
    ]


def _of_cells(metrics: Metrics) -> list[str]:
    e2e, queueing = (metrics[name] or {} for name in ("e2e_s", "queueing_s"))
    return [
        _number(metrics["throughput"]["requests_per_s"]),
        _number(e2e.get("p50"), 1e3),
        _number(e2e.get("p99"), 1e3),
        _number(queueing.get("p50"), 1e3),
        _number(queueing.get("p99"), 1e3),
        str(metrics["iterations"]),
        _number(metrics["tokens"]["idle_share"], 100),
        _number(metrics["mean_batch_size"]),
        str(metrics["gathers"]["count"]),
        _number(metrics["kv"]["peak_used_bytes"], 2**-20),
    ]


def _number(value: float | None, factor: float = 1.0) -> str:
    """Three digits, or all of a larger whole part."""
    if value is None:
        return "-"
    value *= factor
    return f"{value:.0f}" if value >= 99.95 or value == 0 else f"{value:.3g}" if value >= 1 else f"{value:.2f}"

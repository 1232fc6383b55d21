"""Rows: the metrics of a run as one flat dict, and rows as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from minifuse.core.errors import MachineError

__all__ = ["flat_metrics", "to_frame"]


def flat_metrics(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested metrics as one dict, a row of a sweep's table.

    >>> flat_metrics({"ttft_s": {"p50": 0.25, "max": 1.0}, "iterations": 7, "itl_s": None})
    {'ttft_s.p50': 0.25, 'ttft_s.max': 1.0, 'iterations': 7, 'itl_s': None}
    """
    row: dict[str, Any] = {}
    for name, value in metrics.items():
        row |= flat_metrics(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return row


def to_frame(rows: Iterable[Mapping[str, Any]]) -> Any:
    """A pandas DataFrame of these rows.

    Raises:
        MachineError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise MachineError(
            "to_frame() makes a pandas DataFrame, and pandas is not installed: pip install pandas, or use rows()."
        ) from None
    return pandas.DataFrame([dict(row) for row in rows])

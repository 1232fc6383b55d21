"""Runs every point of a grid, and keeps a row for each in CSV.

    def measure(technique, rate):
        ...  # build an engine, serve
        return minifuse.flat_metrics(metrics)

    table = minifuse.sweep(measure, {"technique": ["orca", "vllm"], "rate": [1.0, 2.0]}, "sweep.csv")

Rows are in the order of the grid.
"""

from __future__ import annotations

import csv
import io
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from minifuse.core.errors import MinifuseError, UsageError
from minifuse.io.output import write_whole

Values = dict[str, Any]  # one value of each axis
Row = dict[str, Any]  # a point's values, and its metrics or its error
POINT, ERROR = "point", "error"


def sweep(
    run: Callable[..., Mapping[str, Any]],
    grid: Mapping[str, Sequence[Any]],
    out: str | Path | None = None,
    *,
    processes: int = 1,
    begin: Callable[[], None] | None = None,
    on_row: Callable[[Row, int], None] = lambda row, left: None,
) -> list[Row]:
    """Run every point of a grid, and return a row for each.

    Args:
        run: is called with a point's values by name, and returns its metrics. A `MinifuseError` is kept in the row, as
            `error`, and the other points go on.
        grid: the values of each axis.
        out: a CSV file, written anew after each run. Points that it already holds are not run again, unless they have
            an error; its other points stay.
        processes: how many processes run points. With more than one, `run` and the values must be picklable.
        begin: is called in each new process before its first point.
        on_row: is called with each row of this call as it is made, and the number of runs that are left.

    Raises:
        UsageError: the file is not a table of a sweep, or cannot be written.
    """
    kept = {} if out is None else _read(Path(out))
    points = {_name(values): values for values in points_of(grid)}
    rows = {name: {**kept[name], **points[name]} for name in points if name in kept and not kept[name].get(ERROR)}
    left = [(name, values) for name, values in points.items() if name not in rows]
    outcomes = _run_all(partial(_outcome, run), left, processes, begin)
    for done, (name, found) in enumerate(outcomes, start=1):
        rows[name] = {**points[name], **found}
        if out is not None:
            kept[name] = rows[name]
            write_whole(Path(out), _written(kept))
        on_row(rows[name], len(left) - done)
    return [rows[name] for name in points]


def points_of(grid: Mapping[str, Sequence[Any]]) -> list[Values]:
    """List the points of a grid; the last axis changes fastest.

    >>> points_of({"technique": ["orca", "vllm"], "rate": [1, 2]})[:2]
    [{'technique': 'orca', 'rate': 1}, {'technique': 'orca', 'rate': 2}]
    """
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _name(values: Values) -> str:
    """Name a point by its values.

    >>> _name({"technique": "orca", "rate": 2.0})
    'technique=orca rate=2.0'
    """
    return " ".join(f"{axis}={value}" for axis, value in values.items())


def _outcome(run: Callable[..., Mapping[str, Any]], point: tuple[str, Values]) -> tuple[str, Row]:
    """Return a point's name, and its metrics or its error."""
    name, values = point
    try:
        return name, dict(run(**values))
    except MinifuseError as error:
        return name, {ERROR: str(error)}


def _run_all(
    one: Callable[[tuple[str, Values]], tuple[str, Row]],
    points: list[tuple[str, Values]],
    processes: int,
    begin: Callable[[], None] | None,
) -> Iterator[tuple[str, Row]]:
    """Yield outcomes as they come; leaving the loop ends the processes."""
    if processes == 1 or not points:
        yield from map(one, points)
        return
    # A forked process would inherit the locks of threads that it lacks.
    with multiprocessing.get_context("spawn").Pool(min(processes, len(points)), begin) as pool:
        yield from pool.imap_unordered(one, points)


def _written(rows: Mapping[str, Row]) -> str:
    """Write rows as CSV: the point's name, then every column that a row has."""
    columns = dict.fromkeys(column for row in rows.values() for column in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, [POINT, *columns], lineterminator="\n")
    writer.writeheader()
    writer.writerows({POINT: name, **row} for name, row in rows.items())
    return text.getvalue()


def _read(path: Path) -> dict[str, Row]:
    """Read the rows of a file by point; a missing file has none.

    Raises:
        UsageError: the file is not a table of a sweep.
    """
    wrong = UsageError(f"{path} is not a table of minifuse sweep: give another file, which need not exist.")
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        lines = list(csv.DictReader(io.StringIO(text), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error):
        raise wrong from None
    if any(POINT not in line or None in line or None in line.values() for line in lines) or (text and not lines):
        raise wrong
    return {line.pop(POINT): {column: _value(cell) for column, cell in line.items()} for line in lines}


def _value(cell: str) -> Any:
    """Read a cell: a number, a text, or None.

    >>> [_value(cell) for cell in ("3", "0.5", "orca", "")]
    [3, 0.5, 'orca', None]
    """
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell or None

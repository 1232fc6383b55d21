"""Sweeps: every point of a grid once, rows kept in a file, in one process or several."""

import csv
import os
from pathlib import Path
from typing import Any

import pytest

import minifuse
from minifuse.core.errors import UsageError

GRID = {"technique": ["orca", "vllm"], "rate": [1.0, 2.5]}


def measured(technique: str, rate: float) -> dict[str, Any]:
    if technique == "vllm" and rate > 2:
        raise UsageError("too fast")
    return {"process": os.getpid(), "tokens.per_s": rate / 3, "itl_s": None} | ({"waits": 7} if rate > 2 else {})


def test_a_row_for_each_point_in_the_order_of_the_grid() -> None:
    told: list[Any] = []
    rows = minifuse.sweep(measured, GRID, on_row=lambda row, left: told.append((row, left)))
    assert [(row["technique"], row["rate"]) for row in rows] == [
        ("orca", 1.0),
        ("orca", 2.5),
        ("vllm", 1.0),
        ("vllm", 2.5),
    ]
    assert [row.get("tokens.per_s") for row in rows] == [1 / 3, 2.5 / 3, 1 / 3, None]
    assert rows[3] == {"technique": "vllm", "rate": 2.5, "error": "too fast"}
    assert told == list(zip(rows, (3, 2, 1, 0), strict=True))


def test_points_in_the_file_are_not_run_again(tmp_path: Path) -> None:
    out = tmp_path / "sweep.csv"
    whole = minifuse.sweep(measured, GRID, out)
    ran: list[tuple[str, float]] = []

    def again(technique: str, rate: float) -> dict[str, Any]:
        ran.append((technique, rate))
        return {"tokens.per_s": 9.0}

    larger = {**GRID, "rate": [1.0, 2.5, 4.0]}
    rows = minifuse.sweep(again, larger, str(out))
    assert ran == [("orca", 4.0), ("vllm", 2.5), ("vllm", 4.0)]  # a point with an error runs again
    assert [row["tokens.per_s"] for row in rows] == [1 / 3, 2.5 / 3, 9.0, 1 / 3, 9.0, 9.0]
    assert rows[:2] == [{**whole[0], "waits": None, "error": None}, {**whole[1], "error": None}]
    lines = list(csv.DictReader(out.open()))
    assert [line["point"] for line in lines][:2] == ["technique=orca rate=1.0", "technique=orca rate=2.5"]
    assert len(lines) == 6
    minifuse.sweep(again, {"technique": ["fluid"], "rate": [1.0]}, out)
    assert len(list(csv.DictReader(out.open()))) == 7  # the points of other grids stay


def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "sweep.csv"

    def interrupted(technique: str, rate: float) -> dict[str, Any]:
        if rate == 2.5:
            raise KeyboardInterrupt
        return {"tokens": 1}

    with pytest.raises(KeyboardInterrupt):
        minifuse.sweep(interrupted, GRID, out)
    assert out.read_text() == "point,technique,rate,tokens\ntechnique=orca rate=1.0,orca,1.0,1\n"


def test_processes_give_the_same_rows(tmp_path: Path) -> None:
    alone = minifuse.sweep(measured, GRID, tmp_path / "alone.csv")
    rows = minifuse.sweep(measured, GRID, tmp_path / "several.csv", processes=2)
    assert os.getpid() not in {row.get("process") for row in rows}
    assert [{**row, "process": 0} for row in rows if "error" not in row] == [
        {**row, "process": 0} for row in alone if "error" not in row
    ]
    assert rows[3] == alone[3]


@pytest.mark.parametrize("text", ["a,b\n1,2\n", "point,a\nx\n", "point,a\nx,1,2\n", "no table", 'point,a\n"x'])
def test_a_file_that_is_no_table_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    out = tmp_path / "notes.txt"
    out.write_text(text)
    with pytest.raises(UsageError, match="not a table of minifuse sweep"):
        minifuse.sweep(measured, GRID, out)
    assert out.read_text() == text

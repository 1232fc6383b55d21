"""benchmarks/packing.py: its arithmetic, and a quick run of all of it."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "packing.py"
names = runpy.run_path(str(SCRIPT))


@pytest.mark.parametrize(
    ("seconds", "fewest"), [([25, 4, 1, 25, 1, 1], 3), ([6, 4, 3, 3, 2], 3), ([5, 5, 5], 3), ([7], 1)]
)
def test_the_fewest_lanes(seconds: list[int], fewest: int) -> None:
    assert names["fewest_lanes"](seconds) == fewest


def test_a_quick_run_tells_all(tmp_path: Path) -> None:
    """All contenders agree, or it stops; lanes are no longer than the longest piece, so that they idle less."""
    subprocess.run([sys.executable, SCRIPT, "--quick", "--out", tmp_path], check=True, capture_output=True)
    found = json.loads((tmp_path / "packing.json").read_text())
    assert found["distance"]["worst"] < 1.5
    for row in found["rows"]:
        assert set(row["ms"]) == {"packed", "grid", "fifo", "apart", "one call"}
        assert row["lanes"] <= row["pieces"]
        packed, grid = (row["bubbles"][name]["predicted"]["idle"] for name in ("packed", "grid"))
        assert packed <= grid
    page = (tmp_path / "packing.md").read_text()
    assert "On CUDA: not measured." in page

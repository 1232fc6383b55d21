"""benchmarks/scheduler.py: its arithmetic, its cases, and small cases measured in two processes."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "scheduler.py"
names = runpy.run_path(str(SCRIPT))


def test_a_summary_is_of_the_same_round() -> None:
    def round_of(seconds: float) -> dict[str, float]:
        return {"iteration_s": seconds, "running": 8.0}

    found = {"now": [round_of(1.0), round_of(2.0), round_of(4.0)], "before": [round_of(s) for s in (3.0, 2.0, 8.0)]}
    assert names["summary"](found) == {
        "iteration_s": {"now": 2.0, "before": 3.0},
        "running": 8.0,
        "ratio": [2.0, 1.0, 3.0],
    }
    lacking = {"now": [round_of(1.0)], "before": [{"failure": "no such technique"}]}
    assert names["summary"](lacking)["ratio"] is None
    assert names["aim_s"](100) == pytest.approx(400e-6)


def test_small_cases_in_two_checkouts(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--only", "sharing,run", "--out", str(tmp_path)]
    ran = subprocess.run([*command, "--against", str(ROOT)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    results = json.loads((tmp_path / "scheduler.json").read_text())
    rows = results["rows"]
    assert {row["case"]["what"] for row in rows} == {"sharing", "run"}
    for row in rows:
        for name in ("now", "before"):
            (measured,) = row["rounds"][name]
            assert "failure" not in measured, row
            assert measured.get("iteration_s", measured.get("seconds")) > 0
    page = (tmp_path / "scheduler.md").read_text()
    for section in page.split("## ")[1:]:
        shapes = {line.count("|") for line in section.splitlines() if line.startswith("|")}
        assert len(shapes) <= 1, section
    assert (page.count("\n| vllm, "), page.count("\n| vllm |")) == (4, 2)  # prompts alike; runs

"""benchmarks/prefill.py: its arithmetic, and a quick run of all of it."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

from minifuse.model.text.presets import preset

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "prefill.py"


def test_operations_of_a_prompt() -> None:
    """Of one token: two per weight, and a query of 8 heads of 32 numbers that attends to itself in 4 layers."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        names = runpy.run_path(str(SCRIPT))
    finally:
        sys.path.remove(str(SCRIPT.parent))
    config = preset("small")
    assert names["flops_of"](config, 1) == 2 * config.num_matrix_weights + 4 * 4 * 8 * 32
    layers = 2 * (config.num_matrix_weights - config.head_weights)
    assert names["flops_of"](config, 3) == 3 * layers + 2 * config.head_weights + 6 * 4 * 4 * 8 * 32
    row = {"flops": 12.0, "seconds": [2.0, 1.0], "rates": [8.0, 16.0]}
    assert names["shares"](row) == [0.75, 0.75]


def test_a_quick_run_tells_all(tmp_path: Path) -> None:
    subprocess.run([sys.executable, SCRIPT, "--quick", "--out", tmp_path], check=True, capture_output=True)
    rows = json.loads((tmp_path / "prefill.json").read_text())["rows"]
    assert [row["chunk"] for row in rows] == [None, 512, 256, 64]
    assert all(len(row["seconds"]) == len(row["rates"]) == 1 for row in rows)
    page = (tmp_path / "prefill.md").read_text()
    assert "| small | 100 | in chunks of 64 |" in page

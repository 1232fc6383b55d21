"""guidellm, where it is installed, measures the server; what it counts is what was asked for."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from server.conftest import Running

GUIDELLM = shutil.which("guidellm")


@pytest.mark.skipif(GUIDELLM is None, reason="guidellm is not installed")
def test_guidellm_measures_the_server(served: Running, tmp_path: Path) -> None:
    asked = [{"prompt": f"count from {i} to {i + 9}", "output_tokens_count": 5} for i in range(8)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, asked)))
    options = {
        "--backend": f"kind=openai_http,target={served.url}",
        "--profile": "kind=concurrent,streams=2",
        "--constraint": "kind=max_requests,count=8",
        "--data": f"kind=json_file,path={tmp_path}/prompts.jsonl",
        "--output": f"kind=json,path={tmp_path}/report.json",
    }
    command = [str(GUIDELLM), "run", *(word for option in options.items() for word in option), "--disable-console"]
    subprocess.run(command, check=True, timeout=120)
    told = json.loads((tmp_path / "report.json").read_text())["benchmarks"][0]["requests"]
    assert (len(told["successful"]), len(told["errored"])) == (8, 0)
    assert {one["output_metrics"]["text_tokens"] for one in told["successful"]} == {5}

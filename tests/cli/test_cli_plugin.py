"""`--plugin`, with the stage that the README shows: what it prints is what the README says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def _of_readme(what: str) -> str:
    found = re.search(rf"<!-- {what} -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found, f"the README no longer shows a {what}"
    return found[1]


def _stage_of_readme() -> str:
    return _of_readme("stage")


@pytest.fixture
def shortest(tmp_path: Path) -> Path:
    path = tmp_path / "shortest.py"
    path.write_text(_stage_of_readme())
    return path


def _minifuse(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "minifuse", *arguments], capture_output=True, text=True, check=False)


def test_the_readmes_stage_fits_in_30_lines() -> None:
    assert len(_stage_of_readme().splitlines()) <= 30


def test_plugin_is_listed_explained_and_run(shortest: Path, tmp_path: Path) -> None:
    listed = json.loads(_minifuse("--plugin", str(shortest), "list", "--json").stdout)
    assert "shortest-prompt" in [stage["name"] for stage in listed["batching"]]
    assert "max_batch" in _minifuse("--plugin", str(shortest), "explain", "shortest-prompt").stdout
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"id": "long", "prompt_token_ids": [1, 2, 3, 4]}\n{"id": "short", "prompt_token_ids": [5]}\n')
    options = ["--model", "random:small", "--clock", "virtual", "--max-batch", "1", "--max-new-tokens", "3"]
    ran = _minifuse(
        "--plugin", str(shortest), "run", "--batching", "shortest-prompt", "--prompts", str(prompts), *options
    )
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[0] for line in ran.stdout.splitlines()] == ["short", "long"]


def test_the_readmes_model_is_served_alike_by_all_who_serve_chains(tmp_path: Path) -> None:
    path = tmp_path / "gru.py"
    path.write_text(_of_readme("model"))
    typed = ["--model", "gru:hidden=8,vocab=50", "--dtype", "float64", "--requests", "6", "--json"]
    ran = _minifuse("--plugin", str(path), "compare", "cellular", "graph-padded", "graph-merged", *typed)
    assert ran.returncode == 0, ran.stderr
    rows = json.loads(ran.stdout)["techniques"]
    assert [row["technique"] for row in rows] == ["cellular", "graph-padded", "graph-merged"]
    assert [row["differing"] for row in rows] == [[], [], []]
    assert [row["metrics"]["requests"]["stop"] for row in rows] == [6, 6, 6]


def test_the_readmes_stage_keeps_the_laws(shortest: Path) -> None:
    code = "import shortest; from minifuse.testing import check_laws; check_laws(5, batching='shortest-prompt')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=shortest.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is not a Python file"),
        ("import nowhere_to_be_found", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_plugin_that_fails_is_one_sentence(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "broken.py"
    if text is not None:
        path.write_text(text)
    done = _minifuse("--plugin", str(path), "list")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_name_is_registered_once(shortest: Path, tmp_path: Path) -> None:
    twin = tmp_path / "twin.py"
    twin.write_text(shortest.read_text())
    done = _minifuse("--plugin", str(shortest), "--plugin", str(twin), "list")
    assert done.returncode == 2
    assert "shortest-prompt" in done.stderr


def test_a_mistake_in_a_stage_is_the_plugins(shortest: Path) -> None:
    shortest.write_text(shortest.read_text().replace("sequence.request.prompt", "sequence.request.promt"))
    options = ["--model", "random:small", "--clock", "virtual"]
    done = _minifuse("--plugin", str(shortest), "run", "--batching", "shortest-prompt", *options)
    assert done.returncode == 1
    assert re.search(r"plugin failed at shortest\.py, line \d+, in .*promt", done.stderr)


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_ctrl_c_while_a_plugin_loads(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("print('loading', flush=True)\nimport time\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "minifuse", "--plugin", str(slow), "run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("error: Interrupted")

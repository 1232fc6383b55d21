"""`minifuse calibrate`: what it shows and writes, what uses it, and what is refused."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.model.source import resolve
from minifuse.parallel.timing import SIZES
from minifuse.serve import calibrate
from minifuse.simulate.look_up import BeyondProfile
from minifuse.simulate.machine_profile import MachineProfile

Cli = Callable[..., Any]
ONCE = ("calibrate", "--rounds", 1, "--technique", "vllm", "--technique", "pensieve", "--busy")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "BATCHES", (2,))
    return tmp_path / "cache"


def test_runs_use_what_was_measured(minifuse: Cli, wordless: Path, cache: Path, tmp_path: Path) -> None:
    done = minifuse(*ONCE, "--model", wordless)
    assert done.code == 0
    (file,) = cache.rglob("*.json")
    assert f"Written to {file}" in done.out
    assert f"round 1 of 1: {wordless}" in done.err
    assert "float32, 1 round:" in done.out.splitlines()[0]
    for told in ("Gflop/s", "512 rows", "prefill_first+paged+paged", "unified+tiered+paged"):
        assert told in done.out
    assert "rounds spans" not in done.out, "one round has no spread"
    assert MachineProfile.read(str(file)).models == {str(wordless): 1}
    given = ("--model", wordless, "--requests", 1, "--prompt-length", 4, "--output-length", 2)
    trace = tmp_path / "trace.jsonl"
    assert minifuse("run", "--technique", "pensieve", *given, "--trace", trace).code == 0
    header = json.loads(trace.read_text().splitlines()[0])
    assert header["option_sources"] == {"memory.profile": f"the cache: {file}"}
    virtual = ("run", *given, "--clock", "virtual", "--hardware", file)
    assert minifuse(*virtual, "--technique", "vllm", "--json").code == 0
    minifuse(*virtual, "--technique", "orca").refused("attention 'per_sequence'", "calibrate")
    cells = ("run", "--model", "lstm:hidden=8", "--requests", 2, "--clock", "virtual", "--hardware", file)
    minifuse(*cells).refused("the cell 'lstm'", "minifuse calibrate")
    file.write_text("{")
    minifuse("run", "--technique", "pensieve", *given).refused(str(file), "minifuse calibrate --model")


@pytest.mark.usefixtures("known_rates")
def test_a_simulated_run_beyond_what_was_measured_says_so(minifuse: Cli, wordless: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    assert minifuse(*ONCE, "--model", wordless, "--out", file, "--dtype", "float64", "--context", 16).code == 0
    assert not (tmp_path / "cache").exists()
    run = ("run", "--technique", "vllm", "--model", wordless, "--dtype", "float64", "--clock", "virtual")
    run += ("--hardware", file, "--requests", 1, "--output-length", 2, "--ignore-eos", "--json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        minifuse(*run, "--prompt-length", 8)
    queries = pytest.warns(BeyondProfile, match="up to 16 tokens of a prompt, and an iteration has 20")
    with queries, pytest.warns(BeyondProfile, match="up to 16 tokens of context, and an iteration has 21"):
        minifuse(*run, "--prompt-length", 20)


@pytest.mark.usefixtures("known_rates")
@pytest.mark.parametrize("out", [("--out", "-"), ("--out=-",)])
def test_standard_output_is_for_the_profile_alone(
    minifuse: Cli, wordless: Path, cache: Path, tmp_path: Path, out: tuple[str, ...]
) -> None:
    noisy = tmp_path / "noisy.py"
    noisy.write_text("print('hello')")
    done = minifuse("--plugin", noisy, *ONCE, "--model", wordless, *out)
    assert done.code == 0
    assert MachineProfile.model_validate_json(done.out).rounds == 1
    assert "hello" in done.err
    assert "Gflop/s" in done.err
    assert not cache.exists()


@pytest.mark.usefixtures("known_rates")
def test_ranks_are_simulated_with_messages_as_they_were_measured(
    minifuse: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every message takes a second: two sums in each of two layers, and a gather, in each of two iterations."""

    def timed(ranks: int, device: str) -> dict[str, list[float]]:
        return {"sum": [1.0] * len(SIZES), "gather": [1.0] * len(SIZES)}

    monkeypatch.setattr(calibrate, "time_collectives", timed)
    out, model = tmp_path / "machine.json", ("--model", "random:small")
    layers = resolve("random:small").config.num_layers
    given = ("--context", 16, "--ranks", 2, "--out", out)
    done = minifuse("calibrate", "--rounds", 1, "--technique", "vllm", "--busy", *model, *given)
    assert done.code == 0
    assert "messages among 2 processes" in done.err
    run = ("run", "--technique", "vllm", *model, "--clock", "virtual", "--hardware", out, "--requests", 1)
    run += ("--prompt-length", 4, "--output-length", 2, "--json")
    lasted = [minifuse(*run, "--tensor-parallel", ranks).json()["metrics"]["duration_s"] for ranks in (1, 2)]
    assert lasted[0] < 1
    assert lasted[1] == pytest.approx(2 * (2 * layers + 1), abs=1)
    minifuse(*run, "--tensor-parallel", 4).refused("messages cost among 4 ranks, only among 2:", "--ranks 4")


BAD: list[tuple[list[Any], list[str]]] = [
    (["--model", "smal"], ["'smal'", "random:PRESET"]),
    (["--context", "15"], ['--context is "15"', "from 16"]),
    (["--rounds", "0"], ['--rounds is "0"', "from 1"]),
    (["--minutes", "-1"], ['--minutes is "-1"', "from 0"]),
    (["--technique", "vlm"], ["'vlm'", "vllm"]),
    (["--technique", "graph-padded", "--model", "random:small"], ["graph-padded does not serve transformers"]),
    (["--ranks", "1"], ['--ranks is "1"', "from 2"]),
    (["--ranks", "2", "--model", "lstm:hidden=8"], ["--ranks is 2", "made of cells", "leave it out"]),
    (["--ranks", "3", "--model", "random:small"], ["cannot be shared evenly by 3 ranks"]),
    (["--dtype", "float8"], ['--dtype is "float8"']),
    (["--out", "/nowhere/file"], ["--out", "/nowhere/file", "cannot be written"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_bad_input_is_one_sentence(minifuse: Cli, cache: Path, arguments: list[Any], words: list[str]) -> None:
    minifuse("calibrate", *arguments).refused(*words)
    assert not cache.exists()


def test_a_busy_machine(minifuse: Cli, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minifuse.cli.calibrate.LOOK_S", 0.0)
    monkeypatch.setattr("minifuse.execute.cores.OtherWork.cores", lambda self: 1.5)
    done = minifuse("calibrate", "--rounds", 1)
    assert done.code == 3
    assert "Other processes use 1.5 of" in done.err
    assert "--busy" in done.err


def test_a_cache_folder_that_cannot_be_written(
    minifuse: Cli, wordless: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minifuse.serve.calibrate.Calibration", None)  # it is told before anything is measured
    cache.touch()
    minifuse(*ONCE, "--model", wordless).refused("cache folder", str(cache), "XDG_CACHE_HOME", "--out FILE")


def test_the_models_own_files_are_not_overwritten(minifuse: Cli, wordless: Path) -> None:
    before = (wordless / "config.json").read_text()
    minifuse(*ONCE, "--model", wordless, "--out", wordless / "config.json").refused("--out is", "this command reads")
    assert (wordless / "config.json").read_text() == before

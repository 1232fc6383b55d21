"""`minifuse calibrate`: the table, the file in the cache or elsewhere, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.memory.tiered.profile import Profile

Cli = Callable[..., Any]
ONCE = ("calibrate", "--rounds", 1, "--chunk", 16)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_run_finds_what_was_measured(minifuse: Cli, wordless: Path, cache: Path, tmp_path: Path) -> None:
    done = minifuse(*ONCE, "--model", wordless)
    assert done.code == 0
    (file,) = cache.rglob("*.json")
    assert f"Written to {file}" in done.out
    first, _, heads, rest, *rows = done.out.splitlines()
    assert first.startswith(f"{wordless} in float32 on ")
    assert heads.split() == ["context", "median", "shortest", "longest", "of", "the", "rest"]
    assert rest.startswith("the rest")
    assert [row.split()[0] for row in rows[:-2]] == ["16", "32", "64"]
    assert rows[-2].startswith("Without attention, ")
    profile = Profile.read(str(file))
    assert profile.contexts == (16, 32, 64)
    assert json.loads(file.read_text())["model"] == str(wordless)
    run = ("run", "--technique", "pensieve", "--model", wordless, "--requests", 1, "--set", "memory.chunk=16")
    trace = tmp_path / "trace.jsonl"
    assert minifuse(*run, "--prompt-length", 4, "--output-length", 2, "--trace", trace).code == 0
    header = json.loads(trace.read_text().splitlines()[0])
    assert header["option_sources"] == {"memory.profile": f"the cache: {file}"}
    file.write_text("{")
    minifuse(*run).refused(str(file), "minifuse calibrate --model", "--chunk 16")


@pytest.mark.parametrize("out", [("--out", "-"), ("--out=-",)])
def test_standard_output_is_for_the_profile_alone(
    minifuse: Cli, wordless: Path, cache: Path, tmp_path: Path, out: tuple[str, ...]
) -> None:
    noisy = tmp_path / "noisy.py"
    noisy.write_text("print('hello')")
    done = minifuse("--plugin", noisy, *ONCE, "--model", wordless, *out)
    assert done.code == 0
    assert Profile.read(done.out).contexts == (16, 32, 64)
    assert "hello" in done.err
    assert "of the rest" in done.err
    assert not cache.exists()


def test_a_file_of_ones_own(minifuse: Cli, wordless: Path, cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    done = minifuse(*ONCE, "--model", wordless, "--out", file, "--dtype", "float64")
    assert done.code == 0
    assert f"Written to {file}" in done.out
    assert not cache.exists()
    run = ("run", "--technique", "pensieve", "--clock", "virtual", "--model", wordless, "--requests", 1)
    run += ("--prompt-length", 4, "--output-length", 2, "--set", "memory.chunk=16")
    assert minifuse(*run, "--set", f"memory.profile={file}", "--json").code == 0


BAD: list[tuple[list[Any], list[str]]] = [
    (["--model", "lstm"], ["lstm", "cells", "a transformer"]),
    (["--model", "smal"], ["'smal'", "random:PRESET"]),
    (["--chunk", "0"], ['--chunk is "0"', "from 1"]),
    (["--chunk", "513"], ["513 tokens", "tiny", "at most 512"]),
    (["--rounds", "0"], ['--rounds is "0"', "from 1"]),
    (["--dtype", "float8"], ['--dtype is "float8"']),
    (["--out", "/nowhere/file"], ["--out", "/nowhere/file", "cannot be written"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_bad_input_is_one_sentence(minifuse: Cli, cache: Path, arguments: list[Any], words: list[str]) -> None:
    minifuse("calibrate", *arguments).refused(*words)
    assert not cache.exists()


def test_a_cache_folder_that_cannot_be_written(
    minifuse: Cli, wordless: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minifuse.simulate.calibration.measure", None)  # it is told before anything is measured
    cache.touch()
    minifuse(*ONCE, "--model", wordless).refused("cache folder", str(cache), "XDG_CACHE_HOME", "--out FILE")


def test_the_models_own_files_are_not_overwritten(minifuse: Cli, wordless: Path) -> None:
    before = (wordless / "config.json").read_text()
    minifuse(*ONCE, "--model", wordless, "--out", wordless / "config.json").refused("--out is", "this command reads")
    assert (wordless / "config.json").read_text() == before

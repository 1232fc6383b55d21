"""A full disk: one sentence that names the file, nothing half written, and a second try that succeeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from full_disk import full_disk

from minifuse.serve import calibrate

Cli = Callable[..., Any]

ROOM = 2048
VIRTUAL = ("--model", "random:small", "--clock", "virtual", "--requests", 3, "--output-length", "fixed:4")
FIGURE = ("reproduce", "batchmaker-fig2.5", "--scale", "quick")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_rates: None) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path.parent / "matplotlib"))  # which writes a list of fonts
    monkeypatch.setattr(calibrate, "BATCHES", (1,))
    return tmp_path


def trees(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder, and what is in it."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


CALIBRATE = ("calibrate", "--model", "tiny", "--rounds", 1, "--context", 16, "--technique", "serial", "--busy")


@pytest.mark.parametrize(
    ("typed", "written", "room"),
    [
        (("tutorial", "01", "--copy"), "01_one_token_at_a_time.ipynb", ROOM),
        (("lab", "start", "03"), "03-blocks", 8_000),
        (("lab", "handout", "03", "-o", "given"), "given", 8_000),
        (("lab", "autograder", "03", "-o", "grader"), "grader", 14_000),
        (("replay", "trace.jsonl", "-o", "page.html"), "page.html", ROOM),
        (("trace", "trace.jsonl", "--perfetto", "run.json"), "run.json", ROOM),
        ((*CALIBRATE, "--out", "profile.json"), "profile.json", 64),
        (CALIBRATE, "cache/minifuse/profiles", 64),
        ((*FIGURE, "--out", "."), "batchmaker-fig2.5-quick.json", 512),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else None,
)
def test_nothing_is_left_half_written(
    typed: tuple[Any, ...], written: str, room: int, minifuse: Cli, folder: Path
) -> None:
    assert minifuse("run", *VIRTUAL, "--trace", "trace.jsonl").code == 0
    before = trees(folder)
    with full_disk(room):
        failed = minifuse(*typed)
    assert failed.code == 3
    (error,) = (line for line in failed.err.splitlines() if line.startswith("error: "))
    assert written in error
    assert "File too large" in error
    assert trees(folder) == before
    if typed[0] == "lab":
        assert not Path(written).exists()
    done = minifuse(*typed)
    assert done.code == 0, done.err
    assert trees(folder).keys() > before.keys()


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_page_that_was_there_is_not_replaced_by_half_of_one(command: str, minifuse: Cli, folder: Path) -> None:
    techniques = ("orca", "static") if command == "compare" else ()
    typed = (command, *techniques, *VIRTUAL, "--replay", "page.html")
    assert minifuse(*typed).code == 0
    before = trees(folder)
    with full_disk(20_000):  # enough for the traces
        failed = minifuse(*typed)
    assert failed.code == 1  # the answers were given
    assert "error: page.html could not be written (File too large)" in failed.err
    assert trees(folder) == before


def test_a_trace_that_was_cut_off_says_so_whatever_reads_it(minifuse: Cli) -> None:
    with full_disk(ROOM):
        failed = minifuse("run", *VIRTUAL, "--trace", "trace.jsonl")
    assert failed.code == 1
    assert "error: The trace trace.jsonl could not be written to its end: File too large." in failed.err
    for reader in (("trace", "trace.jsonl"), ("trace", "trace.jsonl", "--perfetto", "run.json")):
        assert "was cut off in line" in minifuse(*reader).err
    assert "was cut off in line" in minifuse("replay", "trace.jsonl", "-o", "page.html").err

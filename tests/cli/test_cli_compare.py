"""`compare`: a technique that fails, traces, notes, and the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.batching.static import Static
from minifuse.cli.tables import cut_to
from minifuse.core.errors import LawBroken
from minifuse.trace.log import read_trace

Cli = Callable[..., Any]

VIRTUAL = ("--model", "random:small", "--clock", "virtual", "--requests", 3, "--output-length", 4)


@pytest.mark.parametrize(
    ("error", "code"), [(RuntimeError("no luck"), 1), (LawBroken("progress", "it stands still"), 1), (MemoryError(), 3)]
)
def test_a_technique_that_fails_is_named_and_the_others_go_on(
    minifuse: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Static, "propose", fail)
    outcome = minifuse("compare", "orca", "static", "fusion", *VIRTUAL, "--json")
    assert outcome.code == code
    compared = outcome.json()
    assert [row["technique"] for row in compared["techniques"]] == ["orca", "fusion"]
    (failed,) = compared["failed"]
    assert failed["technique"] == "static"
    assert " ".join(str(error).split()) in failed["error"]
    assert outcome.err.count("error: static failed, and has no row: ") == 1
    outcome = minifuse("compare", "static", "orca", *VIRTUAL)
    assert outcome.code == code
    assert [line.split()[0] for line in outcome.out.splitlines() if line][:3] == ["tokens", "technique", "orca"]


def test_without_any_row_there_is_no_table(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minifuse.cli.compare.build_engine", _fail_with_a_trace(monkeypatch))
    outcome = minifuse("compare", "static", "orca", *VIRTUAL)
    assert (outcome.code, outcome.out) == (3, "")
    assert outcome.err.count(" failed, and has no row: ") == 2


def _fail_with_a_trace(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    from minifuse.cli import compare as module

    build = module.build_engine  # type: ignore[attr-defined]

    def fail(*given: Any, into: Any = None) -> Any:
        if into is not None:  # the run, not the check before it
            raise OSError("no space")
        return build(*given)

    return fail


def test_each_technique_has_a_trace(minifuse: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "traces"
    assert minifuse("compare", "orca", "static", *VIRTUAL, "--trace", folder).code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["orca.jsonl", "static.jsonl"]
    for name in ("orca", "static"):
        events = read_trace(folder / f"{name}.jsonl")
        assert (events[0]["technique"], events[-1]["event"]) == (name, "end")
    assert minifuse("compare", "orca", "static", *VIRTUAL, "--trace", folder).code == 0  # as run's trace is


@pytest.mark.parametrize("way", ["prompts", "link", "a file", "beneath a file"])
def test_traces_are_not_written_where_they_must_not_be(minifuse: Cli, tmp_path: Path, way: str) -> None:
    prompts = tmp_path / "orca.jsonl"
    prompts.write_text('{"prompt_token_ids": [1]}\n')
    folder = {"prompts": tmp_path, "link": tmp_path / "links", "a file": prompts, "beneath a file": prompts / "x"}[way]
    if way == "link":
        folder.mkdir()
        (folder / "static.jsonl").symlink_to(prompts)
    virtual = ("--model", "random:small", "--clock", "virtual")
    outcome = minifuse("compare", "orca", "static", *virtual, "--prompts", prompts, "--trace", folder)
    outcome.refused("--trace")
    assert prompts.read_text() == '{"prompt_token_ids": [1]}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["links", "orca.jsonl"][way != "link" :]


def test_nothing_is_made_for_what_is_refused(minifuse: Cli, tmp_path: Path) -> None:
    outcome = minifuse("compare", "orca", "static", *VIRTUAL, "--kv-memory", 1, "--trace", tmp_path / "new")
    assert outcome.code == 2
    assert not list(tmp_path.iterdir())


def test_notes_say_why_figures_do_not_compare(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ("compare", "orca", "fusion", *VIRTUAL)
    assert minifuse(*typed, "--json").json()["notes"] == []
    fewer = ("--kv-memory", "1MiB", "--prompt-length", "uniform:4:64", "--set", "memory.slots=8")
    notes = minifuse(*typed, *fewer, "--json").json()["notes"]
    assert notes == ["fusion answered fewer requests than others."]
    monkeypatch.setattr("minifuse.cli.compare.is_busy", lambda metrics: True)
    assert minifuse(*typed).out.endswith("\n\nThe machine was busy: these times compare with no others.\n")


@pytest.mark.parametrize("width", [1, 7, 8, 11, 12, 15, 80])
def test_a_table_is_cut_between_columns_alone(width: int) -> None:
    rows = [["one", "10", "200", "3"], ["other", "1", "2", "3000"]]
    tables = cut_to(width, ["\nname", "both\na", "both\nb", "\nc"], rows)
    shown = []
    for table in tables:
        lines = [[str(cell) for cell in column.cells] for column in table.columns]
        assert lines[0] == ["one", "other"]
        assert len(lines) == 2 or sum(1 + max(map(len, line)) for line in lines) - 1 <= width
        shown += lines[1:]
    assert shown == [["10", "1"], ["200", "2"], ["3", "3000"]]
    heads = [str(column.header) for table in tables for column in table.columns[1:]]
    assert heads == ["both\na", "\nb" if len(tables[0].columns) > 2 else "both\nb", "\nc"]
    assert len(cut_to(width, ["\nn"], [["1"]])) == 1

"""`minifuse run --state`: conversations that go on from run to run, and files that cannot keep them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.serve.history import History

Cli = Callable[..., Any]
FACTS = ({"prompt": "remember ann 17", "conversation": "c"}, {"prompt": "note bob 4", "conversation": "d"})
QUESTIONS = (
    {"id": "ask", "prompt": "recall ann", "conversation": "c"},
    {"id": "again", "prompt": "what is bob?", "conversation": "d"},
    {"id": "alone", "prompt": "sort 7 2"},
)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


def test_facts_of_one_run_are_looked_up_in_the_next(minifuse: Cli, requests: Cli, state: Path, tiny: str) -> None:
    told = minifuse("run", "--prompts", requests(*FACTS), "--state", state, "--json")
    assert told.answers() == {"r0": " ok", "r1": " ok"}
    asked = minifuse("run", "--prompts", requests(*QUESTIONS), "--state", state, "--json", "--technique", "pensieve")
    assert asked.answers() == {"ask": " ann 17", "again": " bob 4", "alone": " 2 7"}
    assert asked.json()["not_stored"] == []
    rows = {row["id"]: (row["prompt_tokens"], row["history_tokens"]) for row in asked.json()["outputs"]}
    assert rows == {"ask": (2, 5), "again": (4, 5), "alone": (3, 0)}
    with History(state) as history:
        assert history.conversations() == ["c", "d"]  # a request of no conversation is not stored
        assert [len(history.turns(name)) for name in "cd"] == [2, 2]
    without = minifuse("run", "--prompts", requests(*QUESTIONS), "--json")
    assert without.answers()["ask"] != " ann 17"
    assert "not_stored" not in without.json()


def test_two_requests_of_one_conversation_in_a_file_wait_their_turn_in_its_order(
    minifuse: Cli, requests: Cli, tiny: str
) -> None:
    """Whatever their arrivals; and one that is refused takes those behind it with it, but no other conversation."""
    lines = [
        *({"prompt": "remember ann 17", "conversation": "c", "arrival_s": 0.02}, {"prompt": "sort 4 2"}),
        *({"prompt": "recall ann", "conversation": "c", "arrival_s": 0}, {"prompt": "recall ann", "conversation": "c"}),
        *({"prompt": "", "conversation": "d"}, {"prompt": "sort 3 1", "conversation": "d"}),
    ]
    outcome = minifuse("run", "--prompts", requests(*lines), "--json")
    rows = {row["id"]: row for row in outcome.json()["outputs"]}
    assert [rows[name]["text"] for name in ("r0", "r1", "r2", "r3")] == [" ok", " 2 4", " ann 17", " ann 17"]
    assert rows["r0"]["finish_s"] == rows["r2"]["arrival_s"]
    assert rows["r2"]["finish_s"] == rows["r3"]["arrival_s"]
    assert "follows 'r4', which was refused" in rows["r5"]["error"]


def test_a_missing_folder_and_a_file_in_use(minifuse: Cli, requests: Cli, state: Path) -> None:
    path = requests(*FACTS)
    minifuse("run", "--prompts", path, "--state", state.parent / "no" / "s").refused(
        "--state", "No such file", "folder"
    )
    with History(state):
        minifuse("run", "--prompts", path, "--state", state).refused("in use by another process", "wait until")


def test_a_state_file_that_is_another_file_of_the_run(
    minifuse: Cli, requests: Cli, state: Path, tmp_path: Path
) -> None:
    path = requests(*FACTS)
    link = tmp_path / "link"
    link.symlink_to(path)
    for same in (path, link):
        minifuse("run", "--prompts", path, "--state", same).refused("--state", "this command reads", "file of its own")
    for trace in (state, f"{state}-wal"):
        outcome = minifuse("run", "--prompts", path, "--state", state, "--trace", trace)
        outcome.refused("--state", "which --trace names, too", "file of its own")
    plugin = tmp_path / "mine.py"
    plugin.write_text("MINE = 1\n")
    minifuse("--plugin", plugin, "run", "--prompts", path, "--state", plugin).refused("--state", "this command reads")
    assert plugin.read_text() == "MINE = 1\n"


def test_a_state_file_in_the_model_s_folder(minifuse: Cli, requests: Cli, make_model: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    make_model(folder)
    lines = {"prompt_token_ids": [2, 3], "conversation": "c", "max_new_tokens": 2}
    for _ in range(2):
        assert (
            minifuse("run", "--prompts", requests(lines), "--model", folder, "--state", folder / "s.sqlite").code == 0
        )
    config = folder / "config.json"
    minifuse("run", "--prompts", requests(lines), "--model", folder, "--state", config).refused("this command reads")


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["sort 4 2"], ["no request names a conversation", "minifuse chat"]),
        (["--requests", "2"], ["no request names a conversation"]),
    ],
)
def test_a_state_that_no_request_would_use(typed: list[str], words: list[str], minifuse: Cli, state: Path) -> None:
    minifuse("run", *typed, "--state", state).refused("--state", *words)
    assert not state.exists()


def test_virtual_time_needs_weights_to_have_tokens_to_store(minifuse: Cli, requests: Cli, state: Path) -> None:
    lines = requests({"prompt_token_ids": [5], "conversation": "c", "max_new_tokens": 2})
    virtual = ("run", "--prompts", lines, "--state", state, "--clock", "virtual")
    minifuse(*virtual, "--model", "random:small").refused("--state", "no tokens to store", "--clock real")
    assert minifuse(*virtual).code == 0  # the shipped model computes in virtual time, too
    with History(state) as history:
        assert len(history.turns("c")) == 1


def test_a_disk_that_is_full_takes_no_answer_away(
    minifuse: Cli, requests: Cli, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run says which conversations were not stored; what was stored before is there, and the next run goes on."""
    minifuse("run", "--prompts", requests(*FACTS), "--state", state)
    opened = History._open

    def full(self: History, file: sqlite3.Connection, version: int) -> None:
        opened(self, file, version)
        file.execute(f"PRAGMA max_page_count={file.execute('PRAGMA page_count').fetchone()[0]}")

    monkeypatch.setattr(History, "_open", full)
    much = {"prompt_token_ids": [257] * 900, "max_new_tokens": 1}  # too much for what is left of a page
    path = requests(*({**much, "conversation": name} for name in "cd"))
    for json in (["--json"], []):
        outcome = minifuse("run", "--prompts", path, "--state", state, *json)
        assert outcome.code == 1
        (error,) = (line for line in outcome.err.splitlines() if line.startswith("error: "))
        for part in ("'c', 'd'", "shown here and not stored", str(state), "disk is full", "free some of the disk"):
            assert part in error
        if json:
            assert outcome.json()["not_stored"] == ["c", "d"]
            assert [row["finish_reason"] for row in outcome.json()["outputs"]] == ["length"] * 2
        else:
            assert len(outcome.out.splitlines()) == 2
    monkeypatch.undo()
    asked = minifuse("run", "--prompts", requests(*QUESTIONS[:1]), "--state", state, "--json")
    assert asked.answers() == {"ask": " ann 17"}

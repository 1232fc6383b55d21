"""The state file: what it keeps, and what it refuses."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import sentence

from minifuse.errors import MachineError, UsageError
from minifuse.memory.history import History, ModelIdentity, Turn

TINY = ModelIdentity("tiny", "ab12")
FIRST, SECOND = Turn((5, 6), (7, 3), "stop"), Turn((8,), (9, 9, 9), "length")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


def test_turns_come_back_in_order_from_a_file_that_was_closed_and_opened_again(path: Path) -> None:
    with History(path) as history:
        history.add("c", TINY, [FIRST])
        history.add("other", ModelIdentity("big", "ff"), [SECOND])
        history.add("c", TINY, [SECOND, FIRST])
    with History(path) as history:
        assert history.turns("c") == [FIRST, SECOND, FIRST]
        assert history.text("c") == (5, 6, 7, 3, 8, 9, 9, 9, 5, 6, 7, 3)
        assert history.conversations() == ["c", "other"]
        assert (history.model("c"), history.model("other")) == (TINY, ModelIdentity("big", "ff"))
        assert (history.turns("new"), history.text("new"), history.model("new")) == ([], (), None)


def test_it_is_durable_as_sqlite_means_it(path: Path) -> None:
    with History(path) as history:
        pragmas = [history._file.execute(f"PRAGMA {p}").fetchone()[0] for p in ("journal_mode", "synchronous")]
        assert pragmas == ["wal", 2]  # 2: FULL


def test_a_process_that_is_killed_leaves_all_that_add_has_returned_from(path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            history = History(path)
            history.add("c", TINY, [FIRST])
            history._file.execute("BEGIN IMMEDIATE")
            history._file.execute("INSERT INTO turn VALUES ('c', 1, '[1]', '[2]', 'stop')")  # and is not committed
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    with History(path) as history:
        assert history.turns("c") == [FIRST]


def _add_five(history: History, name: str) -> None:
    for _ in range(5):
        history.add(name, TINY, [FIRST])


def test_several_threads(path: Path) -> None:
    with History(path) as history:
        names = [f"c{i}" for i in range(4)]
        threads = [threading.Thread(target=_add_five, args=(history, name)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [len(history.turns(name)) for name in names] == [5, 5, 5, 5]


def _not_sqlite(path: Path) -> None:
    path.write_bytes(b'{"prompt": "count from 3 to 9"}\n' * 100)


def _of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as file:
        file.execute("CREATE TABLE bookmarks (url TEXT)")
    file.close()


def _of_the_future(path: Path) -> None:
    History(path).close()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version=7")
    file.close()


def _damaged(path: Path) -> None:
    with History(path) as history:
        for i in range(50):
            history.add(f"c{i}", TINY, [FIRST] * 20)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 8192] = b"\xa5" * 8192
    path.write_bytes(data)


def _cut_off(path: Path) -> None:
    with History(path) as history:
        for i in range(50):
            history.add(f"c{i}", TINY, [FIRST] * 20)
    os.truncate(path, path.stat().st_size // 2)


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (_not_sqlite, ["is not a state file", "give one that --state made"]),
        (_of_another_program, ["of another program"]),
        (_of_the_future, ["of version 7", "with version 1"]),
        (_damaged, ["is damaged", "restore it"]),
        (_cut_off, ["is damaged", "restore it"]),
        (_folder, ["cannot be opened", "give a file in a folder that exists"]),
    ],
)
def test_files_that_are_refused(make: Callable[[Path], None], parts: list[str], path: Path) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(UsageError) as error:
        History(path)
    sentence(error.value, str(path), *parts)
    assert (path.read_bytes() if path.is_file() else None) == before  # a file of another program is left as it is


def test_a_name_that_sqlite_gives_a_meaning_is_a_file_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with History(":memory:") as history:
        history.add("c", TINY, [FIRST])
    with History(tmp_path / ":memory:") as history:
        assert history.turns("c") == [FIRST]


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as error:
        History(tmp_path / "no" / "state.sqlite")
    sentence(error.value, "cannot be opened", "folder that exists")


def test_a_file_that_is_in_use(path: Path) -> None:
    with History(path) as history:
        with pytest.raises(UsageError) as error:
            History(path)
        sentence(error.value, str(path), "in use by another process", "wait until")
        history.add("c", TINY, [FIRST])
    History(path).close()


def test_a_file_that_is_read_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    History(path).close()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write to whatever its mode forbids
    with pytest.raises(UsageError) as error:
        History(path)
    sentence(error.value, str(path), "may not be written to", "make it and its folder writable")


@pytest.fixture
def full(path: Path) -> Iterator[History]:
    """A history whose disk has room for no more than a few pages, and holds one turn."""
    with History(path) as history:
        history.add("c", TINY, [FIRST])
        pages = history._file.execute("PRAGMA page_count").fetchone()[0]
        history._file.execute(f"PRAGMA max_page_count={pages}")
        yield history


def test_a_full_disk_loses_nothing_that_was_there_and_adds_all_turns_or_none(full: History, path: Path) -> None:
    with pytest.raises(MachineError) as error:
        full.add("c", TINY, [SECOND, Turn(tuple(range(5000)), (1,), "stop")])
    sentence(error.value, str(path), "the disk is full", "free some of the disk")
    assert full.turns("c") == [FIRST]
    full.add("c", TINY, [SECOND])  # which fits
    full.close()
    with History(path) as again:
        assert again.turns("c") == [FIRST, SECOND]


def test_a_disk_that_fails_when_a_turn_is_committed(path: Path) -> None:
    """The file of the log may not grow. What was there stays, and the same turn goes in when there is room again."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            history = History(path)
            history.add("c", TINY, [FIRST])
            log = Path(f"{path}-wal").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (log, resource.RLIM_INFINITY))
            try:
                history.add("c", TINY, [SECOND])
            except MachineError as error:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                before = history.turns("c")
                history.add("c", TINY, [SECOND])
                code = 0 if "look after the disk" in str(error) and before == [FIRST] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with History(path) as again:
        assert again.turns("c") == [FIRST, SECOND]


def test_a_file_that_was_removed_while_it_was_in_use(path: Path) -> None:
    with History(path) as history:
        path.unlink()
        with pytest.raises(MachineError) as error:
            history.add("c", TINY, [FIRST])
        sentence(error.value, str(path), "has been removed")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE turn SET prompt = '[5, ' WHERE number = 0",
        "UPDATE turn SET prompt = '[5, true]' WHERE number = 0",
        "UPDATE turn SET answer = x'00ff' WHERE number = 0",
        "UPDATE turn SET answer = '[-1]' WHERE number = 0",
        f"UPDATE turn SET answer = '{'[' * 100_000}' WHERE number = 0",
        "DELETE FROM turn WHERE number = 0",
    ],
)
def test_a_turn_that_is_damaged_is_named_and_the_other_conversations_are_read(change: str, path: Path) -> None:
    with History(path) as history:
        history.add("c", TINY, [FIRST, SECOND])
        history.add("other", TINY, [FIRST])
        history._file.execute(f"{change} AND conversation = 'c'")
        with pytest.raises(MachineError) as error:
            history.text("c")
        sentence(error.value, str(path), "is damaged")
        assert history.turns("other") == [FIRST]


def test_a_closed_history(path: Path) -> None:
    history = History(path)
    history.close()
    with pytest.raises(UsageError, match="has been closed"):
        history.turns("c")
    history.close()


def test_turns_without_the_model_that_they_belong_to_are_damage(path: Path) -> None:
    with History(path) as history:
        history.add("c", TINY, [FIRST])
        history._file.execute("DELETE FROM conversation")
        with pytest.raises(MachineError, match="is damaged \\('c' has turns, and no model\\)"):
            history.model("c")
        assert history.model("another") is None

"""The state file: what it keeps, and what it refuses."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from helpers import refusal, sentence

from minifuse.core.errors import MachineError, UsageError
from minifuse.serve.history import APPLICATION, History, ModelIdentity, Turn

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
            history._file.execute(
                "INSERT INTO turn VALUES ('c', 1, '[1]', '[2]', 'stop', 'ab')"
            )  # and is not committed
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


def _schema_without_text(path: Path) -> None:
    History(path).close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE turn", b"CREATE TABLE t\xffrn"))


def _other_schema(path: Path) -> None:
    History(path).close()
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE log", b"CREATE TABLE lag"))


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (_not_sqlite, ["is not a state file", "give one that --state made"]),
        (_of_another_program, ["of another program"]),
        (_of_the_future, ["of version 7", "with version 3"]),
        (_damaged, ["is damaged", "restore it"]),
        (_cut_off, ["is damaged", "restore it"]),
        (_schema_without_text, ["is damaged", "with no other state.sqlite-wal beside it"]),
        (_other_schema, ["is damaged", "restore it"]),
        (_folder, ["cannot be opened", "give a file in a folder that exists"]),
    ],
)
def test_files_that_are_refused(make: Callable[[Path], None], parts: list[str], path: Path) -> None:
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with refusal(UsageError, str(path), *parts):
        History(path)
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
    with refusal(UsageError, "cannot be opened", "folder that exists"):
        History(tmp_path / "no" / "state.sqlite")


def test_a_file_that_is_in_use(path: Path) -> None:
    with History(path) as history:
        with refusal(UsageError, str(path), "in use by another process", "wait until"):
            History(path)
        history.add("c", TINY, [FIRST])
    History(path).close()


def test_a_file_that_is_read_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    History(path).close()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write to whatever its mode forbids
    with refusal(UsageError, str(path), "may not be written to", "make it and its folder writable"):
        History(path)


@pytest.fixture
def full(path: Path) -> Iterator[History]:
    """A history whose disk has room for no more than a few pages, and holds one turn."""
    with History(path) as history:
        history.add("c", TINY, [FIRST])
        pages = history._file.execute("PRAGMA page_count").fetchone()[0]
        history._file.execute(f"PRAGMA max_page_count={pages}")
        yield history


def test_a_full_disk_loses_nothing_that_was_there_and_adds_all_turns_or_none(full: History, path: Path) -> None:
    with refusal(MachineError, str(path), "the disk is full", "free some of the disk"):
        full.add("c", TINY, [SECOND, Turn(tuple(range(5000)), (1,), "stop")])
    assert full.turns("c") == [FIRST]
    full.add("c", TINY, [SECOND])  # which fits
    full.close()
    with History(path) as again:
        assert again.turns("c") == [FIRST, SECOND]


def test_a_new_file_on_a_full_disk_is_the_machines_fault(path: Path) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))
            try:
                History(path)
            except MachineError as error:
                code = 0 if "look after the disk" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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


@pytest.mark.parametrize("ending", ["", "-wal"])
def test_a_file_that_was_removed_while_it_was_in_use(ending: str, path: Path) -> None:
    with History(path) as history:
        Path(f"{path}{ending}").unlink()
        with refusal(MachineError, str(path), "has been removed"):
            history.add("c", TINY, [FIRST])


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
        with refusal(MachineError, str(path), "is damaged"):
            history.text("c")
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


def _read(path: Path) -> dict[str, list[Turn]]:
    with History(path) as history:
        assert all(history.model(name) == TINY for name in history.conversations())
        return {name: history.turns(name) for name in history.conversations()}


def _killed(path: Path, turns: range, emptied: Callable[[int], bool]) -> list[bytes]:
    """A process adds turns and is killed, so that FILE-wal stays. Returns copies of the file before each turn."""
    child = os.fork()
    if child == 0:
        try:
            history = History(path)
            for i in turns:
                if emptied(i):
                    history._empty_log(history._file)
                shutil.copy(path, f"{path}.{i}")
                history.add(f"c{i % 3}", TINY, [Turn((i,) * 400, (i, i), "stop")])
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    return [Path(f"{path}.{i}").read_bytes() for i in turns]


def test_a_copy_that_is_put_back_beside_the_log_of_another_time_is_refused(path: Path) -> None:
    """Or it is read with that log, if it is from the same time; and after a refusal it is as whole as before."""
    log = Path(f"{path}-wal")
    copies: list[bytes] = []
    with History(path) as history:
        history.add("c0", TINY, [FIRST])
    for session in range(4):
        with History(path) as history:
            history.add("c1", TINY, [SECOND])
        copies.append(path.read_bytes())
        begin = 6 * session
        copies += _killed(path, range(begin, begin + 6), lambda i: i % 7 == 5)
        left, kept = path.read_bytes(), log.read_bytes()
        with History(path) as history:
            whole = {name: history.turns(name) for name in history.conversations()}
        refused = 0
        for copy in copies:
            path.write_bytes(copy)
            log.write_bytes(kept)
            try:
                assert _read(path) == whole
            except UsageError as error:
                refused += 1
                sentence(error, str(path), "state.sqlite-wal", "move that away, or put both back")
                assert (path.read_bytes(), log.read_bytes()) == (copy, kept)
                log.unlink()
                turns = sum(map(len, _read(path).values()))
                assert turns < sum(map(len, whole.values()))
        assert refused >= 7 * session
        path.write_bytes(left)
        log.write_bytes(kept)
        assert _read(path) == whole
        assert sorted(file.suffix for file in path.parent.glob("state.sqlite*") if not file.suffix[1:].isdigit()) == [
            ".sqlite"
        ]


def test_the_log_is_emptied_when_it_is_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minifuse.serve.history.LOG_BYTES", 50_000)
    longest = 0
    with History(path) as history:
        for _ in range(40):
            history.add("c", TINY, [FIRST])
            longest = max(longest, Path(f"{path}-wal").stat().st_size)
    assert 50_000 < longest < 100_000
    assert _read(path) == {"c": [FIRST] * 40}


VERSION_1 = """
CREATE TABLE conversation (name TEXT PRIMARY KEY, model TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE turn (conversation TEXT NOT NULL, number INTEGER NOT NULL, prompt TEXT NOT NULL, answer TEXT NOT NULL,
    finish_reason TEXT NOT NULL, PRIMARY KEY (conversation, number));
INSERT INTO conversation VALUES ('c', 'tiny', 'ab12');
INSERT INTO turn VALUES ('c', 0, '[5, 6]', '[7, 3]', 'stop');
"""


def test_a_file_of_version_1_is_read_and_goes_on(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.executescript(f"PRAGMA application_id={APPLICATION}; PRAGMA user_version=1; {VERSION_1}")
    copy = path.read_bytes()
    with History(path) as history:
        history.add("c", TINY, [SECOND])
    assert _read(path) == {"c": [FIRST, SECOND]}
    _killed(path, range(3), lambda i: False)
    path.write_bytes(copy)
    with pytest.raises(UsageError, match="put both back"):
        History(path)
    Path(f"{path}-wal").unlink()
    assert _read(path) == {"c": [FIRST]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small state file: four conversations, one of which has more turns than a page."""
    path = tmp_path_factory.mktemp("whole") / "state.sqlite"
    with History(path) as history:
        for i in range(4):
            history.add(f"conversation {i}", TINY, [FIRST, SECOND])
        history.add("long", TINY, [Turn(tuple(range(i, i + 60)), (i,), "stop") for i in range(20)])
    return path.read_bytes()


def _wrong(data: bytes, right: dict[str, list[Turn]], path: Path) -> str | None:
    """What is wrong with the way in which a damaged file is read; None: it is read right, or refused in a sentence."""
    path.write_bytes(data)
    try:
        with History(path) as history:
            for name, turns in right.items():
                try:
                    if (history.model(name), history.turns(name)) != (TINY, turns):
                        return f"{name} is read wrong"
                except MachineError as error:
                    sentence(error, str(path), "is damaged")
            if history.conversations() != sorted(right):
                return "other names are read"
            history.add("new", TINY, [FIRST])
    except (UsageError, MachineError) as error:
        sentence(error, str(path))
        return None
    return None


def _fuzz(whole: bytes, offsets: Iterable[int], draw: random.Random, path: Path) -> None:
    path.write_bytes(whole)
    right = _read(path)
    for offset in offsets:
        data = bytearray(whole)
        data[offset] ^= draw.choice((1, 0x80, 0xFF, 1 << draw.randrange(8)))
        for left in path.parent.glob("state.sqlite-*"):
            left.unlink()
        assert (wrong := _wrong(bytes(data), right, path)) is None, f"{wrong}, with byte {offset} {data[offset]:02x}"


def test_a_byte_that_has_changed_is_noticed_or_changes_nothing(whole: bytes, path: Path) -> None:
    draw = random.Random(0)
    written = [i for i, byte in enumerate(whole) if byte]
    _fuzz(whole, [*range(16, 100, 3), *draw.sample(written, 150)], draw, path)


@pytest.mark.long
def test_any_byte_that_has_changed_is_noticed_or_changes_nothing(whole: bytes, path: Path) -> None:
    _fuzz(whole, range(len(whole)), random.Random(1), path)

"""The raw tokens of conversations in a file that outlives the process (Pensieve, 3.4.3.4: the persistent store)."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from minifuse.errors import MachineError, UsageError

__all__ = ["History", "ModelIdentity", "Turn"]

APPLICATION = 0x6D666873  # "mfhs": marks the file as one of ours
VERSION = 1
PATIENCE_S = 0.3  # to wait for another process that is about to let the file go

TABLES = """
CREATE TABLE conversation (
    name TEXT PRIMARY KEY,
    model TEXT NOT NULL,  -- its name, and a digest of its shape and vocabulary
    digest TEXT NOT NULL
);
CREATE TABLE turn (
    conversation TEXT NOT NULL,
    number INTEGER NOT NULL,  -- from 0
    prompt TEXT NOT NULL,  -- token ids of this turn alone, as a JSON list
    answer TEXT NOT NULL,
    finish_reason TEXT NOT NULL,
    PRIMARY KEY (conversation, number)
);
"""

# What SQLite calls an error, by its beginning -> what is wrong with the file, and what to do about it.
WRONG = {
    "SQLITE_BUSY": ("is in use by another process", "wait until that has ended, or give another file"),
    "SQLITE_LOCKED": ("is in use by another process", "wait until that has ended, or give another file"),
    "SQLITE_READONLY": ("may not be written to", "make it and its folder writable, or give another file"),
    "SQLITE_CANTOPEN": ("cannot be opened", "give a file in a folder that exists and that you may write to"),
    "SQLITE_NOTADB": ("is not a state file", "give one that --state made, or a new file"),
    "SQLITE_CORRUPT": ("is damaged", "restore it from a copy, or give a new file"),
    "SQLITE_FULL": ("cannot grow, for the disk is full", "free some of the disk, or give a file on another"),
}
OTHERWISE = ("cannot be read and written", "look after the disk, or give a file on another")


class ModelIdentity(NamedTuple):
    """Which model a conversation's tokens belong to: its name, and a digest of its shape and vocabulary."""

    name: str
    digest: str


class Turn(NamedTuple):
    """The new tokens of a prompt, those of the answer, and why that ended."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    finish_reason: str

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.answer


class History:
    """Conversations in an SQLite file, turn by turn. What `add` has returned from survives the death of the process.

    The file is in WAL mode with `synchronous=FULL`. While it is open no other process can open it: a second run would
    continue texts that this one is about to add to. After a crash the file called FILE-wal belongs to it.

    Args:
        path: the file; a new one is made.

    Raises:
        UsageError: it cannot be opened for writing, is in use, is damaged, or is not such a file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()  # SQLite gives names such as :memory: a meaning
        self._lock = threading.Lock()  # requests are submitted by one thread and answered by another
        self._file: sqlite3.Connection | None = None
        try:
            with self._named():
                self._file = file = sqlite3.connect(
                    self.path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
                )
                self._open(file)
        except MachineError as error:
            self.close()
            raise UsageError(str(error)) from None
        except BaseException:
            self.close()
            raise

    def _open(self, file: sqlite3.Connection) -> None:
        """Look at the file before anything of it is changed; then take it."""
        if self.path.exists() and not os.access(self.path, os.W_OK):
            raise self._error("SQLITE_READONLY", "it is read-only")
        file.execute("PRAGMA locking_mode=EXCLUSIVE")
        (application,), (version,) = (
            file.execute(f"PRAGMA {p}").fetchone() for p in ("application_id", "user_version")
        )
        new = not application and not file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not new and application != APPLICATION:
            raise UsageError(
                f"The state file {self.path} is an SQLite file of another program: give one that --state made, or a "
                "new file."
            )
        if not new and version != VERSION:
            raise UsageError(
                f"The state file {self.path} is of version {version}, and this is minifuse with version {VERSION}: "
                "give a new file, or the minifuse that made it."
            )
        if (found := file.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise self._error("SQLITE_CORRUPT", found)
        file.execute("PRAGMA journal_mode=WAL")
        file.execute("PRAGMA synchronous=FULL")
        with self._transaction(file):  # a write, whether or not the file is new: it takes the lock, which is kept
            if new:
                for statement in TABLES.split(";")[:-1]:
                    file.execute(statement)
            file.execute(f"PRAGMA application_id={APPLICATION}")
            file.execute(f"PRAGMA user_version={VERSION}")

    def __enter__(self) -> History:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go. What was added stays."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()

    def conversations(self) -> list[str]:
        """The names of all conversations, in order.

        Raises:
            MachineError: as for every method, the file cannot be read or written any more.
        """
        with self._use() as file:
            return [name for (name,) in file.execute("SELECT name FROM conversation ORDER BY name")]

    def model(self, conversation: str) -> ModelIdentity | None:
        """The model whose tokens a conversation has; None if there is no such conversation."""
        with self._use() as file:
            row = file.execute("SELECT model, digest FROM conversation WHERE name = ?", (conversation,)).fetchone()
        if row is None and self.turns(conversation):
            raise self._error("SQLITE_CORRUPT", f"{conversation!r} has turns, and no model")
        return None if row is None else ModelIdentity(*row)

    def turns(self, conversation: str) -> list[Turn]:
        """The turns of a conversation, in order; none if there is no such conversation."""
        query = "SELECT number, prompt, answer, finish_reason FROM turn WHERE conversation = ? ORDER BY number"
        with self._use() as file:
            rows = file.execute(query, (conversation,)).fetchall()
        turns = []
        for i, (number, prompt, answer, reason) in enumerate(rows):
            if number != i:
                raise self._error("SQLITE_CORRUPT", f"turn {i} of {conversation!r} is missing")
            turns.append(Turn(self._tokens(prompt), self._tokens(answer), reason))
        return turns

    def text(self, conversation: str) -> tuple[int, ...]:
        """All tokens of a conversation, prompts and answers in turn."""
        return tuple(token for turn in self.turns(conversation) for token in turn.tokens)

    def add(self, conversation: str, model: ModelIdentity, turns: Iterable[Turn]) -> None:
        """Add turns to a conversation, all or none; a new one belongs to this model."""
        with self._use() as file, self._transaction(file):
            file.execute("INSERT OR IGNORE INTO conversation VALUES (?, ?, ?)", (conversation, *model))
            (number,) = file.execute("SELECT count(*) FROM turn WHERE conversation = ?", (conversation,)).fetchone()
            rows = [
                (conversation, number + i, json.dumps(turn.prompt), json.dumps(turn.answer), turn.finish_reason)
                for i, turn in enumerate(turns)
            ]
            file.executemany("INSERT INTO turn VALUES (?, ?, ?, ?, ?)", rows)

    def _tokens(self, text: object) -> tuple[int, ...]:
        try:
            tokens = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            tokens = None
        if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
            raise self._error("SQLITE_CORRUPT", f"{text!r:.40} is no list of tokens")
        return tuple(tokens)

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._named():
            if self._file is None:
                raise UsageError(f"The state file {self.path} has been closed: open it again.")
            if not self.path.exists():  # what is written into a file without a name is lost when it is closed
                raise MachineError(f"The state file {self.path} has been removed while it was in use: leave it there.")
            yield self._file

    @staticmethod
    @contextmanager
    def _transaction(file: sqlite3.Connection) -> Iterator[None]:
        file.execute("BEGIN IMMEDIATE")
        try:
            yield
            file.execute("COMMIT")
        except BaseException:
            if file.in_transaction:  # SQLite has not taken it back by itself, as it does on a full disk
                file.execute("ROLLBACK")
            raise

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(getattr(error, "sqlite_errorname", ""), error) from None

    def _error(self, name: str, why: object) -> MachineError:
        what, advice = next((text for start, text in WRONG.items() if name.startswith(start)), OTHERWISE)
        return MachineError(f"The state file {self.path} {what} ({' '.join(str(why).split())}): {advice}.")

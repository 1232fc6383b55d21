"""The persistent store: raw tokens of conversations, in a file (Pensieve, 3.4.3.4)."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from minifuse.core.errors import MachineError, MinifuseError, UsageError

APPLICATION = 0x6D666873  # "mfhs": marks the file as one of ours
PATIENCE_S = 0.3  # how long to wait for another process that is about to close the file
LOG_BYTES = 4 << 20  # from this size on, FILE-wal is emptied into the file

# The steps from each version of the file to the next; a new file takes all of them.
STEPS = (
    """
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
""",
    """
ALTER TABLE conversation ADD COLUMN checksum TEXT;
UPDATE conversation SET checksum = checksum(name, model, digest);
ALTER TABLE turn ADD COLUMN checksum TEXT;
UPDATE turn SET checksum = checksum(conversation, number, prompt, answer, finish_reason);
CREATE TABLE log (id TEXT NOT NULL, before TEXT NOT NULL);  -- the FILE-wal that was last begun, and the one before
INSERT INTO log VALUES (hex(randomblob(8)), '');
""",
    """
ALTER TABLE conversation ADD COLUMN said TEXT;  -- a digest of all that was said, by which a server finds it
CREATE INDEX conversation_said ON conversation (said);
""",
)
VERSION = len(STEPS)
HEADER = """
SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)
FROM pragma_application_id, pragma_user_version
"""
LOGS, HAS_LOGS = "SELECT id, before FROM log", "SELECT 1 FROM sqlite_master WHERE name = 'log'"
SETTINGS = """
PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;
"""
BEGIN_LOG = "UPDATE log SET before = id, id = hex(randomblob(8))"

# The beginning of SQLite's name of an error -> what is wrong with the file, and what to do about it.
WRONG = {
    "SQLITE_BUSY": ("is in use by another process", "wait until that has ended, or give another file"),
    "SQLITE_READONLY": ("may not be written to", "make it and its folder writable, or give another file"),
    "SQLITE_CANTOPEN": ("cannot be opened", "give a file in a folder that exists and that you may write to"),
    "SQLITE_NOTADB": ("is not a state file", "give one that --state made, or a new file"),
    "SQLITE_FULL": ("cannot grow, for the disk is full", "free some of the disk, or give a file on another"),
    "SQLITE_IOERR": ("cannot be read and written", "look after the disk, or give a file on another"),
}
DISK = ("SQLITE_FULL", "SQLITE_IOERR")  # the machine's fault, even when the file is being opened
# Any other error means damage: the statements succeed on every undamaged state file.
DAMAGED = ("is damaged", "restore it from a copy, with no other {log} beside it, or give a new file")


# These read a row, and whether it still has the content that was written.
MODEL = """
SELECT model, digest, checksum = checksum(name, model, digest) FROM conversation WHERE name = ?
"""
TURNS = """
SELECT number, prompt, answer, finish_reason, checksum = checksum(conversation, number, prompt, answer, finish_reason)
FROM turn WHERE conversation = ? ORDER BY number
"""
ADD_CONVERSATION = """
INSERT INTO conversation VALUES (?1, ?2, ?3, checksum(?1, ?2, ?3), ?4)
ON CONFLICT (name) DO UPDATE SET said = excluded.said
"""
ADD_TURN = """
INSERT INTO turn SELECT ?1, count(*), ?2, ?3, ?4, checksum(?1, count(*), ?2, ?3, ?4) FROM turn WHERE conversation = ?1
"""


def _checksum(*values: object) -> str:
    return hashlib.blake2b(repr(values).encode(errors="surrogatepass"), digest_size=8).hexdigest()


def _logs(file: sqlite3.Connection) -> tuple[str, str]:
    """Return the ids of the last two files FILE-wal; version 1 has only empty ids."""
    begun: tuple[str, str] = file.execute(LOGS).fetchone() if file.execute(HAS_LOGS).fetchone() else ("", "")
    return begun


class ModelIdentity(NamedTuple):
    """The model of a conversation: its name, and a digest of shape and vocabulary."""

    name: str
    digest: str


class Turn(NamedTuple):
    """A turn: the prompt's new tokens, the answer's tokens, and why the answer ended."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    finish_reason: str


class History:
    """Stores conversations in an SQLite file, turn by turn.

    Once `add` has returned, its turns survive the death of the process. The file is in WAL mode with
    `synchronous=FULL`. While the file is open, no other process can open it: a second run would continue texts that the
    first is about to extend. After a crash, content may be in FILE-wal next to the file, so copy both. A copy that is
    put back next to a FILE-wal of another time is refused, because that log would damage it. Turns have checksums.

    Args:
        path: the file; it is made if it does not exist.

    Raises:
        UsageError: the file cannot be opened for writing, is in use, is damaged, or is not a state file.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()  # absolute, since SQLite treats names such as :memory: specially
        self._lock = threading.Lock()  # one thread submits requests, and another answers them
        self._file: sqlite3.Connection | None = None  # the connection, while the file is open
        self._log = Path(f"{self.path}-wal")
        self._log_begun = True  # whether FILE-wal has its id
        with self._named():
            version = self._look()
            file = self._connect("rwc")
            try:
                self._open(file, version)
            except BaseException:
                file.close()
                raise
        self._file = file

    def _connect(self, mode: str) -> sqlite3.Connection:
        file = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            timeout=PATIENCE_S,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        file.create_function("checksum", -1, _checksum, deterministic=True)
        return file

    def _look(self) -> int:
        """Check the file and return its version, or 0 if the file is new.

        The connection is read-only: closing a writable one would empty FILE-wal into the file.
        """
        if not self.path.is_file() or not self.path.stat().st_size:
            return 0
        if not os.access(self.path, os.W_OK):
            raise self._error("it is read-only", "SQLITE_READONLY")
        begun = Path(f"{self.path}-journal").exists()  # an unfinished change without WAL, to be undone
        with closing(self._connect("rw" if begun else "ro")) as file:
            application, version, num_tables = file.execute(HEADER).fetchone()
            if not application and not num_tables:
                return 0
            if application != APPLICATION:
                raise UsageError(
                    f"The state file {self.path} is an SQLite file of another program: give one that --state made, or "
                    "a new file."
                )
            if not 1 <= version <= VERSION:
                raise UsageError(
                    f"The state file {self.path} is of version {version}, and this is minifuse with version {VERSION}: "
                    "give a new file, or the minifuse that made it."
                )
            if not self._owns_log(file):
                raise UsageError(
                    f"The state file {self.path} is not the one that {self._log.name} beside it was written for, as "
                    "when a copy was put back: move that away, or put both back."
                )
            if (found := file.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
                raise self._error(found)
            return int(version)

    def _owns_log(self, file: sqlite3.Connection) -> bool:
        """Return whether FILE-wal was written for this file."""
        if not self._log.exists():
            return True
        with closing(self._connect("ro&immutable=1")) as alone:
            try:
                last, _ = _logs(alone)
            except sqlite3.Error:  # killed while the log was emptied into the file: only both together are readable
                return True
        return last in _logs(file)

    def _open(self, file: sqlite3.Connection, version: int) -> None:
        file.executescript(SETTINGS)
        if version < VERSION:
            with self._transaction(file):
                for statement in "".join(STEPS[version:]).split(";")[:-1]:
                    file.execute(statement)
                file.execute(f"PRAGMA application_id={APPLICATION}")
                file.execute(f"PRAGMA user_version={VERSION}")
        self._empty_log(file)
        with self._transaction(file):  # takes the lock, and keeps it
            Path(f"{self.path}-shm").unlink(missing_ok=True)  # left by `_look`; under the lock nobody else uses it

    def __enter__(self) -> History:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, so that others can open it."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()

    def conversations(self) -> list[str]:
        """Return the names of all conversations, in order.

        Raises:
            MachineError: the file can no longer be read or written. Every method may raise this.
        """
        with self._use() as file:
            return [name for (name,) in file.execute("SELECT name FROM conversation ORDER BY name")]

    def model(self, conversation: str) -> ModelIdentity | None:
        """Return the model of a conversation; None if there is no such conversation."""
        with self._use() as file:
            row = file.execute(MODEL, (conversation,)).fetchone()
        if row is None:
            if self.turns(conversation):
                raise self._error(f"{conversation!r} has turns, and no model")
            return None
        *model, as_written = row
        if not as_written:
            raise self._error(f"the model of {conversation!r} is not what was written")
        return ModelIdentity(*model)

    def turns(self, conversation: str) -> list[Turn]:
        """Return a conversation's turns in order; an empty list if there is no such conversation."""
        turns = []
        with self._use() as file:
            rows = file.execute(TURNS, (conversation,)).fetchall()
        for i, (number, prompt, answer, reason, as_written) in enumerate(rows):
            if number != i:
                raise self._error(f"turn {i} of {conversation!r} is missing")
            if not as_written:
                raise self._error(f"turn {i} of {conversation!r} is not what was written")
            try:
                turns.append(Turn(tuple(json.loads(prompt)), tuple(json.loads(answer)), reason))
            except (ValueError, TypeError) as error:  # a row of version 1, which had no checksums
                raise self._error(error) from None
        return turns

    def text(self, conversation: str) -> tuple[int, ...]:
        """Return all tokens of a conversation, prompts and answers alternating."""
        return tuple(token for turn in self.turns(conversation) for token in turn.prompt + turn.answer)

    def said(self, digest: str) -> str | None:
        """Return the conversation whose whole content has this digest, or None."""
        with self._use() as file:
            row = file.execute("SELECT name FROM conversation WHERE said = ?", (digest,)).fetchone()
        return None if row is None else str(row[0])

    def add(self, conversation: str, model: ModelIdentity, turns: Iterable[Turn], said: str | None = None) -> None:
        """Add all of these turns to a conversation, or none of them.

        Args:
            model: the conversation's model, stored if the conversation is new.
            said: a digest of all that was said in the conversation, these turns included.
        """
        with self._use() as file:
            if self._log.stat().st_size > LOG_BYTES:
                self._empty_log(file)
            with self._transaction(file):
                file.execute(ADD_CONVERSATION, (conversation, *model, said))
                for prompt, answer, reason in turns:
                    file.execute(ADD_TURN, (conversation, json.dumps(prompt), json.dumps(answer), reason))

    @contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._named():
            if self._file is None:
                raise UsageError(f"The state file {self.path} has been closed: open it again.")
            for path in (self.path, self._log):  # what is written into a removed file is lost
                if not path.exists():
                    raise MachineError(f"The state file {path} has been removed while it was in use: leave it there.")
            yield self._file

    def _empty_log(self, file: sqlite3.Connection) -> None:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._log_begun = False

    @contextmanager
    def _transaction(self, file: sqlite3.Connection) -> Iterator[None]:
        file.execute("BEGIN IMMEDIATE")
        with file:  # commits, or rolls back
            if not self._log_begun:
                file.execute(BEGIN_LOG)
                file.execute(f"PRAGMA user_version={VERSION}")  # writes the page that lists all tables into the log
            yield
        self._log_begun = True

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # UnicodeDecodeError comes from SQLite's message
            raise self._error(error, getattr(error, "sqlite_errorname", "SQLITE_CORRUPT")) from None

    def _error(self, why: object, name: str = "SQLITE_CORRUPT") -> MinifuseError:
        """Translate SQLite's error `name` into a user's mistake or a machine's failure."""
        what, advice = next((text for start, text in WRONG.items() if name.startswith(start)), DAMAGED)
        advice = advice.format(log=self._log.name)
        kind = MachineError if self._file is not None or name.startswith(DISK) else UsageError
        return kind(f"The state file {self.path} {what} ({' '.join(str(why).split())}): {advice}.")

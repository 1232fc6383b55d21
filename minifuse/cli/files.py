"""Parses and checks the paths of files that commands write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from minifuse.cli.plugin import plugin_files
from minifuse.cli.streams import is_stdout
from minifuse.core.errors import UsageError

STDOUT: Literal["-"] = "-"
SQLITE = ("", "-wal", "-shm", "-journal")  # suffixes of the files that SQLite keeps beside its own


@contextmanager
def _refused_unless_written(text: str, flag: str, cannot: str, give: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{flag} is {text!r}, which cannot be {cannot} ({reason}): give {give} that exists and that you may write "
            "to."
        ) from None


def writable_file(text: str, flag: str) -> Path:
    """Parse the path of a file; open it to check that it is writable.

    Raises:
        UsageError: the file cannot be written, is standard output, or is a named pipe (which would wait for a reader).
    """
    path = Path(text)
    if is_stdout(path):
        raise UsageError(f"{flag} is {text!r}, which is standard output: give - for that, or a file of its own.")
    if path.is_fifo() and path.parent != Path("/dev/fd"):  # where shells put the pipes that they have opened
        raise UsageError(f"{flag} is {text!r}, a pipe, which waits until it is read: give a file, or - and a |.")
    with _refused_unless_written(text, flag, "written", "a file in a folder"):
        new = not os.path.lexists(path)
        path.open("a").close()
        if new:
            path.unlink()
        elif path.is_file():
            _try_folder(path.resolve().parent)  # a replacement is written in the same folder
    return path


def file_or_stdout(text: str, flag: str) -> Path | Literal["-"]:
    """Parse `STDOUT`, or the path of a file that can be written."""
    return STDOUT if text == STDOUT else writable_file(text, flag)


def writable_folder(text: str, flag: str) -> Path:
    """Parse the path of a folder that exists and can be written to."""
    with _refused_unless_written(text, flag, "written to", "a folder"):
        _try_folder(Path(text))
    return Path(text)


def folder_to_be(text: str, flag: str) -> Path:
    """Parse the path of a folder that either is writable or does not exist."""
    return writable_folder(text, flag) if os.path.lexists(text) else Path(text)


def _try_folder(folder: Path) -> None:
    """Raise `OSError` unless a file can be made in the folder."""
    tempfile.TemporaryFile(dir=folder).close()


def refuse_overwriting(written: Iterable[tuple[str, object]], read: Iterable[str | Path | None]) -> None:
    """Refuse to write a file that the command also reads, or that two flags name.

    Args:
        written: pairs of a flag and its value; values that are no paths are ignored.
        read: the files and model folders that the command reads. Plugins' files are always added.

    Raises:
        UsageError: two of these paths are the same file, by whatever names.
    """
    taken: dict[Hashable, str] = {}
    for path in (*plugin_files(), *(Path(name) for name in read if name is not None)):
        files = [*path.glob("*.json"), *path.glob("*.safetensors")] if path.is_dir() else [path]
        taken |= {_identity(file): "this command reads" for file in files}
    for flag, target in written:
        if isinstance(target, Path):
            ends = SQLITE if flag == "--state" else ("",)
            for identity in [_identity(Path(f"{target}{end}")) for end in ends]:
                if identity in taken:
                    raise UsageError(f"{flag} is {str(target)!r}, which {taken[identity]}: give a file of its own.")
                taken[identity] = f"{flag} names, too"


def _identity(path: Path) -> Hashable:
    """Return a key that all names of one file share; the file may be missing."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return path.resolve()
    return found.st_dev, found.st_ino

"""Writes files and folders under temporary names, then renames them, so that none is incomplete."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from minifuse.core.errors import MachineError, MinifuseError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of the machine; all others mean a wrong place


def write_whole(path: Path, text: str) -> None:
    """Write a text to a file with `whole_file`."""
    with whole_file(path) as file:
        file.write(text)


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """Open a file that replaces `path` when the block ends, unless the block raises.

    A pipe or a device cannot be replaced: it is written to directly.

    Raises:
        MachineError: the disk is full or fails; the message names the file.
        UsageError: nothing may be written there.
    """
    with _named(path) as ours:
        if path.exists() and not path.is_file():
            with path.open("w", encoding="utf-8") as file:
                yield file
            return
        place = path.resolve()  # keeps a link, and replaces its target
        part = _beside(place)
        ours += [part, place]
        try:
            with part.open("x", encoding="utf-8") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # some disks report only here that they are full
            if place.exists():
                part.chmod(stat.S_IMODE(place.stat().st_mode))
            part.replace(place)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Make a folder that becomes `folder` when the block ends, unless the block raises.

    Args:
        folder: a missing or an empty folder. An empty folder is filled and not replaced: a shell may be in it.

    Raises:
        MachineError: the disk is full or fails; the message names the folder.
        UsageError: nothing may be written there.
    """
    import shutil

    with _named(folder) as ours:
        there = folder.is_dir()
        if not there:
            folder.parent.mkdir(parents=True, exist_ok=True)
        part = _beside(folder / "new" if there else folder)
        ours.append(part)
        left = [part]  # removed if the block raises
        try:
            part.mkdir()
            yield part
            if there:
                for entry in sorted(part.iterdir()):
                    left.append(entry.rename(folder / entry.name))
                part.rmdir()
            else:
                part.rename(folder)
        except BaseException:
            for path in left:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            raise


def unwritten(path: Path, error: Exception) -> MinifuseError:
    """Return the error for a file or folder that could not be written."""
    reason = getattr(error, "strerror", None) or error
    if getattr(error, "errno", None) in FULL:
        return MachineError(
            f"{path} could not be written ({reason}), and has not changed: free some room, or give another place."
        )
    return UsageError(f"{path} cannot be written ({reason}): give a place that exists and that you may write to.")


@contextmanager
def _named(path: Path) -> Iterator[list[Path]]:
    """Turn errors of writing into errors that name `path`; pass on errors about other files.

    Yields:
        The list of written paths, to which the block may add. Errors about one of these paths, a folder above it or a
        file below it name `path`.
    """
    if "\0" in str(path):
        raise unwritten(path, ValueError("a zero byte in the name"))
    ours = [path]
    try:
        yield ours
    except BrokenPipeError:
        raise
    except OSError as error:
        at = None if error.filename is None else Path(os.fsdecode(error.filename))
        if at is not None and not any(at.is_relative_to(one) or one.is_relative_to(at) for one in ours):
            raise
        raise unwritten(path, error) from None


def _beside(path: Path) -> Path:
    """Return a new path in the same folder, and therefore on the same disk."""
    return path.with_name(f".minifuse-{os.urandom(6).hex()}.part")

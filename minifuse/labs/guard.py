"""What Python refuses to a student's process: an audit hook, which cannot be removed, and which says why.

`minifuse.labs.student` runs this file by its path, so it imports nothing of minifuse.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from typing import Any


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


DEVICES = ("/dev/null", "/dev/urandom")
DENIED = words(  # beginnings of the names of audit events: see "Audit events table" in Python's documentation
    """os.remove os.rename os.mkdir os.rmdir os.link os.symlink os.chmod os.chown os.truncate os.utime os.putenv
    os.unsetenv os.chdir os.setxattr shutil. tempfile. sqlite3. mmap. fcntl.
    socket. ftplib. http. urllib. webbrowser.
    subprocess. os.system os.fork os.exec os.posix_spawn os.spawn os.kill os.startfile pty. _thread.start
    ctypes. signal. resource. gc. pickle. code.__new__ sys.setprofile sys.addaudithook sys._current"""
)
REFUSED = words(  # modules that are not imported
    "_posixsubprocess _ctypes ctypes _socket socket subprocess multiprocessing _posixshmem"
)


def places() -> list[str]:
    """The folders that Python and its modules are read from."""
    found = {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, *sys.path}
    return sorted({os.path.realpath(place) for place in found if place})


def guard(folder: str, closed: list[str]) -> Callable[[Any], None]:
    """From here on nothing is written, nothing is read but Python itself and `folder`, and no process or host reached.

    What it needs is bound here, and is not written in Python, so that the student's file cannot change it. A path
    has to be a text or bytes as such: other objects could tell two paths. It begins at the root, for the audit event of
    a path below an open folder does not tell the folder.

    Returns:
        What sets the function that traces, which nothing else may do from here on.
    """
    readlink, settrace, kind, text, octets, number = os.readlink, sys.settrace, type, str, bytes, int
    refusal, failure, writing = PermissionError, OSError, os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    listing = frozenset({"os.listdir", "os.scandir"})
    denied, modules, devices = tuple(DENIED), REFUSED, frozenset(DEVICES)
    python = tuple(f"{place}{os.sep}" for place in places())
    shut, own = tuple(os.path.realpath(one) + os.sep for one in closed), os.path.realpath(folder) + os.sep
    tracing = False

    def resolved(path: str) -> str:
        if not path.startswith("/"):
            raise refusal(f"a lab may not read {path}")
        left, links = path.split("/")[::-1], 0
        found: list[str] = []
        while left:
            part = left.pop()
            if part == "..":
                found = found[:-1]
            elif part not in ("", "."):
                found.append(part)
                try:
                    target = readlink("/" + "/".join(found))
                except failure:  # it is no link
                    continue
                links += 1
                if links > 40:
                    raise refusal(f"a lab may not read {path}")
                found = [] if target.startswith("/") else found[:-1]
                left += target.split("/")[::-1]
        return "/" + "/".join(found)

    def hook(event, arguments):  # type: ignore[no-untyped-def]
        if event == "open" or event in listing:
            path = arguments[0]
            if kind(path) is number:  # a descriptor
                return
            if kind(path) is octets:
                path = path.decode("utf-8", "surrogateescape")
            if kind(path) is not text:
                raise refusal(f"a lab may not read what {kind(path).__name__} names")
            if event == "open" and path not in devices:
                mode, flags = arguments[1], arguments[2]
                if (kind(mode) is text and mode.strip("rbtU")) or (kind(flags) is number and flags & writing):
                    raise refusal(f"a lab may not write files, and {path} was to be written")
            name = resolved(path)
            below = name + "/"
            if below.startswith(own) or name in devices:
                return
            if below.startswith(shut) or not below.startswith(python):
                raise refusal(f"a lab may not read {name}")
        elif event == "import":
            module = text.rpartition(arguments[0], ".")[2]
            if module in modules:
                raise refusal(f"a lab may not import {module}")
        elif event == "sys.settrace":
            if not tracing:  # asked for by the file; or by Python, after OutOfSteps and where there is no room to count
                room(50)
                raise refusal("a lab may not change the count of steps")
        elif event.startswith(denied):
            raise refusal(f"a lab may not do this ({event})")

    def room(calls: int) -> None:
        if calls:  # else a RecursionError, which says what is wrong
            room(calls - 1)

    def trace(function):  # type: ignore[no-untyped-def]
        nonlocal tracing
        tracing = True
        try:
            settrace(function)
        finally:
            tracing = False

    sys.addaudithook(hook)
    return trace

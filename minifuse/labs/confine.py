"""What the operating system refuses to a student's process, whatever it finds out about Python's own guard.

Linux has two measures that a process may ask for without privileges, that hold for root too, and that cannot be undone:
Landlock, by which files are read from some places alone and nothing is written, and a filter of system calls. Where
the kernel lacks one, `minifuse.labs.student` has its guard, its limits and its user alone.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Sequence

NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2  # of prctl
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, alike on every machine
VERSION = 1  # a flag of CREATE_RULESET: tell the version
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # of Landlock's versions: that many kinds of access; 16 from the fifth on
WRITE_FILE, READ_FILE, READ_DIR = 1 << 1, 1 << 2, 1 << 3

X86_64 = 0xC000003E
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # what the filter consists of
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # with EPERM
CALL, MACHINE, FIRST_ARGUMENT = 0, 4, 16  # where a call's number is, its machine, the half of its first argument
PRLIMIT = 302  # of this process alone, whose number is then 0
REFUSED = (
    *(41, 42, 43, 44, 46, 49, 50, 53, 288, 307),  # sockets
    *(56, 57, 58, 435, 59, 322),  # clone, fork, vfork, clone3; execve, execveat
    *(62, 129, 200, 234, 297, 424, 434, 438),  # signals, and other processes by descriptors
    *(101, 310, 311, 312, 298, 321, 323),  # ptrace, process_vm_*, kcmp; perf_event_open, bpf, userfaultfd
    *(425, 426, 427),  # io_uring, which does all of this without system calls
    *(133, 259, 319, 29, 30, 64, 68, 240),  # mknod, memfd_create, memory and queues that processes share
    *(141, 142, 144, 203, 251, 314),  # priorities and processors of others
    *(165, 272, 308, 304, 248, 249, 250),  # mounts, namespaces, files by handles, keys
)


def landlock() -> int:
    """The version of Landlock that the kernel has, 0 for none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, VERSION)))


def confine(readable: Sequence[str], devices: Sequence[str]) -> None:
    """Read nothing but what lies below these places, write to nothing but these devices, and start or reach nothing."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    if version := landlock():
        every = struct.pack("Q", (1 << RIGHTS.get(version, 16)) - 1)
        ruleset = libc.syscall(CREATE_RULESET, every, len(every), 0)
        for place in (*readable, *devices):
            try:
                below = os.open(place, os.O_PATH)
            except OSError:
                continue  # not there
            allowed = READ_FILE | (READ_DIR if os.path.isdir(place) else 0)
            allowed |= WRITE_FILE if place in devices else 0
            libc.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, below), 0)
            os.close(below)
        libc.syscall(RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
    if platform.machine() == "x86_64":
        _filter(libc)


def _filter(libc: ctypes.CDLL) -> None:
    """Refuse system calls."""
    count = len(REFUSED)
    steps = [
        (LOAD, 0, 0, MACHINE),
        (EQUAL, 0, count + 6, X86_64),
        (LOAD, 0, 0, CALL),
        (AT_LEAST, count + 4, 0, 1 << 30),  # numbers of another kind of the same machine
        *((EQUAL, count + 3 - i, 0, number) for i, number in enumerate(REFUSED)),
        (EQUAL, 0, 2, PRLIMIT),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (EQUAL, 0, 1, 0),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    libc.prctl(SET_SECCOMP, FILTER, struct.pack("HP", len(steps), ctypes.addressof(program)), 0, 0)

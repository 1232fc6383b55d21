"""Confines a student's process: no other files, no network, no other processes.

Linux has two measures that need no privileges, hold for root too, and cannot be undone. With Landlock (from Linux 5.13
on), a process can read only some places and write nothing but some devices. A filter refuses system calls; libseccomp,
on which apt and systemd depend, makes it. On other systems, the student's file can do whatever its user can.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Sequence

SET_DEATH_SIGNAL, KILL, NO_NEW_PRIVS = 1, 9, 38  # of prctl
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, alike on every machine
VERSION = 1  # a flag of CREATE_RULESET: tell the version
RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # Landlock's version -> how many kinds of access it knows; 16 from 5 on
WRITE_FILE, READ_FILE, READ_DIR = 1 << 1, 1 << 2, 1 << 3

SECCOMP = "libseccomp.so.2"
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # with EPERM
REFUSED = """
    socket socketpair connect accept accept4 bind listen sendto sendmsg sendmmsg
    clone clone3 fork vfork execve execveat
    kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_getfd pidfd_send_signal prctl prlimit64
    ptrace process_vm_readv process_vm_writev kcmp perf_event_open bpf userfaultfd
    io_uring_setup io_uring_enter io_uring_register
    mknod mknodat memfd_create shmget shmat semget msgget mq_open
    setpriority sched_setparam sched_setscheduler sched_setaffinity sched_setattr ioprio_set
    mount unshare setns open_by_handle_at add_key request_key keyctl
"""


def landlock() -> int:
    """Return the kernel's version of Landlock, or 0 without Landlock."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None).syscall(CREATE_RULESET, None, 0, VERSION)))


def seccomp() -> ctypes.CDLL | None:
    """Load libseccomp, or return None."""
    try:
        return ctypes.CDLL(SECCOMP) if sys.platform == "linux" else None
    except OSError:
        return None


def end_with(judge: int) -> None:
    """End this process as soon as its parent, process `judge`, has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, KILL, 0, 0, 0)
    if os.getppid() != judge:
        raise SystemExit


def confine(readable: Sequence[str], devices: Sequence[str], listed: Sequence[str]) -> None:
    """Deny this process access to other files, the network and other processes.

    Args:
        readable: files that may be read, and folders below which all files may be read.
        devices: files that may be read and written.
        listed: folders whose contents may be listed, as an import does.

    Raises:
        OSError: this machine has a measure, but cannot apply it.
    """
    if sys.platform != "linux":
        return
    library, libc = seccomp(), ctypes.CDLL(None)
    libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    if version := landlock():
        every = struct.pack("Q", (1 << RIGHTS.get(version, 16)) - 1)
        ruleset = libc.syscall(CREATE_RULESET, every, len(every), 0)
        for place in (*readable, *devices, *listed):
            try:
                below = os.open(place, os.O_PATH)
            except OSError:
                continue  # not there
            allowed = 0 if place in listed else READ_FILE
            allowed |= READ_DIR if os.path.isdir(place) else 0
            allowed |= WRITE_FILE if place in devices else 0
            libc.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", allowed, below), 0)
            os.close(below)
        _took("Landlock", libc.syscall(RESTRICT_SELF, ruleset, 0))
        os.close(ruleset)
    if library is not None:
        library.seccomp_init.restype = ctypes.c_void_p
        rules = ctypes.c_void_p(library.seccomp_init(ALLOW))
        for name in REFUSED.split():
            library.seccomp_rule_add(rules, REFUSE, library.seccomp_syscall_resolve_name(name.encode()), 0)
        _took("seccomp", library.seccomp_load(rules))


def _took(measure: str, result: int) -> None:
    if result != 0:
        raise OSError(f"{measure} refuses to confine this process")

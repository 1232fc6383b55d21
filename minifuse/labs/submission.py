"""Calls functions of a student's file, which runs in a process of its own."""

from __future__ import annotations

import json
import os
import pwd
import resource
import secrets
import select
import selectors
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, TypeAdapter, ValidationError

from minifuse.core.errors import MachineError, MinifuseError
from minifuse.io.lines import misfit
from minifuse.io.shipped import places
from minifuse.labs import student

PLACES = places("tutorials/labs", "tutorials/labs")
PRINTED = 20_000  # characters of what a file prints that are kept
REPLY = 4 << 20  # bytes of a value as JSON
CHUNK = 1 << 16
STARTS = 120  # seconds that a process may take to import what the lab uses
PATIENCE = 3  # seconds on the clock per second of computing, for half a core of a busy machine


class Limits(BaseModel):
    """What a student's file may use; `steps` counts lines of Python in one call."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    steps: int = 1_000_000
    memory_mb: int = 512  # in addition to what Python and `imports` take
    seconds: int = 30  # of processor time in all tests together, and PATIENCE times as many on the clock
    imports: list[str] = []  # modules that it may use in addition to Python's own
    withheld: list[str] = []  # modules that the student is asked to write


class Error(BaseModel):
    """An error that a call ended with; `where` is its place in the student's file."""

    type: str
    text: str = ""
    where: str | None = None


class Reply(BaseModel):
    """The answer of the student's process to a call."""

    number: int
    steps: NonNegativeInt
    value: Any = None
    error: Error | None = None


@dataclass
class Budget:
    """The seconds of computing that are left for all tests of one file."""

    seconds: float


class StudentFault(MinifuseError):
    """The student's file broke a rule or returned a wrong value.

    `unwritten`: the skeleton's NotImplementedError was raised.
    """

    exit_code = 1

    def __init__(self, what: str, unwritten: bool = False) -> None:
        super().__init__(what)
        self.unwritten = unwritten


class Remote:
    """An object that lives in the student's process."""

    def __init__(self, submission: Submission, name: str, number: int) -> None:
        self._submission = submission
        self._name = name
        self._number = number
        weakref.finalize(self, submission._forgotten.append, number)  # the process is told with the next call

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (self._number,)  # the only part of it that exists here; used to compare stages

    def __call__(self, method: str, *arguments: Any, form: Any = Any) -> Any:
        """Call a method; check the value as `Submission.call` does."""
        call = {"do": "method", "object": self._number, "name": method, "arguments": arguments}
        return self._submission._ask(call, f"{self._name}.{method}", form)

    def copy(self) -> Remote:
        """Return a deep copy of this object, in the student's process."""
        return self._submission._object({"do": "copy", "of": self._number}, self._name)


@dataclass
class Submission:
    """A student's file, in a process of its own that lasts for a `with` block.

    >>> with Submission(Path("solution.py")) as work:  # doctest: +SKIP
    ...     work.call("missing", 12, [[0, 4]], form=list[tuple[int, int]])
    [[4, 12]]

    Raises:
        StudentFault: whenever the file fails, takes too long, or returns a value of another type than `form`.
        MachineError: the process cannot be started or confined on this machine.
    """

    file: Path
    limits: Limits = field(default_factory=Limits)
    user: str | None = None  # the user that the process runs as; None: the judge's
    names: bool = True  # check the names in the file before it runs, and import no other file of its folder
    budget: Budget | None = None  # shared by all processes that run the file
    steps: int = 0  # of the last call
    most_steps: int = 0

    def __enter__(self) -> Self:
        self._text, self._buffer = "", b""
        self.budget = self.budget or Budget(self.limits.seconds)
        if self.budget.seconds <= 0:
            raise StudentFault(f"This was not run: what was run before took the {self.limits.seconds} s of all tests.")
        self._numbers = count()
        self._forgotten: list[int] = []
        self._stopped: str | None = None  # why all further calls fail; None: they do not
        self._computed = -_of_children()
        self._waited = 0.0
        self._patience = PATIENCE * self.budget.seconds
        read_calls, self._calls = os.pipe()
        self._replies, write_replies = os.pipe()
        settings = {
            "judge": os.getpid(),
            "file": str(self.file.resolve()),
            "names": self.names,
            **self.limits.model_dump(),
            "seconds": self.budget.seconds,
            "patience": self._patience,
            "calls": read_calls,
            "replies": write_replies,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-u", student.__file__, json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(read_calls, write_replies),
            start_new_session=True,
            **identity(self.user),
            cwd="/",
            env=_environment(),
        )
        os.close(read_calls)
        os.close(write_replies)
        os.set_blocking(self._calls, False)
        self._waiting = selectors.DefaultSelector()
        self._waiting.register(self._replies, selectors.EVENT_READ)
        assert self._process.stdout is not None
        self._waiting.register(self._process.stdout, selectors.EVENT_READ)
        try:
            self._computed -= float(self._started())
            self._ask({"do": "load"}, self.file.name, Any)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _started(self) -> bytes:
        """Return the process's first line, written before it runs the file."""
        try:
            return self._line(self.file.name, time.monotonic() + STARTS)
        except StudentFault:
            self._process.kill()
            assert self._process.stdout is not None
            said = (self._text + self._process.stdout.read().decode(errors="replace")).strip().split("\n")[-1]
            raise MachineError(f"The process of {self.file.name} could not be started: {_clean(said)}.") from None

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            os.close(self._calls)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, 9)
        self._process.wait()
        self._waiting.close()
        with suppress(OSError):
            os.close(self._replies)
        if self._process.stdout is not None:
            self._process.stdout.close()
        assert self.budget is not None
        self.budget.seconds -= max(self._computed + _of_children(), self._waited / PATIENCE)

    def call(self, function: str, *arguments: Any, form: Any = Any) -> Any:
        """Call a function of the file.

        Args:
            form: the type that the value must have; JSON lists match `list[tuple[int, int]]`.
        """
        return self._ask({"do": "call", "name": function, "arguments": arguments}, function, form)

    def make(self, cls: str, *arguments: Any) -> Remote:
        """Make an object of a class of the file."""
        return self._object({"do": "make", "name": cls, "arguments": arguments}, cls)

    @property
    def printed(self) -> str:
        """Return what the file has printed, up to a bound."""
        return self._text

    def _object(self, call: dict[str, Any], name: str) -> Remote:
        number = next(self._numbers)
        self._ask({**call, "object": number}, name, Any)
        return Remote(self, name, number)

    def _ask(self, call: dict[str, Any], name: str, form: Any) -> Any:
        if self._stopped is not None:
            raise StudentFault(self._stopped)
        forgotten, self._forgotten[:] = [*self._forgotten], []
        number = secrets.randbits(53)  # the file cannot guess it to forge a reply
        line = (json.dumps({**call, "number": number, "forget": forgotten}) + "\n").encode()
        started = time.monotonic()
        deadline = started + self._patience - self._waited
        try:
            self._send(name, line, deadline)
            reply = self._reply(name, number, deadline)
        finally:
            self._waited += time.monotonic() - started
        self.steps = reply.steps
        self.most_steps = max(self.most_steps, self.steps)
        if reply.error is not None:
            raise self._fault(name, reply.error)
        return check_form(reply.value, form, name)

    def _send(self, name: str, line: bytes, deadline: float) -> None:
        while line:
            _, ready, _ = select.select([], [self._calls], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise self._late(name)
            try:
                line = line[os.write(self._calls, line) :]
            except OSError:
                raise self._ended(name) from None

    def _line(self, name: str, deadline: float) -> bytes:
        """Read the next reply; keep what the file prints."""
        while b"\n" not in self._buffer[-CHUNK:]:
            ready = self._waiting.select(max(0.0, deadline - time.monotonic()))
            if not ready or time.monotonic() > deadline:
                raise self._late(name)
            for key, _ in ready:
                chunk = os.read(key.fd, CHUNK)
                if key.fd == self._replies:
                    if not chunk:
                        raise self._ended(name)
                    self._buffer += chunk
                    if len(self._buffer) > REPLY:
                        raise StudentFault(f"{name} returned more than {REPLY >> 20} MB: return less.")
                elif not chunk:
                    self._waiting.unregister(key.fileobj)
                elif len(self._text) < PRINTED:
                    self._text += chunk.decode(errors="replace")[: PRINTED - len(self._text)]
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _reply(self, name: str, number: int, deadline: float) -> Reply:
        line = self._line(name, deadline)
        with suppress(ValidationError):
            reply = Reply.model_validate_json(line, strict=True)
            if reply.number == number and not self._buffer:
                return reply
        raise StudentFault(
            f"{name} returned what cannot be read, or wrote to the judge's own channel: return plain values, lists at "
            "most a hundred deep, and print what you like."
        )

    def _stop(self, what: str) -> StudentFault:
        """Make the fault that ends this test; every later call raises it again."""
        self._stopped = what
        return StudentFault(what)

    def _late(self, name: str) -> StudentFault:
        return self._stop(f"{name} was stopped: all tests have {self.limits.seconds} s together. Does it end?")

    def _ended(self, name: str) -> StudentFault:
        """Make the fault that says why the process has ended."""
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            return self._stop(f"{name} closed the judge's own channel: return values, and print what you like.")
        if code in (-24, -14, -9):  # SIGXCPU, SIGALRM, SIGKILL
            return self._late(name)
        if code < 0:
            return self._stop(f"{name} ended its process by signal {-code}: a lab's file returns values.")
        return self._stop(f"{name} ended its process (exit code {code}): a lab's file returns values, and never exits.")

    def _fault(self, name: str, error: Error) -> StudentFault:
        kind, text, where = (_clean(one or "") for one in (error.type, error.text, error.where))
        at = f" at {where}" if where else ""
        if kind == "OutOfSteps":
            most = f"{self.limits.steps:,} steps (lines of your file that are run)"
            return self._stop(f"{name} took more than {most}, and was stopped: does it end, and is it fast enough?")
        if kind == "NotPlain":
            return StudentFault(
                f"{name} returned what is no plain data ({text}): return numbers, texts, lists and dictionaries."
            )
        if kind == "MemoryError":
            return StudentFault(f"{name} took more than {self.limits.memory_mb} MB of memory{at}.")
        if kind == "NotImplementedError":
            return StudentFault(f"{name} is not written yet{at}: {text}", unwritten=True)
        if kind in ("ImportError", "PermissionError", "NotAllowed"):
            place = where if where and where.startswith(f"{name}, ") else f"{name}{at}"
            return StudentFault(f"{place}: {text}.")
        return StudentFault(f"{name} raised {kind} ({text}){at}.")


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)


def _constant(text: str) -> float | str:
    """Read a constant of JSON; NaN becomes text, because it is no valid number."""
    return text if text == "NaN" else float(text)


def check_form(value: Any, form: Any, name: str) -> Any:
    """Return a value that came as JSON, after checking that its type is `form`.

    >>> check_form([[0, 4]], list[tuple[int, int]], "missing"), check_form(float("inf"), float, "value")
    ([[0, 4]], inf)

    Raises:
        StudentFault: the value is of another type.
    """
    text = json.dumps(value)
    numbers = json.loads(text, parse_constant=_constant)
    try:
        _adapter(form).validate_json(json.dumps(numbers), strict=True)
    except ValidationError as error:
        raise StudentFault(f"{name} returned {text:.120}: {misfit(error)}.") from None
    return value


def _clean(text: str) -> str:
    """Replace what a terminal cannot show by question marks."""
    return "".join(one if one.isprintable() else "?" for one in text)


def identity(user: str | None) -> dict[str, Any]:
    """Return arguments for `Popen` to run as a user, only in that user's group."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _of_children() -> float:
    """Return the processor time, in seconds, of child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    """Make an environment without the judge's variables, which may hold the course's secret."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "TRITON_INTERPRET": "1", **threads}

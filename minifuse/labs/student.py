"""Runs a student's file in a confined process, which answers calls in lines of JSON.

`minifuse.labs.submission` starts this file as a script outside the package, `python -I -B -u student.py SETTINGS`.
SETTINGS is JSON:

| key | is |
|---|---|
| judge | the id of the judge's process; this process ends with it |
| file | the student's file |
| withheld | modules that the student is to write |
| imports | modules that the student may use in addition to `names.MODULES`; imported before anything is refused |
| names | whether to check the names in the file; false for wrong solutions, which import the reference |
| steps, memory_mb | the most steps of a call; the memory limit of the process |
| seconds, patience | limits of all calls together: processor time; time on the clock |
| calls, replies | file descriptors to read calls from, and to write replies to |

A step is a line of Python that is run outside of Python's own modules, so a count is the same on every machine.

Forging a reply only gains a lower count of steps: the student's functions could have returned the same value.
The operating system denies the file other files, the network and other processes (`confine.py`), limits its memory and
time (`limit`), and may run it as another user. Python protects the count of steps: the names in the file are checked
before it runs (`names.py`), it sees only the public names of Python's modules (`Shown`), and an audit hook refuses
changes of the count (`guard.py`).
"""

from __future__ import annotations

import ast
import builtins
import copy
import importlib.abc
import importlib.machinery
import json
import math
import os
import resource
import runpy
import signal
import sys
import sysconfig
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def beside(name: str) -> SimpleNamespace:
    """Run another file of this folder, without the package, and return its names."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name(name))))


NAMES, GUARD = beside("names.py"), beside("guard.py")
gettrace = sys.gettrace
TOLD = 400  # characters of an error's text
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/proc/cpuinfo")  # that modules may need
DEVICES = ("/dev/null", "/dev/urandom")
# Folders of this project, wherever it is installed; and folders inside Python's own, which are in sys.path if needed.
APART = ("minifuse", "tutorials", "tests", "site-packages", "dist-packages")
OWN = ("json", "copy")  # the file imports new copies of these: changing them changes nothing here


class OutOfSteps(BaseException):
    """Raised if a call takes more steps than allowed."""


class NotPlain(Exception):
    """Raised for a value that JSON cannot hold."""


class Withheld(importlib.abc.MetaPathFinder):
    """Refuses imports of withheld modules and of any other module of minifuse."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "minifuse":
            return None
        if any(name == one or name.startswith(f"{one}.") for one in self.names):
            raise ImportError(f"{name} is withheld in this lab: you are asked to write it")
        if any(one.startswith(f"{name}.") for one in self.names):  # an empty package: its module is asked for next
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        raise ImportError(f"a lab's file stands alone, and may not import {name}")


class Shown:
    """Imports modules for the student's file; hides the private names of Python's modules."""

    def __init__(self) -> None:
        self.known: dict[str, types.ModuleType] = {}

    def __call__(self, name, globals=None, locals=None, fromlist=(), level=0):  # type: ignore[no-untyped-def]
        found = __import__(name, globals, locals, fromlist, level)
        if name not in NAMES.MODULES:
            return found
        whole = self.module(name)
        return whole if fromlist else self.module(name.partition(".")[0])

    def module(self, name: str) -> types.ModuleType:
        """Copy a module without private names, refused names, and modules that it imports."""
        if name not in self.known:
            self.known[name] = shown = types.ModuleType(name)
            for one, value in vars(sys.modules[name]).items():
                if not (one.startswith("_") or one in NAMES.NAMES or isinstance(value, types.ModuleType)):
                    setattr(shown, one, value)
            above, _, last = name.rpartition(".")
            if above:
                setattr(self.module(above), last, shown)
        return self.known[name]


class Steps:
    """Counts executed lines of files in a folder, and of functions compiled from texts."""

    def __init__(self, folder: str, most: int) -> None:
        self.folder = folder
        self.apart = ("<frozen ", str(Path(__file__).parent), *places(*sys.path))
        self.most = most
        self.count = 0

    def __call__(self, frame, event, argument):  # type: ignore[no-untyped-def]  # as sys.settrace has it
        name = frame.f_code.co_filename
        return self.line if name.startswith(self.folder) or not name.startswith(self.apart) else None

    def line(self, frame, event, argument):  # type: ignore[no-untyped-def]
        if event == "line":
            self.count += 1
            if self.count > self.most:
                raise OutOfSteps
        return self.line


def places(*more: str) -> list[str]:
    """List the folders of Python's own modules, and `more`."""
    given = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), *filter(None, more)]
    return sorted({os.path.join(one, "") for place in given for one in (place, os.path.realpath(place))})


def contents(folder: str) -> list[str]:
    """List the paths in a folder of modules, without solutions and hidden tests."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in names if name not in APART]


def taken() -> int:
    """Return the bytes of address space in use; torch reserves gigabytes that it never uses."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def limit(memory_mb: int, seconds: float) -> None:
    """Limit memory and time, in addition to what this process has used already."""
    computed = math.ceil(time.process_time() + seconds)
    wanted = {"AS": taken() + (memory_mb << 20), "CPU": computed, "CORE": 0, "FSIZE": 0, "NPROC": 0}
    for name, most in wanted.items():
        which = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(which)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))


class Student:
    """The student's module, and the objects made from its classes."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.file = Path(settings["file"])
        self.folder = str(self.file.parent) + os.sep
        self.steps = Steps(self.folder, settings["steps"])
        self.imports, self.looks = settings["imports"], settings["names"]
        self.trace: Callable[[Any], None] = sys.settrace
        self.module: object = None
        self.objects: dict[int, object] = {}

    def load(self) -> None:
        source, name = self.file.read_bytes(), self.file.stem
        self.module = sys.modules[name] = module = types.ModuleType(name)
        module.__file__ = str(self.file)
        try:
            tree = ast.parse(source, str(self.file))
            if self.looks:
                NAMES.look(tree, self.imports)
                vars(module)["__builtins__"] = {**vars(builtins), "__import__": Shown()}
            else:
                sys.path.insert(0, self.folder)
            code = compile(tree, str(self.file), "exec")  # what was looked at, and not the file once more
        except (RecursionError, MemoryError):
            what = "an expression is nested too deeply, or the file is too large: write it in parts"
            raise NAMES.NotAllowed(what) from None
        exec(code, vars(module))

    def do(self, call: dict[str, Any]) -> object:
        """Do what a call asks for."""
        what, arguments = call["do"], call.get("arguments", ())
        for number in call["forget"]:
            self.objects.pop(number, None)
        if what == "load":
            self.load()
        elif what == "call":
            return self.named(self.module, call["name"])(*arguments)
        elif what == "make":
            self.objects[call["object"]] = self.named(self.module, call["name"])(*arguments)
        elif what == "copy":
            self.objects[call["object"]] = copy.deepcopy(self.objects[call["of"]])
        elif what == "method":
            return self.named(self.objects[call["object"]], call["name"])(*arguments)
        return None

    def named(self, owner: object, name: str) -> Callable[..., object]:
        """Find the function, class or method of this name."""
        found: Callable[..., object] | None = getattr(owner, name, None)
        if not callable(found):
            raise NAMES.NotAllowed(f"there is no {name}, which the lab asks for")
        return found

    def answer(self, call: dict[str, Any]) -> str:
        """Answer a call as JSON: its value or error, and its steps."""
        self.steps.count = 0
        counted, found, value = True, "error", ""
        self.trace(self.steps)
        try:
            try:
                found, value = "value", self.plain(self.do(call))  # `plain` may run the student's code, too
            finally:
                counted = gettrace() is self.steps
                self.trace(None)
            if not counted:
                raise NAMES.NotAllowed("the count of steps ended before the call did: a file catches no RecursionError")
        except BaseException as error:
            found, value = "error", self.plain(self.told(error))
        if self.steps.count > self.steps.most:  # the file may have caught `OutOfSteps`
            found, value = "error", self.plain({"type": "OutOfSteps"})
        return f'{{"{found}": {value}, "steps": {self.steps.count}, "number": {call["number"]}}}'

    def plain(self, value: object) -> str:
        """Write a value as JSON."""
        try:
            return json.dumps(value, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise NotPlain(str(error)) from None

    def told(self, error: BaseException) -> dict[str, object]:
        """Describe an error: type, text, and the last place in the student's folder."""
        while type(error).__module__.partition(".")[0] == "triton" and error.__cause__ is not None:
            error = error.__cause__  # the interpreter wraps what a kernel raises
        frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename.startswith(self.folder)]
        where = None
        if isinstance(error, SyntaxError) and error.lineno:
            where = f"{Path(error.filename or '').name}, line {error.lineno}"
        elif frames:
            where = f"{frames[-1].filename[len(self.folder) :]}, line {frames[-1].lineno}, in {frames[-1].name}"
        try:
            text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())[:TOLD]
        except BaseException as another:  # its __str__ is the student's
            text = f"whose text cannot be made: {type(another).__name__}"
        own = type(error).__module__ == self.file.stem  # a class of the file, which may have the name of one here
        name = f"{self.file.stem}.{type(error).__name__}" if own else type(error).__name__
        return {"type": name, "text": text, "where": where}


def serve(settings: dict[str, Any]) -> None:
    """Answer calls until the judge closes the pipe."""
    end_with, confine = (getattr(beside("confine.py"), name) for name in ("end_with", "confine"))
    end_with(settings["judge"])
    calls = os.fdopen(settings["calls"], encoding="utf-8")
    replies = os.fdopen(settings["replies"], "w", encoding="utf-8", errors="replace")
    student, loads, patience = Student(settings), json.loads, settings["patience"]
    setitimer, clock = signal.setitimer, signal.ITIMER_REAL
    sys.meta_path.insert(0, Withheld(settings["withheld"]))
    for name in [*sys.modules]:
        if name.partition(".")[0] in OWN:
            del sys.modules[name]
    for name in settings["imports"]:
        importlib.import_module(name)
    folders = places(*sys.path) if settings["imports"] else places()
    readable = [path for folder in folders for path in contents(folder)]
    own = student.file if student.looks else student.folder
    limit(settings["memory_mb"], settings["seconds"])
    confine([*readable, str(own), *LIBRARIES], DEVICES, folders)
    looks = student.looks and not student.imports  # libraries compile texts of their own
    student.trace = GUARD.guard(NAMES.look_at_made if looks else None)
    sys.modules["__main__"] = types.ModuleType("__main__")
    replies.write(f"{time.process_time()}\n")  # used before the file is read
    replies.flush()
    for line in calls:
        setitimer(clock, patience)
        told = student.answer(loads(line))
        patience, _ = setitimer(clock, 0)
        replies.write(told + "\n")
        replies.flush()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))

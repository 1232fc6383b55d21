"""The process that a student's file runs in: it answers calls, a line of JSON each, and may do nothing else.

`minifuse.labs.submission` starts it as a script that has nothing of minifuse, `python -I -B -u student.py SETTINGS`.
SETTINGS is JSON:

| key | is |
|---|---|
| file | the student's file |
| closed | folders that nothing is read from, though they may lie in Python's own: minifuse, with its labs |
| withheld, sentence | modules that the student is to write; what is said to an import of one |
| alone | what is said to an import of another module of minifuse |
| imports | modules that the student may use beside `names.MODULES`: imported before anything is refused |
| names | whether the names in the file are looked at; tests of the guard alone do without |
| steps, memory_mb, seconds | limits of a call; of the process; of its processor time, which stop what never returns |
| calls, replies | file descriptors |

A step is a line of Python that is run in the student's own folder, so a count is the same on every machine.

The judge relies on no answer that the student's own functions could not have given, but for the count of steps. Four
walls stand around the file, each for what gets over those before it:

1. its names are looked at before it is run (`names.py`): it imports what computes, and names nothing that leads from
   there to the interpreter, and so to the count of steps;
2. an audit hook, which cannot be removed, refuses files, the network and other processes, with a sentence (`guard.py`);
3. the operating system refuses them, too (`confine.py`), and has limits (`limit`);
4. the judge may give the process another user.
"""

from __future__ import annotations

import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import runpy
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def beside(name: str) -> SimpleNamespace:
    """What a file beside this one defines. It is run as this one is: without the package."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name(name))))


NAMES, GUARD = beside("names.py"), beside("guard.py")
gettrace = sys.gettrace
TOLD = 400  # characters of an error's text
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/proc/cpuinfo")  # that modules may need
OWN = ("json", "copy")  # others of this name are imported from then on: a change to them changes nothing here


class OutOfSteps(BaseException):
    """A call took more steps than it may."""


class NotPlain(Exception):
    """A value cannot be told as JSON."""


class Withheld(importlib.abc.MetaPathFinder):
    """Refuses to import what the student is to write, and all else of minifuse."""

    def __init__(self, names: list[str], sentence: str, alone: str) -> None:
        self.names = names
        self.sentence = sentence
        self.alone = alone

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "minifuse":
            return None
        if any(name == one or name.startswith(f"{one}.") for one in self.names):
            raise ImportError(self.sentence.format(name))
        if any(one.startswith(f"{name}.") for one in self.names):  # an empty package, so that the rest is asked for
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        raise ImportError(self.alone.format(name))


class Steps:
    """Counts the lines that are run in a folder."""

    def __init__(self, folder: str, most: int) -> None:
        self.folder = folder
        self.most = most
        self.count = 0

    def __call__(self, frame, event, argument):  # type: ignore[no-untyped-def]  # as sys.settrace has it
        return self.line if frame.f_code.co_filename.startswith(self.folder) else None

    def line(self, frame, event, argument):  # type: ignore[no-untyped-def]
        if event == "line":
            self.count += 1
            if self.count > self.most:
                raise OutOfSteps
        return self.line


def taken() -> int:
    """Bytes of addresses that this process has: torch reserves thousands of megabytes that it does not use."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:  # not Linux
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def limit(memory_mb: int, seconds: int) -> None:
    """Ask the operating system for limits; of memory, beside what Python and the modules of the lab have by now."""
    wanted = {"AS": taken() + (memory_mb << 20), "CPU": seconds, "CORE": 0, "FSIZE": 0, "NPROC": 0}
    for name, most in wanted.items():
        which = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(which)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))


class Student:
    """The student's module and the objects that were made of it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.file = Path(settings["file"])
        self.folder = str(self.file.parent) + os.sep
        self.steps = Steps(self.folder, settings["steps"])
        self.names = NAMES.Names(settings["imports"]) if settings["names"] else None
        self.trace: Callable[[Any], None] = sys.settrace
        self.module: object = None
        self.objects: dict[int, object] = {}

    def load(self) -> None:
        tree = ast.parse(self.file.read_text(encoding="utf-8"), str(self.file))
        if self.names is not None:
            self.names.look(self.file, tree)
        sys.path.insert(0, self.folder)
        spec = importlib.util.spec_from_file_location(self.file.stem, self.file)
        if spec is None:
            raise NAMES.NotAllowed(f"{self.file.name} is not a Python file")
        self.module = module = importlib.util.module_from_spec(spec)
        sys.modules[self.file.stem] = module
        exec(compile(tree, str(self.file), "exec"), vars(module))  # what was looked at, and not the file once more

    def do(self, call: dict[str, Any]) -> object:
        """What a call asks for."""
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
        """The function, class or method of this name."""
        found: Callable[..., object] | None = getattr(owner, name, None)
        if not callable(found):
            raise NAMES.NotAllowed(f"there is no {name}, which the lab asks for")
        return found

    def answer(self, call: dict[str, Any]) -> str:
        """The value of a call as JSON, or the error that it ended with, and the steps that it took."""
        self.steps.count = 0
        counted, found, value = True, "error", ""
        self.trace(self.steps)
        try:
            try:
                found, value = "value", self.plain(self.do(call))  # which may run lines of the student's, too
            finally:
                counted = gettrace() is self.steps
                self.trace(None)
            if not counted:
                raise NAMES.NotAllowed("the count of steps ended before the call did: a file catches no RecursionError")
        except BaseException as error:
            found, value = "error", self.plain(self.told(error))
        if self.steps.count > self.steps.most:  # caught, perhaps
            found, value = "error", self.plain({"type": "OutOfSteps"})
        return f'{{"{found}": {value}, "steps": {self.steps.count}, "number": {call["number"]}}}'

    def plain(self, value: object) -> str:
        """A value as JSON."""
        try:
            return json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise NotPlain(str(error)) from None

    def told(self, error: BaseException) -> dict[str, object]:
        """An error as JSON: its type and text, and the last place in the student's folder that it passed through."""
        while type(error).__module__.partition(".")[0] == "triton" and error.__cause__ is not None:
            error = error.__cause__  # the interpreter wraps what a kernel raises
        frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename.startswith(self.folder)]
        where = None
        if isinstance(error, SyntaxError) and error.lineno:
            where = f"{Path(error.filename or '').name}, line {error.lineno}"
        elif frames:
            where = f"{frames[-1].filename[len(self.folder) :]}, line {frames[-1].lineno}, in {frames[-1].name}"
        text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())[:TOLD]
        return {"type": type(error).__name__, "text": text, "where": where}


def serve(settings: dict[str, Any]) -> None:
    """Answer calls until there are none."""
    calls = os.fdopen(settings["calls"], encoding="utf-8")
    replies = os.fdopen(settings["replies"], "w", encoding="utf-8")
    student, loads = Student(settings), json.loads
    sys.meta_path.insert(0, Withheld(settings["withheld"], settings["sentence"], settings["alone"]))
    for name in [*sys.modules]:
        if name.partition(".")[0] in OWN:
            del sys.modules[name]
    for name in settings["imports"]:
        importlib.import_module(name)
    known = {*sys.modules}
    confine = beside("confine.py").confine
    limit(settings["memory_mb"], settings["seconds"])
    confine([*GUARD.places(), student.folder, *LIBRARIES], GUARD.DEVICES)
    for name in sys.modules.keys() - known:  # ctypes
        del sys.modules[name]
    student.trace = GUARD.guard(student.folder, settings["closed"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    for line in calls:
        replies.write(student.answer(loads(line)) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))

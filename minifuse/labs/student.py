"""The process that a student's file runs in: it answers calls, a line of JSON each, and may do nothing else.

`minifuse.labs.submission` starts it as a script that has nothing of minifuse, `python -I -B -u student.py SETTINGS`.
SETTINGS is JSON:

| key | is |
|---|---|
| file | the student's file |
| closed | folders that nothing is read from, though they may lie in Python's own: minifuse, with its labs |
| withheld, sentence | modules that the student is to write; what is said to an import of one |
| alone | what is said to an import of another module of minifuse |
| imports | modules that the student may use beside Python's own: imported before anything is refused |
| steps, memory_mb, seconds | limits of a call; of the process; of its processor time, which stop what never returns |
| calls, replies | file descriptors |

A step is a line of Python that is run in the student's own folder, so a count is the same on every machine.

The judge relies on no answer that the student's own functions could not have given. Beside that, files, the network and
other processes are refused by an audit hook, which cannot be removed, and by limits of the operating system; and the
judge may give the process another user.
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
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOLD = 400  # characters of an error's text
CHANGES = (  # beginnings of the names of audit events: see "Audit events table" in Python's documentation
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.chown", "os.truncate"),
    *("os.utime", "os.putenv", "os.unsetenv", "os.chdir", "os.setxattr", "shutil.", "tempfile.", "sqlite3.", "socket."),
    *("ftplib.", "http.", "urllib.", "webbrowser.", "gc.", "sys.setprofile", "sys.addaudithook", "mmap.", "fcntl."),
)
PROCESSES = (
    *(
        "subprocess.",
        "os.system",
        "os.fork",
        "os.exec",
        "os.posix_spawn",
        "os.spawn",
        "os.kill",
        "os.startfile",
        "pty.",
    ),
    *("ctypes.", "signal.", "resource.", "_thread.start"),
)
MODULES = frozenset({"_posixsubprocess", "_ctypes", "ctypes", "_socket", "socket", "subprocess", "multiprocessing"})
TRACING = frozenset(  # attributes by which the count of steps could be changed
    {"settrace", "gettrace", "_getframe", "_current_frames", "tb_frame", "f_back", "f_trace", "__closure__"}
)


class OutOfSteps(BaseException):
    """A call took more steps than it may."""


class NotAllowed(Exception):
    """The file does what no lab may do."""


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


def limit(memory_mb: int, seconds: int) -> None:
    """Ask the operating system for limits."""
    wanted = {"AS": memory_mb << 20, "CPU": seconds, "CORE": 0, "FSIZE": 0, "NPROC": 0}
    for name, most in wanted.items():
        which = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(which)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))


def guard(folder: str, closed: list[str]) -> None:
    """From here on nothing is written, nothing is read but Python itself and `folder`, and no process or host reached.

    What it needs is bound here, where the student's file cannot change it.
    """
    slash, realpath, decoded, any_of, kind, text = os.sep, os.path.realpath, os.fsdecode, any, isinstance, str
    refusal, number, writing = PermissionError, int, os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
    folders = frozenset({"os.listdir", "os.scandir"})
    denied, modules = (*CHANGES, *PROCESSES), MODULES
    places = {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, *(path for path in sys.path if path)}
    python = tuple(realpath(place) + slash for place in places)
    shut, own = tuple(realpath(one) + slash for one in closed), realpath(folder) + slash
    devices = frozenset({"/dev/null", "/dev/urandom"})

    def hook(event, arguments):  # type: ignore[no-untyped-def]
        if event == "open" or event in folders:
            path = arguments[0]
            if kind(path, number):
                return
            name = realpath("." if path is None else decoded(path))
            if event == "open" and name not in devices:
                mode, flags = arguments[1], arguments[2]
                if (kind(mode, text) and any_of(one in mode for one in "wax+")) or (
                    kind(flags, number) and flags & writing
                ):
                    raise refusal(f"a lab may not write files, and {name} was to be written")
            below = name + slash
            if below.startswith(own) or name in devices:
                return
            if below.startswith(shut) or not below.startswith(python):
                raise refusal(f"a lab may not read {name}")
        elif event == "import":
            if arguments[0] in modules:
                raise refusal(f"a lab may not import {arguments[0]}")
        elif event.startswith(denied):
            raise refusal(f"a lab may not do this ({event})")

    sys.addaudithook(hook)


class Student:
    """The student's module and the objects that were made of it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.file = Path(settings["file"])
        self.folder = str(self.file.parent) + os.sep
        self.imports = settings["imports"]
        self.steps = Steps(self.folder, settings["steps"])
        self.module: object = None
        self.objects: dict[int, object] = {}

    def load(self) -> None:
        tree = ast.parse(self.file.read_text(encoding="utf-8"), str(self.file))
        self.check_imports(tree)
        for node in ast.walk(tree):
            if not isinstance(node, (ast.Attribute, ast.Name)):
                continue
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in TRACING:
                raise NotAllowed(f"line {node.lineno} has {name}, by which the count of steps could be changed")
        sys.path.insert(0, self.folder)
        spec = importlib.util.spec_from_file_location(self.file.stem, self.file)
        if spec is None or spec.loader is None:
            raise NotAllowed(f"{self.file.name} is not a Python file")
        self.module = module = importlib.util.module_from_spec(spec)
        sys.modules[self.file.stem] = module
        spec.loader.exec_module(module)

    def check_imports(self, tree: ast.AST) -> None:
        """Say in words that numpy and the like may not be imported, before the guard refuses something inside of it."""
        known = {"minifuse", *sys.stdlib_module_names, *(name.partition(".")[0] for name in self.imports)}
        may = ", ".join(["what comes with Python", *self.imports])
        for node in ast.walk(tree):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            module = node.module if isinstance(node, ast.ImportFrom) and not node.level else None
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else [module or ""]
            for root in {name.partition(".")[0] for name in names} - {""} - known:
                if not any(Path(self.folder, one).exists() for one in (root, f"{root}.py")):
                    raise NotAllowed(f"line {node.lineno} imports {root}, and a lab's file may import {may} alone")

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
            raise NotAllowed(f"there is no {name}, which the lab asks for")
        return found

    def answer(self, call: dict[str, Any]) -> dict[str, object]:
        """The value of a call, or the error that it ended with, and the steps that it took."""
        self.steps.count = 0
        sys.settrace(self.steps)
        try:
            found: dict[str, object] = {"value": self.do(call)}
        except BaseException as error:
            sys.settrace(None)
            found = {"error": self.told(error)}
        finally:
            sys.settrace(None)
        return {**found, "steps": self.steps.count, "number": call["number"]}

    def told(self, error: BaseException) -> dict[str, object]:
        """An error as JSON: its type and text, and the last place in the student's folder that it passed through."""
        while type(error).__module__.partition(".")[0] == "triton" and error.__cause__ is not None:
            error = error.__cause__  # the interpreter wraps what a kernel raises
        frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename.startswith(self.folder)]
        where = None
        if isinstance(error, SyntaxError):
            where = f"{Path(error.filename or '').name}, line {error.lineno}"
        elif frames:
            where = f"{frames[-1].filename[len(self.folder) :]}, line {frames[-1].lineno}, in {frames[-1].name}"
        text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())[:TOLD]
        return {"type": type(error).__name__, "text": text, "where": where}


def serve(settings: dict[str, Any]) -> None:
    """Answer calls until there are none."""
    calls = os.fdopen(settings["calls"], encoding="utf-8")
    replies = os.fdopen(settings["replies"], "w", encoding="utf-8")
    student, dumps, loads = Student(settings), json.dumps, json.loads
    sys.meta_path.insert(0, Withheld(settings["withheld"], settings["sentence"], settings["alone"]))
    for name in settings["imports"]:
        importlib.import_module(name)
    limit(settings["memory_mb"], settings["seconds"])
    guard(student.folder, settings["closed"])
    for line in calls:
        found = student.answer(loads(line))
        try:
            told = dumps(found)
        except (TypeError, ValueError, RecursionError, MemoryError) as error:
            told = dumps(
                {**found, "value": None, "error": {"type": "NotPlain", "text": f"{error}"[:TOLD], "where": None}}
            )
        replies.write(told + "\n")
        replies.flush()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))

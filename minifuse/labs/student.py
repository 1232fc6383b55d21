"""The process that a student's file runs in: it answers calls, a line of JSON each, and may do nothing else.

`minifuse.labs.submission` starts it as a script that has nothing of minifuse, `python -I -B -u student.py SETTINGS`.
SETTINGS is JSON:

| key | is |
|---|---|
| file | the student's file |
| closed | folders that nothing is read from, though they may lie in Python's own: minifuse, with its labs |
| withheld, sentence | modules that the student is to write; what is said to an import of one |
| alone | what is said to an import of another module of minifuse |
| imports | modules that the student may use beside `MODULES`: imported before anything is refused |
| names | whether the names in the file are looked at; tests of the guard alone do without |
| steps, memory_mb, seconds | limits of a call; of the process; of its processor time, which stop what never returns |
| calls, replies | file descriptors |

A step is a line of Python that is run in the student's own folder, so a count is the same on every machine.

The judge relies on no answer that the student's own functions could not have given, but for the count of steps. Four
walls stand around the file, each for what gets over those before it:

1. its names are looked at before it is run (`Names`): it imports what computes, and names nothing that leads from there
   to the interpreter, and so to the count of steps;
2. an audit hook, which cannot be removed, refuses files, the network and other processes, with a sentence (`guard`);
3. the operating system refuses them, too (`minifuse.labs.confine`), and has limits (`limit`);
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
import sysconfig
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


gettrace = sys.gettrace
TOLD = 400  # characters of an error's text
DEVICES = ("/dev/null", "/dev/urandom")
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")  # that Python's own modules may need
OWN = ("json", "copy")  # others of this name are imported from then on: a change to them changes nothing here
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
MODULES = words(  # that a file may import: they compute, and lead nowhere else
    """abc array bisect cmath collections collections.abc copy dataclasses decimal enum __future__ fractions functools
    graphlib heapq itertools json math numbers operator random re statistics string textwrap time typing"""
)
NAMES = words(  # that lead from these modules to the interpreter
    """getattr setattr delattr eval exec compile globals locals vars breakpoint attrgetter methodcaller Formatter
    get_type_hints get_args ForwardRef singledispatch singledispatchmethod global_enum
    as_strided stride_tricks memmap testing f2py ctypeslib
    settrace gettrace setprofile getprofile monitoring cell_contents tb_frame tb_next
    gi_frame gi_code gi_yieldfrom cr_frame cr_code cr_await ag_frame ag_code ag_await
    f_back f_builtins f_code f_globals f_locals f_trace f_trace_lines f_trace_opcodes"""
)
INNER = frozenset({"sys", "os", "builtins", "bltns", "inspect", "contextlib", "thread"})  # modules that those have
PLAIN = words(  # names with two underlines that lead nowhere
    """all name doc version slots match_args class init post_init new call len iter next reversed contains getitem
    setitem delitem missing bool int float index hash eq ne lt le gt ge repr str format add radd iadd sub rsub isub mul
    rmul imul truediv floordiv mod divmod pow matmul neg pos abs invert and or xor lshift rshift enter exit
    copy deepcopy future cause context"""
)


class OutOfSteps(BaseException):
    """A call took more steps than it may."""


class NotAllowed(Exception):
    """The file does what no lab may do."""


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


class Names:
    """Looks at the names in a file, and in those of its folder that it imports.

    Raises:
        NotAllowed: one could lead to what is refused, or to the count of steps.
    """

    def __init__(self, imports: list[str]) -> None:
        self.imports = imports
        self.seen: set[Path] = set()

    def look(self, file: Path, tree: ast.AST) -> None:
        self.seen.add(file)
        for node in ast.walk(tree):
            for module in self._modules(node):
                beside = file.with_name(f"{module.partition('.')[0]}.py")
                if beside.is_file():
                    if beside not in self.seen:
                        self.look(beside, ast.parse(beside.read_bytes(), str(beside)))
                elif not self._may_import(module):
                    raise NotAllowed(
                        f"line {self._line(node)} imports {module}, and a lab's file may import "
                        f"{', '.join(sorted(MODULES.union(self.imports)))}"
                    )
            for name in self._named(node):
                raise NotAllowed(f"line {self._line(node)} has {name}, which no lab's file may use")

    def _line(self, node: ast.AST) -> int:
        return int(getattr(node, "lineno", 1))

    def _modules(self, node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [one.name for one in node.names]
        return ["." * node.level + (node.module or "")] if isinstance(node, ast.ImportFrom) else []

    def _may_import(self, module: str) -> bool:
        if module.partition(".")[0] == "minifuse":  # `Withheld` says why not
            return True
        return module in MODULES or any(module == one or module.startswith(f"{one}.") for one in self.imports)

    def _named(self, node: ast.AST) -> list[str]:
        """The names in a node that are refused."""
        if isinstance(node, ast.Name):
            return [node.id] if self._leads(node.id) else []
        found: list[str] = []
        if isinstance(node, ast.Attribute):
            found = [node.attr]
        elif isinstance(node, ast.alias):
            found = node.name.split(".")
        elif isinstance(node, ast.MatchClass):
            found = node.kwd_attrs
        return [one for one in found if self._leads(one) or one.strip("_") in INNER.difference(self.imports)]

    def _leads(self, name: str) -> bool:
        double = name.startswith("__") and name.endswith("__")
        return name in NAMES or (double and name.strip("_") not in PLAIN)


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


class Student:
    """The student's module and the objects that were made of it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.file = Path(settings["file"])
        self.folder = str(self.file.parent) + os.sep
        self.steps = Steps(self.folder, settings["steps"])
        self.names = Names(settings["imports"]) if settings["names"] else None
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
            raise NotAllowed(f"{self.file.name} is not a Python file")
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
            raise NotAllowed(f"there is no {name}, which the lab asks for")
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
                raise NotAllowed("the count of steps ended before the call did: a file catches no RecursionError")
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
    confine = runpy.run_path(str(Path(__file__).with_name("confine.py")))["confine"]
    limit(settings["memory_mb"], settings["seconds"])
    confine([*places(), student.folder, *LIBRARIES], DEVICES)
    for name in sys.modules.keys() - known:  # ctypes
        del sys.modules[name]
    student.trace = guard(student.folder, settings["closed"])
    sys.modules["__main__"] = types.ModuleType("__main__")
    for line in calls:
        replies.write(student.answer(loads(line)) + "\n")
        replies.flush()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))

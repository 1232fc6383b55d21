"""A lab: a folder with a task, tests, a reference and wrong solutions.

    04-the-memory-shuffle/
        README.md        the task
        lab.toml         points, withheld modules, limits
        solution.py      the reference: students get it without what stands between BEGIN and END SOLUTION
        stage.py         what joins the student's functions to the engine, where the lab has a stage
        tests/public/    functions test_...(work), which students get
        tests/hidden/    functions that students do not get
        tests/open.py    score(work), the counted costs of the open task, and baselines(work)
        wrong/           wrong solutions; each fails just the tests that lab.toml names for it

lab.toml:

    number = 4
    title = "The memory shuffle"
    chapter = 6                  # the chapter that it follows
    hours = "2 to 4"
    [points]                     # of each test
    windows_by_hand = 10
    [wrong]                      # the test, or the tests, that each wrong solution fails
    last_of_equals = "windows_of_any_buffers"
    one_of_the_ends = ["moves_the_least", "is_linear"]
    [limits]                     # as `minifuse.labs.submission.Limits`
    withheld = ["minifuse.memory.slots.shuffle"]
    steps = 200000
    [read]                       # what to read again if a test fails
    moves_the_least = "chapter 6, 'A count by hand'; Flover, section IV-D"
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict

from minifuse.core.errors import MinifuseError, UsageError
from minifuse.io.lines import as_model
from minifuse.io.shipped import shipped
from minifuse.labs.submission import PLACES, Limits

PREFIX = "test_"


@dataclass(frozen=True)
class Test:
    """One test of a lab; `says` states in plain words what must hold."""

    name: str
    says: str
    read: str
    points: float
    hidden: bool
    run: Callable[[Any], None]

    @property
    def read_again(self) -> str:
        """Return a sentence or question that tells the student what to read again."""
        return f"Read again: {self.read}{'' if self.read.endswith('?') else '.'}"


class Card(BaseModel):
    """What a lab's lab.toml says."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    number: int
    title: str
    chapter: int
    hours: str = ""
    points: dict[str, float]
    wrong: dict[str, str | list[str]] = {}
    limits: Limits = Limits()
    read: dict[str, str] = {}


class Lab(Card):
    """A lab's folder, with what its lab.toml says."""

    folder: Path

    def tests(self, hidden: bool = True) -> list[Test]:
        """Load the tests, public ones first, in the order of files and lines.

        Args:
            hidden: also load the hidden tests, if the folder has them; a student's folder does not.
        """
        found: dict[str, Test] = {}
        places = [False, True] if hidden and (self.folder / "tests" / "hidden").is_dir() else [False]
        for of_hidden in places:
            for path in sorted((self.folder / "tests" / ("hidden" if of_hidden else "public")).glob("*.py")):
                for name, function in vars(self.module(path)).items():
                    if name.startswith(PREFIX) and callable(function) and function.__module__ == self._name(path):
                        test = self._test(name.removeprefix(PREFIX), function, of_hidden)
                        if test.name in found:
                            raise UsageError(f"{path} has a second test {test.name}: give it another name.")
                        found[test.name] = test
        if not found:
            raise UsageError(f"{self.folder} has no tests: give the folder of a lab, such as minifuse lab start makes.")
        if len(places) == 2 and (gone := self.points.keys() - found.keys()):
            raise UsageError(f"{self.folder / 'lab.toml'} has points for {sorted(gone)}: there are no such tests.")
        return [*found.values()]

    def _test(self, name: str, function: Callable[[Any], None], hidden: bool) -> Test:
        says = " ".join((function.__doc__ or "").split())
        if name not in self.points or not says:
            what = "points in lab.toml" if says else "docstring, which says what must hold"
            raise UsageError(f"The test {name} of {self.folder.name} has no {what}: give it one.")
        read = str(self.read.get(name, f"chapter {self.chapter}"))
        return Test(name, says, read, float(self.points[name]), hidden, function)

    @property
    def open_task(self) -> ModuleType | None:
        """Import `tests/open.py`; None if the folder has none."""
        path = self.folder / "tests" / "open.py"
        return self.module(path) if path.is_file() else None

    def _name(self, path: Path) -> str:
        parts = path.relative_to(self.folder).with_suffix("").parts
        return "_".join(("minifuse_lab", f"{self.number:02}", *parts))

    def module(self, path: Path) -> ModuleType:
        """Import a file of the lab once. `import stage` finds the lab's own stage.py."""
        name = self._name(path)
        known = sys.modules.get(name)
        if known is not None and Path(known.__file__ or "").read_bytes() == path.read_bytes():
            return known  # even from another copy of the lab: a stage is registered once
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise UsageError(f"{path} is not a Python file: give the folder of a lab.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        stage = self.folder / "stage.py"
        if path != stage:
            sys.modules.pop("stage", None)  # may be of another lab: each may have one
            if stage.is_file():
                sys.modules["stage"] = self.module(stage)
        try:
            spec.loader.exec_module(module)
        except MinifuseError:
            raise
        except Exception as error:
            del sys.modules[name]
            what = f"{type(error).__name__}: {error}"
            raise UsageError(f"{path} cannot be imported ({what}): take it from a new minifuse lab start.") from error
        return module


def read_lab(folder: Path) -> Lab:
    """Read the lab in a folder.

    Raises:
        UsageError: the folder is not a lab, or its lab.toml is wrong.
    """
    for name in ("README.md", "lab.toml", "solution.py"):
        if not os.path.isfile(folder / name):
            raise UsageError(f"{folder} has no {name}: give the folder of a lab, such as minifuse lab start makes.")
    path = folder / "lab.toml"
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML ({error}): correct it.") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): give a folder that you may read.") from None
    return Lab(folder=folder, **dict(as_model(str(path), given, Card)))


def labs() -> list[Lab]:
    """Read every lab, in order.

    Raises:
        MachineError: this installation lacks the labs.
    """
    return [read_lab(folder) for folder in sorted(shipped(PLACES, "The labs are").glob("[0-9][0-9]-*"))]

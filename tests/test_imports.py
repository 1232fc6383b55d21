"""Imports go downwards only: from a room to those below it, and within a room in no circle.

Stages are found by name: `minifuse.stages` imports the rooms that register them, and attention the modules of its
backends, from strings that this test does not see.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import minifuse

SOURCE = Path(minifuse.__file__).parent

# From the bottom to the top. The files beside the rooms ("") declare options, stages and techniques.
ROOMS = (
    "core",
    "io",
    "contracts",
    "",
    "kernels",
    "model",
    "memory",
    "batching",
    "attention",
    "execute",
    "simulate",
    "trace",
    "naive",
    "parallel",
    "workload",
    "serve",
    "testing",
    "show",
    "papers",
    "labs",
    "server",
    "cli",
)


def _modules() -> dict[str, Path]:
    names = {path: path.relative_to(SOURCE.parent).with_suffix("").parts for path in SOURCE.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in names.items()}


def _imports(module: str, path: Path, known: dict[str, Path]) -> set[str]:
    """What a module imports, wherever in the file, for type checkers included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("minifuse"):
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                found.add(whole if whole in known else node.module)
        elif isinstance(node, ast.Import):
            found.update(name.name for name in node.names if name.name.startswith("minifuse"))
    return found - {module}


def _room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (SOURCE / parts[1]).is_dir() else ""


MODULES = _modules()
TOP = {"minifuse", "minifuse.__main__"}  # what users import, and what they run: above all rooms


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What every module imports."""
    return {module: _imports(module, path, MODULES) for module, path in MODULES.items()}


def test_every_room_is_in_the_order() -> None:
    assert {_room(module) for module in MODULES} == set(ROOMS)


def test_rooms_import_from_rooms_below_them(imports: dict[str, set[str]]) -> None:
    upwards = [
        f"{module} imports {other}"
        for module, others in imports.items()
        for other in others
        if module not in TOP and other not in TOP and ROOMS.index(_room(other)) > ROOMS.index(_room(module))
    ]
    assert upwards == []


def test_no_circles(imports: dict[str, set[str]]) -> None:
    order = tuple(graphlib.TopologicalSorter(imports).static_order())  # raises CycleError, which names the circle
    assert set(MODULES) <= set(order)


EACH_BY_ATTRIBUTE = """
import importlib, sys
import minifuse
hidden = []
for name in sys.argv[1:]:
    importlib.import_module(name)
    found = minifuse
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    if found is not sys.modules[name]:
        hidden.append(name)
print(hidden)
print(minifuse.serve is not minifuse.serve.serve, callable(minifuse.serve))
"""


def test_no_name_hides_a_module() -> None:
    """`import minifuse.serve.texts`, then `minifuse.serve.texts`: for every module, in a process of its own."""
    absent = set() if find_spec("ray") else {"minifuse.server.fleet"}
    names = sorted(MODULES.keys() - {"minifuse.__main__"} - absent)
    ran = subprocess.run([sys.executable, "-c", EACH_BY_ATTRIBUTE, *names], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("[]\nTrue True\n", "")


def test_the_command_line_starts_without_what_takes_long() -> None:
    code = "import sys, minifuse.cli.app as app; app.parser(); print({'torch', 'pydantic'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"

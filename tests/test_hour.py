"""The files of the hour (docs/core.md): they exist, are as long as told, and import nothing outside the list."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIMIT = 1_500  # lines to read: code, docstrings and comments
# The page lists files of minifuse as: | `minifuse/core/plan.py` | 220 | what it is |
ROW = re.compile(r"^\| `(minifuse/[\w/]+\.py)` \| (\d+) \| (.+) \|$", re.MULTILINE)
LISTED = {path: (int(lines), sentence) for path, lines, sentence in ROW.findall((ROOT / "docs/core.md").read_text())}
ALLOWED = {*sys.stdlib_module_names, "torch", "sortedcontainers", "minifuse.core.errors"}


def to_read(source: str) -> list[str]:
    """The lines of a file that are not blank."""
    return [line for line in source.splitlines() if line.strip()]


def module_of(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def imports_of(source: str) -> set[str]:
    """The modules that a file imports, wherever in it, for type checkers included."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None, "relative imports are not read"
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
    return found


def foreign(source: str) -> set[str]:
    """What a file imports that a reader of the hour does not know."""
    known = {module_of(path) for path in LISTED}
    return {name for name in imports_of(source) if not {name, name.partition(".")[0]} & (ALLOWED | known)}


def test_the_hour_is_not_longer_than_an_hour() -> None:
    assert sum(lines for lines, _ in LISTED.values()) <= LIMIT


@pytest.mark.parametrize("path", LISTED)
def test_a_file_of_the_hour(path: str) -> None:
    lines, sentence = LISTED[path]
    source = (ROOT / path).read_text()
    assert len(to_read(source)) == lines
    assert sentence.endswith(".")
    assert foreign(source) == set()


def test_the_page_tells_its_length() -> None:
    total = sum(lines for lines, _ in LISTED.values())
    whole = sum(len((ROOT / path).read_text().splitlines()) for path in LISTED)
    told = f"The listed files have {total:,} lines, docstrings included and blank lines not ({whole:,} with them)"
    assert told in (ROOT / "docs/core.md").read_text()


def test_the_page_lists_the_core() -> None:
    assert {"minifuse/core/engine.py", "minifuse/execute/texts.py"} <= LISTED.keys()


def test_what_is_outside_is_noticed() -> None:
    assert foreign(
        "from minifuse.contracts.fault import blaming\nimport numpy\nimport torch.nn as nn\nimport os.path"
    ) == {"minifuse.contracts.fault", "numpy"}

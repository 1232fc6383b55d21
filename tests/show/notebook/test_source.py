"""Sources as they are shown, against what inspect gives."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import minifuse
from minifuse.core.engine import Engine
from minifuse.core.errors import UsageError
from minifuse.core.plan import Extent
from minifuse.io.parsing import parse_size
from minifuse.kernels.slots import _slots_kernel
from minifuse.memory.slots.shuffle import __name__ as shuffle
from minifuse.options import declared_options
from minifuse.show.notebook import show_source
from minifuse.show.notebook.played import Played
from minifuse.trace import idle_slots
from minifuse.trace.step import BlockTables

ROOT = Path(minifuse.__file__).parents[1]
THINGS = [
    BlockTables,
    BlockTables.told,
    Extent.slots,
    parse_size,
    Engine,
    Engine.dispatch,
    idle_slots,
    UsageError,
]


def undocumented(text: str) -> str:
    """A normal form of Python without docstrings; a body that is nothing else keeps its own."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and len(node.body) > 1:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                node.body.pop(0)
    return ast.unparse(tree)


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: thing.__name__)
def test_it_is_what_inspect_gives(thing: Any) -> None:
    ((where, text),) = show_source(thing, docstring=True).parts
    right = textwrap.dedent(inspect.getsource(thing))
    assert text == right.rstrip()
    path, line = where.split(":")
    lines = (ROOT / path).read_text().splitlines()
    assert lines[int(line) - 1].strip() == right.splitlines()[0].strip()


@pytest.mark.parametrize("thing", THINGS, ids=lambda thing: thing.__name__)
def test_docstrings_are_left_out_and_nothing_else(thing: Any) -> None:
    ((_, text),) = show_source(thing).parts
    right = textwrap.dedent(inspect.getsource(thing))
    assert ast.unparse(ast.parse(text)) == undocumented(right)
    assert [line for line in text.splitlines() if "#" in line] == [line for line in right.splitlines() if "#" in line]
    assert not text.endswith("\n")


def test_a_docstring_is_gone() -> None:
    assert '"""' in show_source(BlockTables.told, docstring=True).parts[0][1]
    assert show_source(BlockTables.told).parts[0][1].splitlines()[:2] == [
        "def told(self, name: str, place: Place) -> list[Any]:",
        "    if not isinstance(place, Pages):",
    ]


def test_properties_and_what_is_wrapped_are_shown() -> None:
    assert show_source(Played.capacity).parts[0][1].startswith("@property\ndef capacity(self) -> int:\n")
    cached = vars(Played)["metrics"]
    assert show_source(cached).parts[0][1].startswith("@cached_property\ndef metrics(self)")
    assert show_source(declared_options).parts[0][1].startswith("@cache\ndef declared_options(")


def test_a_kernel_is_the_function_that_it_was_made_of() -> None:
    ((where, text),) = show_source(_slots_kernel).parts
    assert where.startswith("minifuse/kernels/slots.py:")
    assert text.splitlines()[1] == "def _slots_kernel("


def test_it_is_highlighted_below_its_file_and_line() -> None:
    shown = show_source(parse_size, Extent.slots)
    page = shown._repr_html_()
    places = [where for where, _ in shown.parts]
    assert [page.index(where) for where in places] == sorted(page.index(where) for where in places)
    assert places[0].startswith("minifuse/io/parsing.py:")
    assert re.search(r'<span style="color: #[0-9A-Fa-f]+; font-weight: bold">def</span>', page)
    assert "font-family: monospace" in page
    assert "&lt;" in page or "-&gt;" in page
    assert repr(shown).startswith(f"# {places[0]}\ndef parse_size(")


@pytest.mark.parametrize("thing", [len, 3, "parse_size", shuffle, None])
def test_what_has_no_source_is_refused(thing: Any) -> None:
    with pytest.raises(UsageError, match="give a function, a method or a class"):
        show_source(thing)


def test_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="was given nothing"):
        show_source()

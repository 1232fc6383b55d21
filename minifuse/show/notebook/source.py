"""Shows the source of imported functions and classes in a notebook."""

from __future__ import annotations

import ast
import functools
import html
import inspect
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

import minifuse
from minifuse.core.errors import UsageError

ROOT = Path(minifuse.__file__).parents[1]
# Styles are inline: a notebook's style sheet would override others.
LOOK = HtmlFormatter(noclasses=True, prestyles="font-family: monospace; line-height: 125%; margin: 0 0 1em")


@dataclass(frozen=True)
class Source:
    """Pieces of source, each with its file and line."""

    parts: tuple[tuple[str, str], ...]  # where, text

    def __repr__(self) -> str:
        return "\n\n".join(f"# {where}\n{text}" for where, text in self.parts)

    def _repr_html_(self) -> str:
        return "\n".join(
            f"<div><code>{html.escape(where)}</code></div>\n{highlight(text, PythonLexer(), LOOK)}"
            for where, text in self.parts
        )


def show_source(*things: Any, docstring: bool = False) -> Source:
    """Return the source, file and line of functions, kernels, methods, classes or modules.

        show_source(BlockTables.told)

    Args:
        docstring: show docstrings, too: of functions, classes and methods.

    Raises:
        UsageError: an argument has no source in Python.
    """
    if not things:
        raise UsageError("show_source was given nothing: give a function, a method or a class.")
    return Source(tuple(_part(thing, docstring) for thing in things))


def _part(thing: Any, docstring: bool) -> tuple[str, str]:
    if isinstance(thing, property):
        thing = thing.fget
    elif isinstance(thing, functools.cached_property):
        thing = thing.func
    elif type(thing).__module__.partition(".")[0] == "triton":
        thing = getattr(thing, "fn", thing)  # a kernel's function
    thing = inspect.unwrap(thing) if callable(thing) else thing
    try:
        path, (lines, first) = Path(inspect.getfile(thing)), inspect.getsourcelines(thing)
    except (TypeError, OSError):
        raise UsageError(f"show_source was given {thing!r:.60}: give a function, a method or a class.") from None
    where = path.resolve().relative_to(ROOT).as_posix() if path.resolve().is_relative_to(ROOT) else path.name
    text = textwrap.dedent("".join(lines))
    return f"{where}:{max(1, first)}", (text if docstring else _without_docstrings(text)).rstrip()


def _without_docstrings(text: str) -> str:
    """Remove docstrings from Python source, except a docstring that is a whole body."""
    lines = text.splitlines()
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)) and len(node.body) > 1:
            first = node.body[0]
            if ast.get_docstring(node, clean=False) is not None and first.end_lineno is not None:
                dropped |= set(range(first.lineno, first.end_lineno + 1))
                if not lines[first.end_lineno].strip():  # a blank line behind it
                    dropped.add(first.end_lineno + 1)
    return "\n".join(line for number, line in enumerate(lines, start=1) if number not in dropped)

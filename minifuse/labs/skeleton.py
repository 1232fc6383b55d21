"""Makes the skeleton that students get: the reference without its marked solutions.

    def missing(length, written):
        '''The spans whose KV is not there yet.'''
        # BEGIN SOLUTION: what of [0, length) is not written?
        ...
        # END SOLUTION

The marked lines become `raise NotImplementedError("what of [0, length) is not written?")`. Outside of functions, a
marker may have no hint; its lines are then left out altogether, because helpers are up to the student.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable

from minifuse.core.errors import UsageError

BLOCK = re.compile(
    r"^(?P<indent>[ \t]*)#[ \t]*BEGIN SOLUTION(?::[ \t]*(?P<hint>[^\n]*\S))?[ \t]*\n"
    r"(?P<solution>.*?)"
    r"^(?P=indent)#[ \t]*END SOLUTION[ \t]*(?:\n|\Z)",
    re.MULTILINE | re.DOTALL,
)
MARKER = re.compile(r".*(?:(?:BEGIN|END)\W+SOLUTION|SOLUTION\W+(?:BEGIN|END)).*", re.IGNORECASE)
SHORTEST = 16  # characters of a line that can give away a solution


def skeleton(text: str, name: str = "solution.py") -> str:
    """Return the file `text` without its solutions.

    Args:
        name: the name of the file, for messages.

    Raises:
        UsageError: markers are missing or do not pair, a solution's line is left, or the rest is not Python.
    """
    functions = _functions(text, name)

    def left(block: re.Match[str]) -> str:
        if stray := MARKER.search(block["solution"]):
            raise UsageError(_unpaired(name, stray))
        if block["hint"] is not None:
            return f"{block['indent']}raise NotImplementedError({json.dumps(block['hint'], ensure_ascii=False)})\n"
        line = text.count("\n", 0, block.start()) + 1
        if any(line in lines for lines in functions):
            raise UsageError(f"{name}, line {line}, has no hint: write # BEGIN SOLUTION: and what is to be written.")
        return ""

    stripped, num_blocks = BLOCK.subn(left, text)
    if stray := MARKER.search(stripped):
        raise UsageError(_unpaired(name, stray))
    if not num_blocks:
        raise UsageError(f"{name} has no solution that is marked: write # BEGIN SOLUTION and # END SOLUTION.")
    stripped = re.sub(r"\n{4,}", "\n\n\n", stripped).rstrip() + "\n"
    _parsed(stripped, f"{name} without its solutions")
    if over := leaked(stripped, solution_lines(text)):
        raise UsageError(f"{name} without its solutions still has a line of one: {over[0]!r}.")
    return stripped


def _unpaired(name: str, marker: re.Match[str]) -> str:
    return (
        f"{name} has the marker {marker[0].strip()!r} by itself: write # BEGIN SOLUTION and, indented alike, "
        "# END SOLUTION."
    )


def _functions(text: str, name: str) -> list[range]:
    """Find the lines of each function."""
    nodes = ast.walk(_parsed(text, name))
    found = (node for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return [range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in found]


def _parsed(text: str, name: str) -> ast.AST:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise UsageError(f"{name} is no Python (line {error.lineno}, {error.msg}): correct it.") from None


def solution_lines(text: str) -> set[str]:
    """Return the stripped lines of the solutions, except comments and short ones."""
    inside = (line.strip() for block in BLOCK.finditer(text) for line in block["solution"].splitlines())
    return {line for line in inside if len(line) >= SHORTEST and not line.startswith("#")}


def leaked(text: str, secret: Iterable[str]) -> list[str]:
    """List the lines of a text that are among the solution lines `secret`."""
    lines = {line.strip().removeprefix("#").strip() for line in text.splitlines()}
    return sorted(lines.intersection(secret))

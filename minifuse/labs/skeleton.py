"""The skeleton that students get: the reference without what stands between BEGIN and END SOLUTION.

    def missing(length, written):
        '''The spans whose KV is not there yet.'''
        # BEGIN SOLUTION: what of [0, length) is not written?
        ...
        # END SOLUTION

becomes `raise NotImplementedError("what of [0, length) is not written?")`. Between functions and methods, where the
marker has no hint, the lines are left out altogether: helpers are the student's own affair.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator

from minifuse.core.errors import UsageError

MARKER = re.compile(r"^(?P<indent>\s*)#\s*(?P<what>BEGIN|END) SOLUTION(?::\s*(?P<hint>.*\S))?\s*$")
NEAR = re.compile(r"(BEGIN|END)\W+SOLUTION|SOLUTION\W+(BEGIN|END)", re.IGNORECASE)
SHORTEST = 16  # characters of a line that tells something of a solution


def skeleton(text: str, name: str = "solution.py") -> str:
    """The file without its solutions. `name` is that of the file, for what is told.

    Raises:
        UsageError: a marker has no other, stands in another, or nothing is left out; or what is left is no Python.
    """
    functions = _functions(text, name)
    left: list[str] = []
    opened: tuple[int, re.Match[str]] | None = None
    blocks = 0
    for number, line in enumerate(text.splitlines(), start=1):
        found = MARKER.match(line)
        if found is None:
            if NEAR.search(line):
                raise UsageError(
                    f"{name}, line {number}, is nearly a marker: write # BEGIN SOLUTION or # END SOLUTION."
                )
            if opened is None:
                left.append(line)
            continue
        if (found["what"] == "BEGIN") == (opened is not None):
            what = "begins a solution within another" if opened else "ends a solution that has not begun"
            raise UsageError(f"{name}, line {number}, {what}: give each BEGIN SOLUTION one END SOLUTION.")
        if opened is None:
            if found["hint"] is None and any(number in lines for lines in functions):
                raise UsageError(
                    f"{name}, line {number}, has no hint: write # BEGIN SOLUTION: and what is to be written."
                )
            opened = number, found
            blocks += 1
            continue
        if opened[1]["indent"] != found["indent"]:
            raise UsageError(f"{name}, line {number}, is not indented as line {opened[0]}: indent both alike.")
        if (hint := opened[1]["hint"]) is not None:
            left.append(f"{found['indent']}raise NotImplementedError({json.dumps(hint, ensure_ascii=False)})")
        opened = None
    if opened is not None:
        raise UsageError(f"{name}, line {opened[0]}, begins a solution that does not end: write # END SOLUTION.")
    if not blocks:
        raise UsageError(f"{name} has no solution that is marked: write # BEGIN SOLUTION and # END SOLUTION.")
    stripped = re.sub(r"\n{4,}", "\n\n\n", "\n".join(left)).rstrip() + "\n"
    try:
        ast.parse(stripped)
    except SyntaxError as error:
        raise UsageError(
            f"{name} without its solutions is no Python (line {error.lineno}, {error.msg}): move a marker."
        ) from None
    if over := [*leaked(stripped, solution_lines(text))]:
        raise UsageError(f"{name} without its solutions still has a line of one: {over[0]!r}.")
    return stripped


def _functions(text: str, name: str) -> list[range]:
    """The lines of each function."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UsageError(f"{name} is no Python (line {error.lineno}, {error.msg}): correct it.") from None
    found = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return [range(node.lineno, (node.end_lineno or node.lineno) + 1) for node in found]


def solution_lines(text: str) -> set[str]:
    """The lines that stand between markers, without blanks around them; those that tell nothing are left out."""
    inside: set[str] = set()
    within = False
    for line in text.splitlines():
        if found := MARKER.match(line):
            within = found["what"] == "BEGIN"
        elif within:
            inside.add(line.strip())
    return {line for line in inside if len(line) >= SHORTEST and not line.startswith("#")}


def leaked(text: str, secret: Iterable[str]) -> Iterator[str]:
    """The lines of a text that are among these lines of solutions."""
    lines = {line.strip().removeprefix("#").strip() for line in text.splitlines()}
    yield from sorted(lines & {*secret})

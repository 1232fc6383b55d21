"""Refuses names in a student's file that lead to the interpreter or the step counter.

`minifuse.labs.student` runs this file by its path, so it imports nothing of minifuse.
"""

from __future__ import annotations

import ast
from collections.abc import Collection


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODULES = words(  # modules that a file may import: their public names only compute
    """abc array bisect cmath collections collections.abc copy dataclasses decimal enum __future__ fractions functools
    graphlib heapq itertools json math numbers operator random re statistics string textwrap typing"""
)
NAMES = words(  # names that lead from these modules to the interpreter
    """getattr setattr delattr eval exec compile globals locals vars breakpoint attrgetter methodcaller Formatter
    get_type_hints get_args ForwardRef singledispatch singledispatchmethod global_enum update_wrapper wraps
    WRAPPER_ASSIGNMENTS WRAPPER_UPDATES
    as_strided stride_tricks memmap testing f2py ctypeslib distutils
    settrace gettrace setprofile getprofile monitoring cell_contents tb_frame tb_next
    gi_frame gi_code gi_yieldfrom cr_frame cr_code cr_await ag_frame ag_code ag_await
    f_back f_builtins f_code f_globals f_locals f_trace f_trace_lines f_trace_opcodes"""
)
INNER = words("sys os builtins bltns inspect contextlib thread pickle importlib")  # reached through a lab's `imports`
PLAIN = words(  # names with two underlines that lead nowhere
    """all name qualname doc version slots match_args class init post_init new call len iter next reversed contains
    getitem setitem delitem missing bool int float index hash eq ne lt le gt ge repr str format add radd iadd sub rsub
    isub mul rmul imul truediv floordiv mod divmod pow matmul neg pos abs invert and or xor lshift rshift enter exit
    copy deepcopy future cause context"""
)


class NotAllowed(Exception):
    """Raised if a file does what no lab allows."""


def look(tree: ast.AST, imports: Collection[str]) -> None:
    """Check the names in a file.

    Args:
        imports: modules that the file may import in addition to `MODULES`.

    Raises:
        NotAllowed: a name could lead to something refused, or to the step counter.
    """
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        for module in _modules(node):
            if not _may_import(module, imports):
                raise NotAllowed(
                    f"line {line} imports {module}, and a lab's file may import "
                    f"{', '.join(sorted(MODULES.union(imports)))}"
                )
        for name in named(node, imports):
            raise NotAllowed(f"line {line} has {name}, which no lab's file may use")


def look_at_made(source: str | bytes) -> None:
    """Check the names in a text that a module, such as `dataclasses`, compiles.

    Some of the names may come from the student's file.

    Raises:
        NotAllowed: a name could lead to something refused, or to the step counter.
    """
    nodes = [*ast.walk(ast.parse(source))]
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}  # a field may be called locals
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    for node in nodes:
        for name in named(node, ()):
            own = name.startswith("__dataclass_") or (isinstance(node, ast.Name) and name in bound)
            if not (own or _is_of_frozen(node)):
                raise NotAllowed(f"a text that a module makes a function of has {name}, which no lab's file may use")


def _is_of_frozen(node: ast.AST) -> bool:
    """Whether this is a call that a frozen dataclass makes: `super(cls, self).__setattr__`."""
    if not (isinstance(node, ast.Attribute) and node.attr in ("__setattr__", "__delattr__")):
        return False
    owner = node.value.func if isinstance(node.value, ast.Call) else node.value
    return isinstance(owner, ast.Name) and (owner.id == "super" or owner.id.startswith("__dataclass_"))


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [one.name for one in node.names]
    return ["." * node.level + (node.module or "")] if isinstance(node, ast.ImportFrom) else []


def _may_import(module: str, imports: Collection[str]) -> bool:
    if module.partition(".")[0] == "minifuse":  # `Withheld` says why not
        return True
    return module in MODULES or any(module == one or module.startswith(f"{one}.") for one in imports)


def named(node: ast.AST, imports: Collection[str]) -> list[str]:
    """List the refused names in a node."""
    if isinstance(node, ast.Name):
        return [node.id] if _leads(node.id) else []
    found: list[str] = []
    if isinstance(node, ast.Attribute):
        found = [node.attr]
    elif isinstance(node, ast.alias):
        found = node.name.split(".")
    elif isinstance(node, ast.MatchClass):
        found = node.kwd_attrs
    inner = INNER.difference(imports) if imports else ()
    return [one for one in found if _leads(one) or one.strip("_") in inner]


def _leads(name: str) -> bool:
    double = name.startswith("__") and name.endswith("__")
    return name in NAMES or (double and name.strip("_") not in PLAIN)

"""The names in a student's file, looked at before it is run: none leads to the interpreter, or to the count of steps.

`minifuse.labs.student` runs this file by its path, so it imports nothing of minifuse.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


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


class NotAllowed(Exception):
    """The file does what no lab may do."""


def imported(file: Path, imports: Sequence[str]) -> list[str]:
    """The files beside a student's that it imports; up to a line that is refused, which is told elsewhere."""
    names = Names([*imports])
    with suppress(OSError, SyntaxError, ValueError, NotAllowed):
        names.look(file, ast.parse(file.read_bytes(), str(file)))
    return sorted(one.name for one in names.seen - {file})


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

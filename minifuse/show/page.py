"""Puts the replay page together: the record, our JavaScript modules and styles, in one file that loads nothing.

Browsers refuse to load modules from files beside a page that was opened from a file. So all modules become one inline
script: each import names another module of the page, on one line, and is left out; `export` is left out; and a module
stands behind those that it imports. Names at the top level of modules must therefore differ; two that are alike are
refused. The record lies in the page as gzip in base64.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minifuse.io.output import write_whole
from minifuse.show.record import record
from minifuse.show.traced_runs import TracedRun

PAGE = Path(__file__).parent / "page"
START = "app.js"
FIRST_STYLE = "style.css"
IMPORT = re.compile(r'^import \{ ([\w$]+(?:, [\w$]+)*) \} from "\./([\w.-]+\.js)";$')
DECLARED = re.compile(
    r"^(?:export )?(?:(?:async )?function\*? ([\w$]+)|class ([\w$]+)|"
    r"(?:const|let|var) (?:([\w$]+)|[\[{]([^=]*)[\]}] =))"
)


def write_page(runs: Sequence[TracedRun], path: Path) -> None:
    """Write the page of runs of one workload.

    Raises:
        UsageError: the runs do not make a page, or it may not be written there.
        MachineError: the disk is full.
    """
    write_whole(path, assemble(record(runs)))


def assemble(told: Mapping[str, Any], address: str = "") -> str:
    """The page of a record, as HTML.

    Args:
        address: what the page shows where nothing stands behind # in its own, as in a frame: `i=12&stops=20`.
    """
    modules = {file.name: file.read_text(encoding="utf-8") for file in sorted(PAGE.glob("*.js"))}
    styles = sorted(PAGE.glob("*.css"), key=lambda file: (file.name != FIRST_STYLE, file.name))
    titles = ", ".join(run["title"] for run in told["runs"])
    packed = gzip.compress(json.dumps(told, separators=(",", ":")).encode(), mtime=0)
    parts = {
        "title": html.escape(titles),
        "address": html.escape(address),
        "style": "\n".join(file.read_text(encoding="utf-8") for file in styles),
        "record": base64.b64encode(packed).decode(),
        "script": bundle(modules, START),
    }
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    return re.sub(r"<!-- put (\w+) here -->|/\* put (\w+) here \*/", lambda found: parts[found[1] or found[2]], page)


def bundle(modules: Mapping[str, str], start: str) -> str:
    """Modules as one script, each behind those that it imports, beginning from `start`.

    >>> print(bundle({"a.js": 'import { b } from "./b.js";\\nb();', "b.js": "export function b() {}"}, "a.js"))
    // b.js
    function b() {}
    // a.js
    b();

    Raises:
        ValueError: imports form a circle or name what there is not, two modules declare the same name, or one holds
            what would end the script.
    """
    order: list[str] = []
    exports = {name: _exported(text) for name, text in modules.items()}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ValueError(f"The modules {' -> '.join((*path[path.index(name) :], name))} import each other.")
        if name in order:
            return
        for imported, names in _imports(name, modules[name]):
            if imported not in modules:
                raise ValueError(f"{name} imports from {imported}, which the page does not have.")
            if missing := names - exports[imported]:
                raise ValueError(f"{name} imports {', '.join(sorted(missing))}, which {imported} does not export.")
            visit(imported, (*path, name))
        order.append(name)

    visit(start, ())
    owner: dict[str, str] = {}
    for name in order:
        if "</script" in modules[name].lower() or "<!--" in modules[name]:
            raise ValueError(f"{name} holds a mark that would end the script in which it is to stand.")
        for declared in _declared(modules[name]):
            if owner.setdefault(declared, name) != name:
                raise ValueError(f"{owner[declared]} and {name} both declare {declared} at their top level.")
    return "\n".join(f"// {name}\n{_body(modules[name])}" for name in order)


def _imports(name: str, text: str) -> list[tuple[str, set[str]]]:
    found = []
    for line in text.splitlines():
        if line.startswith("import"):
            match = IMPORT.match(line)
            if match is None:
                raise ValueError(
                    f'{name} has {line!r}: imports must read import {{ a, b }} from "./x.js"; on one line.'
                )
            found.append((match[2], set(match[1].split(", "))))
    return found


def _declared(text: str) -> list[str]:
    """The names that a module declares at its top level, which is where a line begins with the declaration."""
    names: list[str] = []
    for line in text.splitlines():
        if match := DECLARED.match(line):
            several = match[4]
            names += re.findall(r"[\w$]+", several) if several else [match[1] or match[2] or match[3]]
    return names


def _exported(text: str) -> set[str]:
    return {name for line in text.splitlines() if line.startswith("export ") for name in _declared(line)}


def _body(text: str) -> str:
    """A module without its imports and without the word export."""
    lines = (line.removeprefix("export ") for line in text.splitlines() if not line.startswith("import "))
    return "\n".join(lines).strip("\n")

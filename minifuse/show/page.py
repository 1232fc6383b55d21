"""Assembles the replay page: one file of record, scripts and styles that loads nothing else.

A page that was opened from a file cannot load modules from other files. So all modules become one inline script, in the
order of their imports. An import must be one line, and no two modules may define the same name at their top level.
The record is in the page as gzip in base64.
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
IMPORT = re.compile(r'^import \{ .+ \} from "\./([\w.-]+\.js)";\n', re.MULTILINE)


def write_page(runs: Sequence[TracedRun], path: Path) -> None:
    """Write the page of runs of one workload.

    Raises:
        UsageError: as for `record`, or the file cannot be written.
        MachineError: the disk is full.
    """
    write_whole(path, assemble(record(runs)))


def assemble(told: Mapping[str, Any], address: str = "") -> str:
    """Return the HTML page that shows a record.

    Args:
        told: the record, as made by `minifuse.show.record.record`.
        address: what the page shows if nothing follows # in its own URL, for example in a frame: `i=12&stops=20`.
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
    """Join `start` and the modules that it imports into one script, imports first.

    >>> print(bundle({"a.js": 'import { b } from "./b.js";\\nb();', "b.js": "export function b() {}"}, "a.js"))
    // b.js
    function b() {}
    // a.js
    b();
    """
    parts: dict[str, str] = {}

    def visit(name: str) -> None:
        for imported in IMPORT.findall(modules[name]):
            if imported not in parts:
                visit(imported)
        body = re.sub(r"^export ", "", IMPORT.sub("", modules[name]), flags=re.MULTILINE)
        parts[name] = f"// {name}\n{body.strip()}"

    visit(start)
    return "\n".join(parts.values())

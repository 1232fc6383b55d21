"""Putting the page together: modules in order, names apart, nothing loaded from elsewhere."""

import base64
import gzip
import json
import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
from replay_runs import long_run

from minifuse.core.errors import UsageError
from minifuse.show.page import PAGE, assemble, bundle, write_page
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run

Pages = Callable[..., Path]


def test_modules_stand_behind_those_that_they_import() -> None:
    modules = {
        "app.js": 'import { b } from "./b.js";\nimport { c } from "./c.js";\nb(c);',
        "b.js": 'import { c } from "./c.js";\nexport function b() {}',
        "c.js": "export const c = 1;",
        "unused.js": "export const unused = 1;",
    }
    assert bundle(modules, "app.js") == "// c.js\nconst c = 1;\n// b.js\nfunction b() {}\n// app.js\nb(c);"


DECLARED = re.compile(
    r"^(?:export )?(?:async )?(?:function\*?|class|const|let) ([\w$]+|[\[{][^=]*[\]}] =)", re.MULTILINE
)
IMPORTED = re.compile(r'^import \{ ([\w$]+(?:, [\w$]+)*) \} from "\./([\w.-]+\.js)";$')


def test_modules_can_be_one_script() -> None:
    """Imports stand on one line and name what is exported, no name is declared twice, and nothing ends the script."""
    modules = {path.name: path.read_text(encoding="utf-8") for path in PAGE.glob("*.js")}
    owners: dict[str, str] = {}
    exported: dict[str, set[str]] = {}
    for name, text in modules.items():
        assert "</script" not in text.lower()
        assert "<!--" not in text
        for names in DECLARED.findall(text):
            for declared in re.findall(r"[\w$]+", names):
                assert owners.setdefault(declared, name) == name, declared
        exports = "\n".join(line for line in text.splitlines() if line.startswith("export "))
        exported[name] = {one for names in DECLARED.findall(exports) for one in re.findall(r"[\w$]+", names)}
    for name, text in modules.items():
        for line in text.splitlines():
            if line.startswith("import"):
                found = IMPORTED.match(line)
                assert found, f"{name}: {line}"
                assert {*found[1].split(", ")} <= exported[found[2]], f"{name}: {line}"


def test_the_page_loads_nothing_and_holds_its_record(pages: Pages, traces: Callable[..., list[Path]]) -> None:
    page = pages("static", "vllm").read_text()
    assert not re.findall(r"""<\w[^<>]*\s(?:src|href|srcset|action)\s*=\s*["']?(?!data:)[^"'\s>]""", page)
    assert not re.findall(r"@import|url\(\s*[\"']?(?!#|data:)", page)
    assert not re.findall(r"\b(?:fetch|XMLHttpRequest|WebSocket|EventSource|importScripts)\b\s*\(", page)
    assert "default-src 'none'" in page
    packed = re.search(r'<script type="application/gzip;base64" id="record">([^<]*)</script>', page)
    assert packed is not None
    told = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    assert told == json.loads(json.dumps(record([read_run(path) for path in traces("static", "vllm")])))


def test_every_file_of_the_page_is_in_it(pages: Pages) -> None:
    page = pages("static", "vllm").read_text()
    for path in PAGE.glob("*.js"):
        assert f"// {path.name}\n" in page
    for path in PAGE.glob("*.css"):
        assert path.read_text() in page
    assert "<!-- put " not in page
    assert "/* put " not in page


def test_equal_runs_make_equal_pages(traces: Callable[..., list[Path]]) -> None:
    paths = traces("vllm")
    assert assemble(record([read_run(path) for path in paths])) == assemble(record([read_run(path) for path in paths]))


def test_a_thousand_iterations_take_less_than_a_megabyte() -> None:
    assert len(assemble(long_run(1000)).encode()) < 1_000_000
    assert len(assemble(long_run(4000)).encode()) < 4_000_000


def test_a_title_cannot_be_markup() -> None:
    told = deepcopy(long_run(2))
    told["runs"][0]["title"] = "</title><script>alert(1)</script>"
    assert "<script>alert" not in assemble(told)


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path, traces: Callable[..., list[Path]]) -> None:
    runs = [read_run(path) for path in traces("vllm")]
    with pytest.raises(UsageError, match="cannot be written"):
        write_page(runs, tmp_path / "nowhere" / "page.html")

"""The page of the laws names the laws that the code raises, and where to look."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import minifuse
from minifuse.stages import KINDS, stages
from minifuse.testing import GRAPHS, TEXTS
from minifuse.testing.statements import PLACES, names_of, statement, statements

SOURCE = Path(minifuse.__file__).parent
ROOT = SOURCE.parent


def test_the_wheel_has_the_page_where_it_is_read() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    forced = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert (ROOT / forced["docs/laws.md"], ROOT / "docs" / "laws.md") == PLACES


def test_every_law_that_the_code_names_has_words() -> None:
    named = re.compile(r'\b(?:LawBroken|StageFailed)\(\s*"([a-z ]+)"')
    found = {name for path in SOURCE.rglob("*.py") for name in named.findall(path.read_text())}
    known = {name for names in statements() for name in names.split(", ")}
    assert found == known
    assert set(names_of(TEXTS, GRAPHS)) == known
    assert "pinned" not in names_of(TEXTS)


def test_a_law_of_a_stages_own_has_words_too() -> None:
    assert "of its own" in statement("fairness of mine").says


def test_what_there_is_to_read_and_to_look_at_exists() -> None:
    halves = {kind: [*stages(kind).values()] for kind in KINDS}
    for cls in [*halves["attention"]]:
        if cls.tensors:
            module, _, name = cls.tensors.partition(":")
            halves["attention"].append(getattr(importlib.import_module(module), name))
    for law, words in statements().items():
        page, heading = re.fullmatch(r"(docs/\w+\.md): \"(.+)\"", words.read).groups()
        assert re.search(rf"^(\*\*{heading}|## {heading}$)", (ROOT / page).read_text(), re.MULTILINE), law
        for kind, methods in words.methods.items():
            for method in methods:
                assert any(hasattr(cls, method) for cls in halves[kind]), (law, method)  # type: ignore[index]

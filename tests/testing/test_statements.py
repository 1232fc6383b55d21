"""What the laws say is told once: in the package, in the documentation, and in what the code raises."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import minifuse
from minifuse.stages import KINDS, stages
from minifuse.testing import GRAPHS, TEXTS
from minifuse.testing.laws import NAMES
from minifuse.testing.statements import STATEMENTS, names_of, statement

SOURCE = Path(minifuse.__file__).parent
ROOT = SOURCE.parent


def test_the_documentation_says_the_same() -> None:
    page = (ROOT / "docs" / "laws.md").read_text()
    rows = re.findall(r"^\| ([a-z ,]+) \| (.+) \| (.+) \|$", page, re.MULTILINE)[1:]
    assert rows == [(names, words.says, words.checked_by) for names, words in STATEMENTS.items()]


def test_every_law_that_the_code_names_has_words() -> None:
    named = re.compile(r'\b(?:LawBroken|StageFailed)\(\s*"([a-z ]+)"')
    found = {name for path in SOURCE.rglob("*.py") for name in named.findall(path.read_text())}
    known = {name for names in STATEMENTS for name in names.split(", ")}
    assert found | set(NAMES) <= known
    assert known <= found | set(NAMES)
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
    for law, words in STATEMENTS.items():
        page, heading = re.fullmatch(r"(docs/\w+\.md): \"(.+)\"", words.read).groups()
        assert re.search(rf"^(\*\*{heading}|## {heading}$)", (ROOT / page).read_text(), re.MULTILINE), law
        for kind, methods in words.methods.items():
            for method in methods:
                assert any(hasattr(cls, method) for cls in halves[kind]), (law, method)  # type: ignore[index]

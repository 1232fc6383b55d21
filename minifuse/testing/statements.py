"""Reads from docs/laws.md what each law says, and where to look if it is broken."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

from minifuse.io.shipped import places, shipped
from minifuse.testing.graphs import GRAPHS
from minifuse.testing.subject import Subject
from minifuse.testing.texts import TEXTS

PLACES = places("laws.md", "docs/laws.md")
ROW = re.compile(r"^\| ([a-z ,]+) \| (.+) \| (.+) \|$", re.MULTILINE)
METHODS = re.compile(r"`(\w+): ([\w, ]+)`")
LINK = re.compile(r"\[(.+)\]\((.+)\)")


class Statement(NamedTuple):
    """A law in words."""

    says: str
    checked_by: str
    methods: Mapping[str, tuple[str, ...]]  # by kind of stage, the likeliest kinds and methods first
    read: str  # the page of docs/, and the paragraph, that explains the law


@cache
def statements() -> dict[str, Statement]:
    """Read the tables of docs/laws.md, row by row; a row may name several laws.

    Raises:
        MachineError: this installation lacks the page.
    """
    table, _, where = shipped(PLACES, "The laws are").read_text(encoding="utf-8").partition("## Where to look")
    words = {names: (says, checked_by) for names, says, checked_by in ROW.findall(table)}
    found: dict[str, Statement] = {}
    for names, look_at, read in ROW.findall(where)[1:]:
        methods = {kind: tuple(listed.split(", ")) for kind, listed in METHODS.findall(look_at)}
        page = LINK.sub(r'docs/\2: "\1"', read)
        found[names] = Statement(*words[names], methods, page)
    return found


class OwnLaw(NamedTuple):
    """A law in words, and the function that checks it."""

    says: str
    function: Callable[..., str | None]

    @property
    def file(self) -> str:
        return self.function.__code__.co_filename

    @property
    def line(self) -> int:
        return self.function.__code__.co_firstlineno


OWN_LAWS: dict[str, OwnLaw] = {}  # a researcher's own, by name: `minifuse.testing.own_laws`
_OTHER = Statement("a law that a stage has of its own", "the stage", {}, "The laws")


def is_of_kit(law: str) -> bool:
    """Return whether a law of the kit has this name."""
    return law in _kit_names()


def statement(law: str) -> Statement:
    """Return the statement of the law that `LawBroken.law` names."""
    if law in OWN_LAWS:
        return _OTHER._replace(says=OWN_LAWS[law].says)
    return next((words for names, words in statements().items() if law in names.split(", ")), _OTHER)


def names_of(*subjects: Subject) -> list[str]:
    """Return the names of the kit's laws that are checked on these subjects."""
    special = {name for subject in (TEXTS, GRAPHS) for name in subject.law_names}
    own = {name for subject in subjects for name in subject.law_names}
    return [name for name in _kit_names() if name not in special or name in own]


def _kit_names() -> list[str]:
    return [name for names in statements() for name in names.split(", ")]

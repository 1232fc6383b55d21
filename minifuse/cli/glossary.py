"""Reads the terms of docs/glossary.md; an installed package has it as `minifuse/glossary.md`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from minifuse.io.shipped import places, shipped

PLACES = places("glossary.md", "docs/glossary.md")


@dataclass(frozen=True, slots=True)
class Term:
    """A row of the glossary, which explains one or more terms."""

    names: tuple[str, ...]
    meaning: str
    command: str | None  # a command that runs the mechanism that the term names, if any
    defined_in: str
    chapter: str

    def is_called(self, name: str) -> bool:
        """Return whether a folded name, or its singular, is one of the terms."""
        own = {folded(term) for term in self.names}
        return name in own or name.removesuffix("s") in own

    def has_word(self, name: str) -> bool:
        """Return whether a folded name is a word in one of the terms."""
        return any(name in folded(term).split() for term in self.names)


def folded(name: str) -> str:
    """Fold a name for look-up: ignore case, and treat hyphens and underscores as blanks.

    >>> folded("Graph_Padded"), folded("TTFT")
    ('graph padded', 'ttft')
    """
    return " ".join(name.casefold().replace("-", " ").replace("_", " ").split())


@cache
def terms() -> tuple[Term, ...]:
    """Return every row of the glossary, in order.

    Raises:
        MachineError: this installation lacks the glossary.
    """
    path = shipped(PLACES, "The glossary is")
    found: list[Term] = []
    chapter = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            chapter = line.removeprefix("## ")
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and cells[0] != "term" and not cells[0].startswith("---"):
            names, told, where = cells
            meaning, shown, arguments = told.partition(": `minifuse ")
            command = f"minifuse {arguments.rstrip('`')}" if shown else None
            found.append(
                Term(tuple(names.split(", ")), meaning.replace("`", ""), command, where.replace("`", ""), chapter)
            )
    return tuple(found)

"""Books of paged memory with changes that have not been made: for what is tried out, and what is placed whole."""

from __future__ import annotations

from collections.abc import Iterable

from minifuse.memory.changes import Changes
from minifuse.memory.tables import Tables
from minifuse.work import Work

__all__ = ["Trial"]

BOOKS = ("sequences", "pages", "away", "cached", "promised", "copied", "returned", "copying", "arrivals")
SUMS = ("num_admitted", "num_promised", "num_kept", "num_away")


class Trial(Tables):
    """The same books, changes to which are not made before `make`. It costs as much as is changed in it.

    It may be used until the books change. The prefix tree stays as it is: sequences that joined since are kept apart.
    """

    def __init__(self, books: Tables) -> None:
        vars(self).update(vars(books))
        self.books = books
        self.left: set[str] = set()  # sequences that were on the device when the trial began, and have left it since
        self.joined: dict[str, None] = {}  # sequences that were admitted since, and are on the device
        for name in BOOKS:
            setattr(self, name, Changes(getattr(books, name)))
        self.device, self.host = books.device.trial(), books.host.trial()

    def make(self) -> None:
        """Make the changes."""
        books = self.books
        for name in self.left:
            books.prefixes.remove(name)
        for name in BOOKS:
            getattr(self, name).make()
        books.device.make(self.device)
        books.host.make(self.host)
        for name in SUMS:
            setattr(books, name, getattr(self, name))
        for name in self.joined:
            books._join(name)

    @property
    def num_on_device(self) -> int:
        return len(self.books.pages) - len(self.left) + len(self.joined)

    def lacking(self, work: Iterable[Work]) -> list[Work]:
        """The work of sequences that may have to `grow` for it: few of them, unless blocks are shared."""
        pages, left, size = self.books.pages, self.left, self.size
        return [
            item
            for item in work
            if self.share or (name := item[0]) in left or name not in pages or item[2] > len(pages[name].blocks) * size
        ]

    def _candidates(self, tokens: list[int], stop: int) -> list[tuple[str, int]]:
        moving = self.books.copied or self.books.returned or self.copied or self.returned
        eligible = self._has_stayed if moving or self.left else None
        stayed = self.prefixes.candidates(tokens, stop, self.books.arrivals, eligible)
        return [*stayed, *((name, 0) for name in self.joined if self._has_arrived(name))]

    def _has_stayed(self, name: str) -> bool:
        return name not in self.left and self._has_arrived(name)

    def _join(self, name: str) -> None:
        self.joined[name] = None

    def _forget(self, name: str) -> None:
        if name in self.joined:
            del self.joined[name]
        else:
            self.left.add(name)

"""Books of paged memory with changes that have not been made: for what is tried out, and what is placed whole."""

from __future__ import annotations

from collections.abc import Iterable

from minifuse.memory.changes import Changes
from minifuse.memory.prefixes import Prefixes
from minifuse.memory.tables import Tables
from minifuse.work import Work

__all__ = ["Trial"]

BOOKS = ("sequences", "pages", "away", "cached", "promised", "copied", "returned", "copying")
SUMS = ("num_promised", "num_kept", "num_away")


class Trial(Tables):
    """The same books, changes to which are not made before `make`. It costs as much as is changed in it.

    It may be used until the books change. The prefix tree stays as it is: the texts of sequences that joined since have
    one of their own.
    """

    def __init__(self, books: Tables) -> None:
        vars(self).update(vars(books))
        self.books = books
        self.left: set[str] = set()  # sequences that were on the device when the trial began, and have left it since
        self.joined = Prefixes()  # of the sequences that were admitted since, and are on the device
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
        for name in self.joined.ends:
            books._join(name)

    @property
    def num_on_device(self) -> int:
        return len(self.books.pages) - len(self.left) + len(self.joined.ends)

    def lacking(self, work: Iterable[Work]) -> list[Work]:
        """The work of sequences that may have to `grow` for it: few of them, unless blocks are shared."""
        pages, left, size = self.books.pages, self.left, self.size
        return [
            item
            for item in work
            if self.share or (name := item[0]) in left or name not in pages or item[2] > len(pages[name].blocks) * size
        ]

    def _longest(self, tokens: list[int], stop: int) -> tuple[str, int]:
        moving = self.books.copied or self.books.returned or self.copied or self.returned
        stayed = self.prefixes.longest(tokens, stop, self._has_stayed if moving or self.left else None)
        joined = self.joined.longest(tokens, stop, self._has_arrived)
        return joined if joined[1] > stayed[1] else stayed  # those that stayed were admitted earlier

    def _has_stayed(self, name: str) -> bool:
        return name not in self.left and self._has_arrived(name)

    def _join(self, name: str) -> None:
        known = self.share and self._has_arrived(name)  # a text that no newcomer can share now need not be known
        self.joined.extend(name, self.sequences[name].tokens, self.cached[name] if known else 0)

    def _forget(self, name: str) -> None:
        if name in self.joined.ends:
            self.joined.remove(name)
        else:
            self.left.add(name)

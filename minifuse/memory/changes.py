"""Changes that have not been made yet: books are read through them, so that trying something out copies nothing."""

from __future__ import annotations

from collections.abc import MutableMapping, MutableSequence
from typing import Any, Generic, TypeVar

__all__ = ["Changes", "Stack"]

K = TypeVar("K")
V = TypeVar("V")


class Changes(dict[K, V]):
    """Changes to a mapping, or to the items of a list. It reads as the books do after them; `make` makes them.

    Only reading and writing by key goes through to the books. Iterating yields what was changed, and nothing else.

    >>> books = {"a": 1, "b": 2}
    >>> changes = Changes(books)
    >>> del changes["a"]
    >>> changes["c"] = changes["b"] + 1
    >>> "a" in changes, changes["b"], changes["c"], books
    (False, 2, 3, {'a': 1, 'b': 2})
    >>> changes.make()
    >>> books
    {'b': 2, 'c': 3}
    """

    __slots__ = ("base", "gone")

    def __init__(self, base: MutableMapping[K, V] | MutableSequence[V]) -> None:
        super().__init__()
        self.base: Any = base
        self.gone: set[K] = set()  # keys of the books that were deleted, perhaps to be set again

    def __missing__(self, key: K) -> V:
        if key in self.gone:
            raise KeyError(key)
        value: V = self.base[key]
        return value

    def __contains__(self, key: object) -> bool:
        return dict.__contains__(self, key) or (key not in self.gone and key in self.base)

    def get(self, key: K, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def __delitem__(self, key: K) -> None:
        self.pop(key)

    def pop(self, key: K, *default: Any) -> Any:
        if key not in self:
            if default:
                return default[0]
            raise KeyError(key)
        value = self[key]
        dict.pop(self, key, None)
        if key in self.base:
            self.gone.add(key)
        return value

    def make(self) -> None:
        """Make the changes. A key that was deleted and set again is the last, as in a dictionary."""
        for key in self.gone:
            del self.base[key]
        for key, value in self.items():
            self.base[key] = value


class Stack(Generic[V]):
    """Changes to a list of which only the end is taken and added to.

    >>> books = [1, 2, 3]
    >>> stack = Stack(books)
    >>> stack.append(7)
    >>> stack.pop(), stack.pop(), len(stack), books
    (7, 3, 2, [1, 2, 3])
    """

    __slots__ = ("base", "kept", "top")

    def __init__(self, base: list[V]) -> None:
        self.base = base
        self.kept = len(base)  # items of the books that were not taken
        self.top: list[V] = []  # what lies on them

    def __len__(self) -> int:
        return self.kept + len(self.top)

    def append(self, value: V) -> None:
        self.top.append(value)

    def pop(self) -> V:
        if self.top:
            return self.top.pop()
        if not self.kept:
            raise IndexError("pop from an empty stack")
        self.kept -= 1
        return self.base[self.kept]

    def make(self) -> None:
        del self.base[self.kept :]
        self.base += self.top

"""A prefix tree that finds the longest common prefix with a text on the device.

It is a radix tree: a node has one or more tokens, which follow the tokens of its parent. A node ends where texts
diverge or where a text ends. Nodes do not depend on blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

CHUNK = 64  # tokens compared at once


def common_length(one: Seq[int], two: Seq[int], start: int, stop: int) -> int:
    """Return how many of the first `stop` tokens agree in both texts.

    The first `start` tokens are known to agree.

    >>> common_length([1, 2, 3, 4], [1, 2, 3, 5], 1, 4)
    3
    """
    while start < stop:
        end = min(start + CHUNK, stop)
        if one[start:end] != two[start:end]:
            return next(i for i in range(start, end) if one[i] != two[i])
        start = end
    return stop


@dataclass(slots=True, eq=False)
class _Node:
    """A node of the tree: tokens [parent.stop, stop) of every text that contains it."""

    tokens: list[int]  # one of these texts, whole; not a copy, since a text only grows
    stop: int
    parent: _Node | None
    children: dict[int, _Node] = field(default_factory=dict)  # by their first token
    holders: list[tuple[int, str]] = field(default_factory=list)  # sequences that contain it, in order of admission


class Prefixes:
    """Keeps the texts of sequences up to the last token whose KV is in place.

    >>> prefixes = Prefixes()
    >>> prefixes.extend("a", [1, 2, 3, 4, 5], 5)
    >>> prefixes.extend("b", [1, 2, 3, 9], 3)  # the KV of its last token is not in place: 9 does not count
    >>> prefixes.longest([1, 2, 3, 4, 7], 4)
    ('a', 4)
    >>> prefixes.longest([1, 2, 3, 9, 7], 4)  # a and b have 1, 2, 3 in common with it, and a came first
    ('a', 3)
    >>> prefixes.longest([1, 2, 3, 4, 7], 4, gone={"a"})
    ('b', 3)
    """

    def __init__(self) -> None:
        self.root = _Node([], 0, None)  # has no tokens; its holders are not listed
        self.ends: dict[str, _Node] = {}  # sequence -> the last node of its text; in the order of admission
        self.holders: dict[str, tuple[int, str]] = {}  # sequence -> how nodes list it: (order of admission, name)
        self.num_admitted = 0

    def extend(self, name: str, tokens: list[int], count: int) -> None:
        """Record that the KV of a sequence's first `count` tokens is in place.

        `count` may exceed the length of the text. The first call adds the sequence. The cost grows with the number
        of new tokens only: a last node that no other text shares grows in place.
        """
        count = min(count, len(tokens))
        node = self.ends.get(name)
        if node is None:
            node = self.ends[name] = self.root
            self.holders[name] = self.num_admitted, name
            self.num_admitted += 1
        if count <= node.stop:
            return
        if len(node.holders) == 1:  # as in most iterations
            node.tokens, node.stop = tokens, count
            return
        end, holder = node, self.holders[name]
        while node.stop < count:
            child = node.children.get(tokens[node.stop])
            if child is None:
                child = node.children[tokens[node.stop]] = _Node(tokens, count, node)
            else:
                same = common_length(child.tokens, tokens, node.stop, min(child.stop, count))
                if same < child.stop:
                    child = _split(child, same)
            insort(child.holders, holder)
            node = child
        self.ends[name] = node
        _merge(end)

    def remove(self, name: str) -> None:
        """Remove a sequence, if it is known. The cost grows with its number of nodes."""
        node = self.ends.pop(name, None)
        if node is None:
            return
        holder = self.holders.pop(name)
        while (parent := node.parent) is not None:
            del node.holders[bisect_left(node.holders, holder)]
            if node.holders:
                _merge(node)
            else:
                del parent.children[node.tokens[parent.stop]]
            node = parent

    def longest(self, tokens: list[int], stop: int, gone: Container[str] = ()) -> tuple[str, int]:
        """Return the sequence with the longest common prefix, and the prefix's length; or ("", 0).

        Only the first `stop` tokens count. Of several such sequences, the first admitted is returned.

        Args:
            gone: sequences to ignore.
        """
        node, length = self.root, 0
        while length == node.stop and length < stop and (child := node.children.get(tokens[length])) is not None:
            node, length = child, common_length(child.tokens, tokens, length, min(child.stop, stop))
        while (parent := node.parent) is not None:
            for _, name in node.holders:
                if name not in gone:
                    return name, length
            node, length = parent, parent.stop
        return "", 0


def _split(node: _Node, length: int) -> _Node:
    """Cut a node after `length` tokens of its text. Returns the new, upper part."""
    parent, tokens = node.parent, node.tokens
    assert parent is not None
    upper = parent.children[tokens[parent.stop]] = _Node(tokens, length, parent)
    upper.children[tokens[length]] = node
    upper.holders = node.holders.copy()
    node.parent = upper
    return upper


def _merge(node: _Node) -> None:
    """Merge a node into its only child, if both have the same holders. Undoes `_split`."""
    parent = node.parent
    if parent is not None and len(node.children) == 1:
        (child,) = node.children.values()
        if len(child.holders) == len(node.holders):
            parent.children[node.tokens[parent.stop]] = child
            child.parent = parent

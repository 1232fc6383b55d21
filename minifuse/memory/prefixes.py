"""Which sequences begin alike, found block by block: the prefix tree of their texts.

A node is a whole block of tokens after those of its parent, and knows the sequences that have it. Its key is the tokens
themselves, so two texts that only hash alike are never taken for the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as Seq
from itertools import pairwise

__all__ = ["Prefixes", "common_length"]

CHUNK = 64  # tokens compared at once


def common_length(one: Seq[int], two: Seq[int], start: int, stop: int) -> int:
    """The length of the longest common beginning of two texts, up to `stop`; they are known to be alike up to `start`.

    >>> common_length([1, 2, 3, 4], [1, 2, 3, 5], 1, 4)
    3
    """
    while start < stop and one[start : start + CHUNK] == two[start : start + CHUNK]:
        start += CHUNK
    return next((i for i in range(start, min(start + CHUNK, stop)) if one[i] != two[i]), min(start + CHUNK, stop))


class _Node:
    """One whole block of tokens."""

    __slots__ = ("children", "followed", "holders", "tokens")

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens = tokens
        self.children: dict[tuple[int, ...], _Node] = {}
        self.holders: dict[str, None] = {}
        self.followed: dict[int, dict[str, None]] = {}  # token -> the holders in which it follows this block


class Prefixes:
    """The texts of sequences, as far as their KV is in place, by whole blocks of `size` tokens.

    >>> prefixes = Prefixes(2)
    >>> prefixes.extend("a", [1, 2, 3, 4, 5], 5)
    >>> prefixes.extend("b", [1, 2, 3, 9], 3)  # the KV of its last token is not in place: 9 does not count
    >>> prefixes.candidates([1, 2, 3, 4, 7], 4, {"a": 0, "b": 1})
    [('a', 4)]
    >>> prefixes.candidates([1, 2, 3, 9, 7], 3, {"a": 0, "b": 1})  # the block (1, 2), then a 3
    [('a', 3), ('b', 3)]
    >>> prefixes.candidates([1, 2, 8], 3, {"a": 0, "b": 1})  # both are alike so far, and a was admitted first
    [('a', 2)]
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.root = _Node(())
        self.paths: dict[str, list[_Node]] = {}  # the root, and the node of each whole block of a sequence
        self.tails: dict[str, int] = {}  # the token that follows a sequence's last whole block, if its KV is in place

    def extend(self, name: str, tokens: list[int], count: int) -> None:
        """The KV of the first `count` tokens of a sequence is in place. Costs as much as there is new."""
        path = self.paths.get(name)
        if path is None:
            path = self.paths[name] = [self.root]
            self.root.holders[name] = None
        size = self.size
        for start in range((len(path) - 1) * size, count - count % size, size):
            parent, block = path[-1], tuple(tokens[start : start + size])
            node = parent.children.get(block)
            if node is None:
                node = parent.children[block] = _Node(block)
            node.holders[name] = None
            if self.tails.pop(name, None) is None:
                parent.followed.setdefault(block[0], {})[name] = None
            path.append(node)
        if count % size and name not in self.tails:
            token = self.tails[name] = tokens[count - count % size]
            path[-1].followed.setdefault(token, {})[name] = None

    def remove(self, name: str) -> None:
        """Forget a sequence, if it is known."""
        path, tail = self.paths.pop(name, None), self.tails.pop(name, None)
        if path is None:
            return
        for node, following in zip(path, [*(node.tokens[0] for node in path[1:]), tail], strict=True):
            del node.holders[name]
            if following is not None:
                del node.followed[following][name]
                if not node.followed[following]:
                    del node.followed[following]
        for parent, node in pairwise(path):
            if not node.holders:
                parent.children.pop(node.tokens, None)

    def candidates(
        self,
        tokens: list[int],
        stop: int,
        arrivals: Mapping[str, int],
        eligible: Callable[[str], bool] | None = None,
    ) -> list[tuple[str, int]]:
        """Sequences of which one has the longest beginning of the first `stop` tokens, and tokens known to be alike.

        Args:
            arrivals: of sequences that have the same beginning, the one with the least number is meant.
            eligible: which sequences count; None: all.
        """
        size, path = self.size, [self.root]
        for start in range(0, stop - size + 1, size):
            child = path[-1].children.get(tuple(tokens[start : start + size]))
            if child is None:
                break
            path.append(child)
        while path:
            node = path.pop()
            start = len(path) * size
            holders: Collection[str] = node.holders
            following: Collection[str] = node.followed.get(tokens[start], ()) if start < stop else ()
            if eligible is not None:
                following, holders = list(filter(eligible, following)), list(filter(eligible, holders))
            if following:
                return [(name, start + 1) for name in following]
            if holders and start:
                return [(min(holders, key=arrivals.__getitem__), start)]
        return []

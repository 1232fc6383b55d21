"""Which sequences begin alike, found block by block: the prefix tree of their texts.

A node is a whole block of tokens after those of its parent, and knows the sequences that have it. Its key is the tokens
themselves, so two texts that only hash alike are never taken for the same.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

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

    __slots__ = ("children", "holders", "tokens")

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.tokens = tokens
        self.children: dict[tuple[int, ...], _Node] = {}
        self.holders: dict[str, None] = {}


class Prefixes:
    """The texts of sequences, as far as their KV is in place, by whole blocks of `size` tokens.

    >>> prefixes = Prefixes(2)
    >>> prefixes.extend("a", [1, 2, 3, 4, 5], 5)
    >>> prefixes.extend("b", [1, 2, 3, 9], 3)  # the KV of its last token is not in place: 9 does not count
    >>> [(name, alike) for name, alike in prefixes.candidates([1, 2, 3, 4, 7], 4)]
    [('a', 4)]
    >>> [(name, alike) for name, alike in prefixes.candidates([1, 2, 3, 9, 7], 3)]
    [('a', 2), ('b', 2)]
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.root = _Node(())
        self.paths: dict[str, list[_Node]] = {}  # the node of each whole block of a sequence, below the root

    def extend(self, name: str, tokens: list[int], count: int) -> None:
        """The KV of the first `count` tokens of a sequence is in place. Costs as much as there is new."""
        path = self.paths.get(name)
        if path is None:
            path = self.paths[name] = []
            self.root.holders[name] = None
        size = self.size
        for level in range(len(path), count // size):
            parent = path[-1] if path else self.root
            block = tuple(tokens[level * size : (level + 1) * size])
            node = parent.children.get(block)
            if node is None:
                node = parent.children[block] = _Node(block)
            node.holders[name] = None
            path.append(node)

    def remove(self, name: str) -> None:
        """Forget a sequence, if it is known."""
        path = self.paths.pop(name, None)
        if path is None:
            return
        del self.root.holders[name]
        for parent, node in zip([self.root, *path], path, strict=False):
            del node.holders[name]
            if not node.holders:
                parent.children.pop(node.tokens, None)

    def candidates(
        self, tokens: list[int], stop: int, eligible: Callable[[str], bool] | None = None
    ) -> list[tuple[str, int]]:
        """The sequences that have most whole blocks of the first `stop` tokens, and how many tokens these are.

        Args:
            eligible: which sequences count; None: all.
        """
        size, node, levels = self.size, self.root, [self.root]
        for start in range(0, stop - size + 1, size):
            child = node.children.get(tuple(tokens[start : start + size]))
            if child is None:
                break
            node = child
            levels.append(node)
        for level in range(len(levels) - 1, -1, -1):
            found = [name for name in levels[level].holders if eligible is None or eligible(name)]
            if found:
                return [(name, level * size) for name in found]
        return []

"""Reads trees of token ids, and unfolds them (Tai et al., 2015; BatchMaker, Fig. 2.2).

A tree is a token id (a leaf) or a tuple of subtrees. Trees may be deeper than Python's stack, so no function here is
recursive.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

from minifuse.core.cell_graph import CellGraph, Node, Output
from minifuse.core.errors import RequestRefused, UsageError

_TOKENS = re.compile(r"[()]|[^\s()]+")
_WHOLE = re.compile(r"[0-9]{1,18}")


def unfold_tree(name: str, tree: Any, vocab_size: int, max_children: int) -> CellGraph:
    """Make a `leaf` for each token, and an `internalK` for each node of K subtrees.

    >>> [node.cell for node in unfold_tree("r0", (7, (8, 9)), vocab_size=30, max_children=2).nodes]
    ['leaf', 'leaf', 'leaf', 'internal2', 'internal2']

    Raises:
        RequestRefused: `tree` is not a tree of ids below `vocab_size`, with 1 to `max_children` subtrees per node.
    """
    nodes: list[Node] = []
    # A stack: (tree,) is a tree to be unfolded; a number K, below K trees, is the node to be made of these trees.
    # `roots` holds the roots of unfolded subtrees until their node is made.
    remaining: list[Any] = [(tree,)]
    roots: list[int] = []
    while remaining:
        top = remaining.pop()
        if type(top) is int:
            children = roots[-top:]
            del roots[-top:]
            roots.append(len(nodes))
            nodes.append(Node(f"internal{top}", tuple([Output(root, part) for root in children for part in (0, 1)])))
            continue
        (subtree,) = top
        if type(subtree) is int:
            if not 0 <= subtree < vocab_size:
                raise RequestRefused(
                    f"{name} gives a tree with the token id {subtree}, and the vocabulary is 0 to {vocab_size - 1}: "
                    "give ids of this vocabulary."
                )
            roots.append(len(nodes))
            nodes.append(Node("leaf", (subtree,)))
        elif isinstance(subtree, tuple | list):
            if not 1 <= len(subtree) <= max_children:
                raise RequestRefused(
                    f"{name} gives a tree with a node of {len(subtree)} subtrees, and this model takes 1 to "
                    f"{max_children}: give such a tree, or a model with more (treelstm:children=NUMBER)."
                )
            remaining.append(len(subtree))
            remaining.extend([(child,) for child in reversed(subtree)])
        else:
            raise RequestRefused(
                f"{name} gives a tree with {subtree!r:.40} in it: give whole numbers (token ids), and lists or tuples "
                "of subtrees."
            )
    return CellGraph(tuple(nodes))


def read_tree(text: str, vocab_size: int = 30000) -> Any:
    """Read a tree of the Stanford TreeBank: `(LABEL WORD)` or `(LABEL SUBTREE SUBTREE)`.

    Labels are ignored.

    If all words are whole numbers, they are token ids. Otherwise the id of each word is its CRC-32 modulo `vocab_size`:
    a word has the same id everywhere, and two words may share an id.

    >>> read_tree("(3 (2 12) (2 (1 5) (2 7)))")
    (12, (5, 7))

    Raises:
        UsageError: the text is not such a tree.
    """
    tokens = _TOKENS.findall(text)
    is_label = [before == "(" for before in ["", *tokens]]
    words = [token for token, label in zip(tokens, is_label, strict=False) if token not in "()" and not label]
    numbered = all(_WHOLE.fullmatch(word) for word in words)
    open_brackets: list[list[Any]] = [[]]  # the words and subtrees in each; the first is the whole text
    for token, label in zip(tokens, is_label, strict=False):
        if token == "(":
            open_brackets.append([])
        elif token == ")":
            parts = open_brackets.pop()
            if not open_brackets:
                raise _unreadable(text, "a bracket is closed that was never opened")
            if not parts:
                raise _unreadable(text, "a bracket holds nothing but a label")
            open_brackets[-1].append(_inside(parts, text))
        elif not label:
            if len(open_brackets) == 1:
                raise _unreadable(text, f"{token!r:.40} stands outside of all brackets")
            id = int(token) if numbered else zlib.crc32(token.encode()) % vocab_size
            open_brackets[-1].append(_Word(id))
    if len(open_brackets) > 1:
        raise _unreadable(text, "a bracket is never closed")
    if len(open_brackets[0]) != 1:
        raise _unreadable(text, f"there are {len(open_brackets[0])} trees where one is read")
    return open_brackets[0][0]


class _Word(int):
    """A word inside an open bracket; a closed leaf is a plain number."""


def _inside(parts: list[Any], text: str) -> Any:
    """Make the leaf or node of a closed bracket."""
    if not any(isinstance(part, _Word) for part in parts):
        return tuple(parts)
    if len(parts) > 1:
        raise _unreadable(text, "a word stands beside something else")
    return int(parts[0])


def _unreadable(text: str, why: str) -> UsageError:
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return UsageError(f'The tree "{shown}" cannot be read, since {why}: write it as in (3 (2 12) (2 (1 5) (2 7))).')

"""The prefix tree against texts that are compared whole, its shape, and what it costs: lines of Python run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers import lines_of
from hypothesis import given, settings
from hypothesis import strategies as st

from minifuse.memory.paged.prefixes import CHUNK, Prefixes, _Node, common_length


def found_naively(texts: dict[str, list[int]], tokens: list[int], stop: int, eligible: set[str]) -> tuple[str, int]:
    """Of texts in the order of admission."""
    best = ("", 0)
    for name, text in texts.items():
        same = next(
            (i for i, (a, b) in enumerate(zip(text, tokens, strict=False)) if a != b), min(map(len, (text, tokens)))
        )
        if name in eligible and min(same, stop) > best[1]:
            best = name, min(same, stop)
    return best


def nodes_below(node: _Node) -> Iterator[_Node]:
    for child in node.children.values():
        yield child
        yield from nodes_below(child)


def check(prefixes: Prefixes, texts: dict[str, list[int]]) -> None:
    """Every node has the sequences that have its tokens; each ends a text, or is where texts diverge."""
    assert list(prefixes.ends) == list(prefixes.holders) == list(texts)
    for name, text in texts.items():
        assert prefixes.ends[name].stop == len(text)
    for node in nodes_below(prefixes.root):
        assert node.parent is not None
        assert node.stop > node.parent.stop
        beginning = node.tokens[: node.stop]
        having = [name for name, text in texts.items() if text[: node.stop] == beginning]
        assert [name for _, name in node.holders] == having
        assert having
        assert node.parent.children[beginning[node.parent.stop]] is node
        assert len(node.children) > 1 or node in prefixes.ends.values()


TOKENS = st.lists(st.sampled_from([0, 0, 0, 1]), max_size=8)
STEPS = st.lists(  # a name; leaves, or has all tokens, fewer, or KV beyond them; new tokens
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), TOKENS), max_size=30
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    steps=STEPS, asked=st.lists(st.tuples(TOKENS, st.integers(0, 8), st.sets(st.sampled_from("abcdef"))), max_size=5)
)
def test_the_tree_agrees_with_texts_compared_whole(
    steps: list[tuple[str, int, list[int]]], asked: list[tuple[list[int], int, set[str]]]
) -> None:
    """Texts join, grow (some by fewer tokens than are known) and leave, in any order."""
    prefixes, lists, texts = Prefixes(), dict[str, list[int]](), dict[str, list[int]]()
    for name, kind, more in steps:
        if kind == 0:
            prefixes.remove(name)
            lists.pop(name, None)
            texts.pop(name, None)
        else:
            tokens = lists.setdefault(name, [])
            tokens += more
            count = len(tokens) + {1: 0, 2: -2, 3: 1}[kind]
            count = max(count, len(texts.get(name, ())))
            texts[name] = tokens[:count]
            prefixes.extend(name, tokens, count)
        check(prefixes, texts)
        for tokens, stop, gone in asked:
            wanted, stop = found_naively(texts, tokens, stop, {*texts} - gone), min(stop, len(tokens))
            assert prefixes.longest(tokens, stop, gone) == wanted
            assert prefixes.longest(tokens, stop) == found_naively(texts, tokens, stop, set(texts))
    for name in "abcdef":
        prefixes.remove(name)
    assert not prefixes.root.children


@pytest.mark.parametrize("same", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize("stop", [0, 1, CHUNK, 2 * CHUNK, 4 * CHUNK])
def test_the_common_length_of_long_texts(same: int, stop: int) -> None:
    one, two = [7] * 5 * CHUNK, [7] * same + [8] * (5 * CHUNK - same)
    for start in {0, min(same, stop) // 2, min(same, stop)}:
        assert common_length(one, two, start, stop) == min(same, stop)


def begun_alike(count: int) -> tuple[Prefixes, list[list[int]]]:
    """So many texts with 520 tokens in common, then each its own."""
    prefixes, texts = Prefixes(), [[*range(520), 1000 + i, 7] for i in range(count)]
    for i, text in enumerate(texts):
        prefixes.extend(f"r{i}", text, len(text))
    return prefixes, texts


@pytest.mark.parametrize("what", ["find", "join", "grow", "leave", "diverge"])
def test_the_cost_does_not_depend_on_how_many_others_begin_alike(what: str) -> None:
    def lines(count: int) -> int:
        prefixes, texts = begun_alike(count)
        new = [*range(520), 1, 2]
        texts[0].append(8)
        does = {
            "find": lambda: prefixes.longest(new, 521),
            "join": lambda: prefixes.extend("new", new, 522),
            "grow": lambda: prefixes.extend("r0", texts[0], len(texts[0])),
            "leave": lambda: prefixes.remove("r1"),
            "diverge": lambda: prefixes.extend("new", [*range(100), 1], 101),
        }
        return lines_of(does[what])[1]

    assert lines(10) == lines(1000)


def test_a_text_of_its_own_grows_in_place_whatever_its_length() -> None:
    def lines(length: int) -> int:
        prefixes, texts = begun_alike(10)
        texts[3] += range(length)
        prefixes.extend("r3", texts[3], len(texts[3]))
        nodes = list(nodes_below(prefixes.root))
        texts[3].append(8)
        _, count = lines_of(lambda: prefixes.extend("r3", texts[3], len(texts[3])))
        assert list(nodes_below(prefixes.root)) == nodes
        return count

    assert lines(10) == lines(10_000)


def test_texts_that_grow_alike_have_one_node() -> None:
    """Of two requests with the same prompt and the same answer, one is always a token ahead within an iteration."""
    prefixes, texts = Prefixes(), [[1, 2, 3], [1, 2, 3]]
    for token in range(50):
        for name, text in zip("ab", texts, strict=True):
            prefixes.extend(name, text, len(text))
            text.append(token)
    assert len(list(nodes_below(prefixes.root))) == 1

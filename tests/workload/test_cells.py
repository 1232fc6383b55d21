"""Workloads of cell models: figures of the data that they stand for, and that they follow from the seed alone."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from helpers import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from minifuse.core.errors import UsageError
from minifuse.core.request import Request
from minifuse.model.kinds import request_kind
from minifuse.workload.cells import RESERVED, cell_workload, leaves
from minifuse.workload.files import read_jsonl
from minifuse.workload.laws import parse_arrival

KINDS = {"wmt15": "seq2seq", "wmt15:max=50": "lstm", "wmt15:fixed=24": "lstm", "treebank": "treelstm"}
KINDS["identical-trees:leaves=8"] = "treelstm"


def asked(text: str, count: int = 20, vocab_size: int = 30000, **options: Any) -> list[Request]:
    return cell_workload(text, KINDS.get(text, "lstm"), count, vocab_size, **options)


def percentile(values: list[int], percent: int) -> int:
    return sorted(values)[len(values) * percent // 100]


def depth(tree: Any) -> int:
    return 0 if isinstance(tree, int) else 1 + max(map(depth, tree))


# --- sentences


def test_sentences_have_the_figures_of_wmt15() -> None:
    requests = asked("wmt15", 20_000)
    lengths = [len(request.prompt) for request in requests]
    assert statistics.mean(lengths) == pytest.approx(24, rel=0.02)
    assert percentile(lengths, 99) == pytest.approx(100, rel=0.05)
    assert min(lengths) >= 1
    assert 200 < max(lengths) <= 330


def test_translations_are_about_as_long_as_their_sources() -> None:
    requests = asked("wmt15", 20_000)
    sources, targets = zip(*[(len(request.prompt), request.max_new_tokens) for request in requests], strict=True)
    assert statistics.mean(targets) == pytest.approx(24, rel=0.02)
    assert max(targets) <= 330
    assert statistics.correlation(sources, targets) > 0.9
    ratios = [target / source for source, target in zip(sources, targets, strict=True)]
    assert statistics.mean(ratios) == pytest.approx(1, abs=0.01)
    assert 0.6 < sum(0.8 <= ratio <= 1.2 for ratio in ratios) / len(ratios) < 0.8


def test_answers_are_as_long_as_translations_whatever_they_say() -> None:
    for request in asked("wmt15", 5):
        assert request.ignore_eos
        assert request.stop_ids == (2,)


@pytest.mark.parametrize("longest", [50, 100])
def test_a_maximum_is_drawn_again_not_cut(longest: int) -> None:
    whole = cell_workload("wmt15", "seq2seq", 5000, 30000)
    short = cell_workload(f"wmt15:max={longest}", "seq2seq", 5000, 30000)
    lengths = [len(request.prompt) for request in short]
    assert max(lengths) == longest
    assert max(request.max_new_tokens for request in short) <= longest
    # Cut, all above would lie at the maximum: at 50 nearly 9 of 100.
    assert sum(length == longest for length in lengths) < 0.01 * len(lengths)
    same = [a == b for a, b in zip(whole, short, strict=True) if max(len(a.prompt), a.max_new_tokens) <= longest]
    assert len(same) > 4000
    assert all(same)  # what is short enough is as it was


def test_fixed_lengths() -> None:
    requests = cell_workload("wmt15:fixed=24", "seq2seq", 10, 30000)
    assert {(len(request.prompt), request.max_new_tokens) for request in requests} == {(24, 24)}
    assert len({request.prompt for request in requests}) == 10


# --- trees


def test_trees_have_the_figures_of_treebank() -> None:
    trees = [request.structure for request in asked("treebank", 5000)]
    lengths = [len(leaves(tree)) for tree in trees]
    assert statistics.mean(lengths) == pytest.approx(19, abs=0.5)
    assert 8 < statistics.stdev(lengths) < 11
    assert 50 < max(lengths) <= 56
    depths = [depth(tree) for tree in trees if len(leaves(tree)) == 19]
    assert 6 < statistics.mean(depths) < 14  # neither complete (5) nor a list (18)


def test_trees_are_binary_and_lean_right() -> None:
    smaller_left = nodes = 0
    for request in asked("treebank", 500):
        left = [request.structure]
        while left:
            tree = left.pop()
            if isinstance(tree, tuple):
                assert len(tree) == 2
                sizes = [len(leaves(child)) for child in tree]
                if sizes[0] != sizes[1]:
                    nodes += 1
                    smaller_left += sizes[0] < sizes[1]
                left.extend(tree)
    assert smaller_left > 0.6 * nodes


def test_identical_trees_are_complete() -> None:
    requests = asked("identical-trees:leaves=8", 10)
    first = requests[0]
    a, b, c, d, e, f, g, h = first.prompt
    assert first.structure == (((a, b), (c, d)), ((e, f), (g, h)))
    assert len({request.prompt for request in requests}) == 10
    default = cell_workload("identical-trees", "treelstm", 1, 30000)[0]
    assert (len(default.prompt), depth(default.structure)) == (16, 4)


@pytest.mark.parametrize("text", ["treebank", "identical-trees:leaves=8"])
def test_the_prompt_of_a_tree_is_its_words_in_order(text: str) -> None:
    for request in asked(text):
        assert request.prompt == leaves(request.structure)


# --- all of them


@given(st.sampled_from(list(KINDS)), st.integers(1, 30), st.integers(1, 30), st.integers(4, 50), st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_a_shorter_workload_is_the_beginning_of_a_longer(text: str, n: int, more: int, vocab: int, seed: int) -> None:
    arrival = parse_arrival("poisson:50ms")
    longer = cell_workload(text, KINDS[text], n + more, vocab, arrival, seed)
    assert cell_workload(text, KINDS[text], n, vocab, arrival, seed) == longer[:n]
    assert [request.id for request in longer] == [f"r{i}" for i in range(n + more)]
    for request in longer:
        assert all(max(RESERVED) < token < vocab for token in request.prompt)


def test_the_seed_matters_and_choices_do_not_disturb_each_other() -> None:
    assert asked("wmt15", seed=1) != asked("wmt15", seed=2)
    at_once, later = asked("wmt15"), asked("wmt15", arrival=parse_arrival("constant:1s"))
    assert [request.arrival_s for request in later] == list(range(20))
    assert [request.prompt for request in later] == [request.prompt for request in at_once]
    other_words = asked("wmt15", vocab_size=50)
    assert [len(request.prompt) for request in other_words] == [len(request.prompt) for request in at_once]
    assert len({len(request.prompt) for request in at_once}) > 5
    assert len({request.prompt[:1] for request in at_once}) > 15


def test_golden() -> None:
    """What a seed means must not change: figures were measured with it."""
    (sentence,) = cell_workload("wmt15", "seq2seq", 1, 30000, seed=0)
    assert (sentence.prompt, sentence.max_new_tokens) == ((13308, 17796, 27247), 3)
    assert cell_workload("treebank", "treelstm", 23, 30, seed=5)[22].structure == (7, (3, (7, ((26, 18), 23))))


def test_defaults() -> None:
    assert [request_kind(kind).workload for kind in ("lstm", "seq2seq", "treelstm", "mine")] == [
        *("wmt15", "wmt15", "treebank", "wmt15")
    ]


def test_a_kind_of_ones_own_may_be_asked_anything() -> None:
    assert cell_workload("wmt15", "mine", 1, 30)[0].structure is None
    assert cell_workload("treebank", "mine", 1, 30)[0].structure is not None


@pytest.mark.parametrize(
    ("text", "kind", "count", "vocab_size", "message"),
    [
        ("wmt51", "lstm", 1, 30, 'The workload is "wmt51" (did you mean "wmt15"?): give wmt15, wmt15:max=50,'),
        ("", "lstm", 1, 30, 'The workload is "": give wmt15, '),
        ("wmt15", "treelstm", 1, 30, 'The workload is "wmt15", of sentences, and treelstm reads trees: give treebank.'),
        ("treebank", "lstm", 1, 30, 'The workload is "treebank", of trees, and this lstm reads sentences: give wmt15.'),
        ("identical-trees", "seq2seq", 1, 30, "and this seq2seq reads sentences: give wmt15."),
        ("treebank", "transformer", 1, 30, "and this transformer reads sentences: give wmt15."),
        ("wmt15:max=2", "lstm", 1, 30, 'The longest sentence of wmt15 is "2": give a whole number from 5 to 330.'),
        ("wmt15:max=331", "lstm", 1, 30, "from 5 to 330."),
        ("wmt15:fixed=0", "lstm", 1, 30, 'The fixed length of wmt15 is "0": give a whole number from 1 to 330.'),
        ("wmt15:mean=9", "lstm", 1, 30, 'The workload is "wmt15:mean=9": give wmt15, or it with max=50 or fixed=24.'),
        ("wmt15:", "lstm", 1, 30, 'The workload is "wmt15:": give wmt15'),
        ("treebank:max=9", "treelstm", 1, 30, "and treebank has no options: leave 'max=9' out."),
        ("identical-trees:leaves=12", "treelstm", 1, 30, "where N is a power of two from 2 to 4096."),
        ("identical-trees:leaves=1", "treelstm", 1, 30, 'is "1": give a whole number from 2 to 4096.'),
        ("identical-trees:", "treelstm", 1, 30, 'is "identical-trees:": give leaves=N, where'),
        ("identical-trees:depth=3", "treelstm", 1, 30, "give leaves=N, where N is a power of two from 2 to 4096."),
        ("wmt15", "lstm", 0, 30, "The number of requests is 0: give at least 1."),
        ("wmt15", "lstm", 1, 3, "The vocabulary has 3 tokens, and the first 3 are no words: give at least 4."),
    ],
)
def test_refused(text: str, kind: str, count: int, vocab_size: int, message: str) -> None:
    with refusal(UsageError, message):
        cell_workload(text, kind, count, vocab_size)


# --- files of trees


def read_text(text: str) -> Any:
    if not text.startswith("("):
        raise UsageError(f'The tree "{text}" cannot be read.')
    return (1, (2, 3))


def read(*lines: object, **options: Any) -> list[Request]:
    def encode(text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    return read_jsonl([json.dumps(line) for line in lines], encode, name="t.jsonl", tree=read_text, **options)


def test_trees_are_read_from_a_file() -> None:
    lists, text, word, ids = read(
        {"id": "lists", "tree": [12, [5, 7]], "arrival_s": 1.5},
        {"tree": "(3 (2 1) (2 (1 2) (2 3)))"},
        {"tree": 9},
        {"prompt_token_ids": [4, 5]},
    )
    assert (lists.id, lists.prompt, lists.structure, lists.arrival_s) == ("lists", (12, 5, 7), [12, [5, 7]], 1.5)
    assert (text.id, text.prompt, text.structure) == ("r1", (1, 2, 3), (1, (2, 3)))
    assert (word.prompt, word.structure) == ((9,), 9)
    assert (ids.prompt, ids.structure) == ((4, 5), None)
    assert [request.sampling.seed for request in (lists, text, word, ids)] == [0, 1, 2, 3]


def test_what_no_tree_can_hold_is_for_the_model_to_refuse() -> None:
    (request,) = read({"tree": [1, ["x", True, 2]]})
    assert (request.prompt, request.structure) == ((1, 2), [1, ["x", True, 2]])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            {"tree": True},
            "t.jsonl:1: tree is true: Input should be a valid string, Input should be a valid integer or ",
        ),
        ({"tree": {"a": 1}}, 't.jsonl:1: tree is {"a": 1}: Input should be a valid string, '),
        ({"tree": "1 2"}, 't.jsonl:1: The tree "1 2" cannot be read.'),
        ({"tree": 1, "prompt": "x"}, "t.jsonl:1: both prompt and tree are given: give exactly one of them."),
        ({"tree": 1, "prompt_token_ids": [1]}, "both prompt_token_ids and tree are given"),
        ({"tree": 1, "id": ["a", "b"]}, "id is a list of 2 and there is 1 prompt"),
        ({"tre": 1}, 'unknown field "tre" (did you mean "tree"?)'),
    ],
)
def test_bad_trees(line: object, message: str) -> None:
    with refusal(UsageError, message):
        read(line)


def test_a_model_without_trees_knows_no_such_field() -> None:
    with pytest.raises(UsageError, match='unknown field "tree"'):
        read_jsonl(['{"tree": 1}'], lambda text: ())


def test_a_limit_by_the_prompt() -> None:
    lines = ({"prompt_token_ids": [4, 5]}, {"prompt_token_ids": [4], "max_new_tokens": 3}, {"tree": [1, [2, 3]]})
    requests = read(*lines, limit=lambda prompt: len(prompt) + 20)
    assert [request.max_new_tokens for request in requests] == [22, 3, 23]

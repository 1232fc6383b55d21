"""`Tokenizer.pieces`: how many characters of a text are there after each token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifuse.model.source import resolve
from minifuse.model.text.spelling import UNFINISHED

TOKENIZER = resolve("tiny").tokenizer()


@pytest.mark.parametrize("text", ["", "add 17 and 25", "héllo \U0001f600 wörld", " \n two  spaces", "数える"])
def test_pieces_of_texts(text: str) -> None:
    tokens = TOKENIZER.encode(text)
    told, ends = TOKENIZER.pieces(tokens)
    assert told == text
    assert len(ends) == len(tokens)
    for i, end in enumerate(ends):
        so_far = TOKENIZER.decode(list(tokens[: i + 1]))
        assert text[:end] == so_far.rstrip(UNFINISHED)


@given(st.lists(st.integers(0, 700), max_size=12))
def test_pieces_of_any_tokens(tokens: list[int]) -> None:
    told, ends = TOKENIZER.pieces(tokens)
    assert told == TOKENIZER.decode(tokens)
    assert ends == sorted(ends)
    assert len(ends) == len(tokens)
    assert not ends or ends[-1] == len(told)

"""Text as it comes: whole characters, nothing of a stop string, and in all what the answer decodes to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minifuse.model.source import resolve
from minifuse.model.text.spelling import UNFINISHED
from minifuse.server.text_stream import TextStream

TOKENIZER = resolve("tiny").tokenizer()
LETTERS = st.text("ab\U0001f600é ", max_size=30)


def sent(text: str, stops: list[str], trim: bool = False) -> tuple[list[str], TextStream]:
    stream = TextStream(TOKENIZER.decode, stops, trim=trim)
    pieces = [stream.add(token) for token in TOKENIZER.encode(text)]
    return [*pieces, stream.end()], stream


def first_stop(text: str, stops: list[str], trim: bool) -> tuple[str, bool]:
    """What is to be sent of a text, and whether it stops: at the first token with which a stop string is complete."""
    tokens = TOKENIZER.encode(text)
    for count in range(len(tokens) + 1):
        so_far = TOKENIZER.decode(list(tokens[:count])).rstrip(UNFINISHED)
        so_far = so_far.lstrip() if trim else so_far
        if places := [place for stop in stops if (place := so_far.find(stop)) >= 0]:
            return so_far[: min(places)], True
    return text.lstrip() if trim else text, False


@given(LETTERS, st.lists(st.text("ab é", min_size=1, max_size=4), max_size=3), st.booleans())
def test_an_answer_is_sent_up_to_its_first_stop_string(text: str, stops: list[str], trim: bool) -> None:
    pieces, stream = sent(text, stops, trim)
    expected, stopped = first_stop(text, stops, trim)
    assert ("".join(pieces), stream.stopped) == (expected, stopped)
    assert stream.text == expected
    assert not any(UNFINISHED in piece for piece in pieces)


def test_of_two_stop_strings_the_one_that_is_complete_first_counts() -> None:
    pieces, stream = sent("éb ", ["éb ", "b"])
    assert ("".join(pieces), stream.stopped) == ("é", True)


def test_a_beginning_of_a_stop_string_is_held_back_until_it_is_none() -> None:
    pieces, _ = sent("a\n\n\nb", ["\n\nb", "c"])
    assert pieces == ["a", "", "", "\n", "", ""]


def test_an_answer_that_ends_within_a_character_shows_nothing_of_it() -> None:
    tokens = TOKENIZER.encode("a\U0001f600")
    stream = TextStream(TOKENIZER.decode)
    assert [stream.add(token) for token in tokens[:-1]] == ["a", "", "", ""]
    assert stream.end() == ""

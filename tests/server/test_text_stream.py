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


@given(LETTERS, st.lists(st.text("ab é", min_size=1, max_size=4), max_size=3), st.booleans())
def test_an_answer_is_sent_up_to_its_first_stop_string(text: str, stops: list[str], trim: bool) -> None:
    pieces, stream = sent(text, stops, trim)
    whole = text.lstrip() if trim else text
    ends = [place for stop in stops if (place := whole.find(stop)) >= 0]
    assert "".join(pieces) == stream.text == whole[: min(ends, default=len(whole))]
    assert stream.stopped == bool(ends)
    assert not any(UNFINISHED in piece for piece in pieces)


def test_a_beginning_of_a_stop_string_is_held_back_until_it_is_none() -> None:
    pieces, _ = sent("a\n\n\nb", ["\n\nb", "c"])
    assert pieces == ["a", "", "", "\n", "", ""]


def test_an_answer_that_ends_within_a_character_shows_nothing_of_it() -> None:
    tokens = TOKENIZER.encode("a\U0001f600")
    stream = TextStream(TOKENIZER.decode)
    assert [stream.add(token) for token in tokens[:-1]] == ["a", "", "", ""]
    assert stream.end() == ""

"""Reads conversations from a file in ShareGPT's JSON format (Pensieve, 3.6.1)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from minifuse.core.errors import UsageError
from minifuse.io.lines import BYTE_ORDER_MARK, misfit, read_bounded
from minifuse.workload.conversations import LONGEST, Lengths, Turn
from minifuse.workload.files import Encode

if TYPE_CHECKING:
    from minifuse.workload.forms import Conversation, Message


CHARACTERS = 4  # of a token, where the model has no tokenizer: about what English text has


class Found(NamedTuple):
    """The conversations read, as turns, and how many were left out on the way."""

    conversations: list[list[Turn]]
    too_long: int
    too_short: int


def read_sharegpt(path: str, encode: Encode, count: int, max_context: int, min_turns: int = 1) -> Found:
    """Read the first `count` conversations of suitable length.

        [{"id": "a", "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi!"}]}]

    A turn is a text of the human and the answer to it. Consecutive messages of one side are joined by a line break;
    messages without text are left out. Answers before the human's first message are dropped, and so is a last message
    without an answer. Only the length of an answer (without special tokens) is used: the model writes its own answer.

    Args:
        max_context: the model's context length. Conversations longer than this, or than 16384 tokens, are too long.

    Raises:
        UsageError: the file cannot be read, has another format, or holds no conversation of suitable length.
    """
    longest = min(LONGEST, max_context)
    found = Found([], 0, 0)
    for conversation in _read(path):
        if len(found.conversations) == count:
            break
        turns = list(_turns(conversation.conversations, encode))
        if len(turns) < min_turns:
            found = found._replace(too_short=found.too_short + 1)
        elif sum(len(prompt) + answer for prompt, answer in turns) > longest:
            found = found._replace(too_long=found.too_long + 1)
        else:
            found.conversations.append(turns)
    if not found.conversations:
        raise UsageError(
            f"{path} holds no conversation of at least {min_turns} answered turns and at most {longest:,} tokens: give "
            "another file, or a model of a longer context."
        )
    return found


def read_lengths(path: str) -> list[Lengths]:
    """Read the lengths of all conversations, without a tokenizer: four characters count as a token.

    Raises:
        UsageError: as `read_sharegpt`.
    """

    def encode(text: str, continues: bool = False) -> range:
        return range(math.ceil(len(text) / CHARACTERS))

    found = read_sharegpt(path, encode, sys.maxsize, LONGEST)
    return [[(len(prompt), answer) for prompt, answer in turns] for turns in found.conversations]


def _turns(messages: Sequence[Message], encode: Encode) -> Iterator[Turn]:
    written = [message for message in messages if message.text.strip()]
    joined = [
        (is_answer, "\n".join(message.text for message in run))
        for is_answer, run in groupby(written, key=attrgetter("is_answer"))
    ]
    first = 1 if joined and joined[0][0] else 0
    begun = False
    for (_, prompt), (_, answer) in zip(joined[first::2], joined[first + 1 :: 2], strict=False):
        tokens, num_answer = encode(prompt, continues=True), len(encode(answer, continues=True))
        if tokens and num_answer:  # a tokenizer may know none of the characters
            yield tuple(tokens if begun else encode(prompt)), num_answer
            begun = True


def _read(path: str) -> list[Conversation]:
    from pydantic import ValidationError

    from minifuse.workload.forms import LISTED

    give = "give a JSON file as of ShareGPT, a list of conversations"
    try:
        with Path(path).open("rb") as file:
            return LISTED.validate_json(read_bounded(file, path).removeprefix(BYTE_ORDER_MARK.encode()))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): {give}.") from None
    except ValidationError as error:
        raise UsageError(f"{path}: {misfit(error)}: {give}.") from None

"""Conversations from a file in the form of ShareGPT's JSON (Pensieve, 3.6.1)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from minifuse.core.errors import UsageError
from minifuse.io.lines import read_bounded
from minifuse.io.parsing import one_of
from minifuse.workload.conversations import LONGEST, Turn
from minifuse.workload.files import Encode

# The senders of what a model reads, and of what it has answered.
READ, ANSWERED = ("human", "user", "system"), ("gpt", "chatgpt", "bing", "bard", "assistant")

Message = tuple[bool, str]  # whether it is an answer, and its text


class Found(NamedTuple):
    """Conversations as their turns, and how many others stood before the last of them in the file."""

    conversations: list[list[Turn]]
    too_long: int
    too_short: int


def read_sharegpt(path: str, encode: Encode, count: int, max_context: int, min_turns: int = 1) -> Found:
    """The first `count` conversations of a file that are neither too long nor too short; fewer if it has no more.

        [{"id": "a", "conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi!"}]}]

    A turn is what the human has written and the answer to it. Consecutive messages of one side are joined by a line
    break, those without text are left out. Answers before the first message of the human are dropped, and so is a last
    message without an answer. Of an answer only the number of tokens counts, without special tokens: the model gives
    one of its own.

    Args:
        max_context: the model's; longer conversations, and those of more than 16384 tokens, are too long.

    Raises:
        UsageError: the file cannot be read, is not in this form, or holds no such conversation.
    """
    longest = min(LONGEST, max_context)
    found = Found([], 0, 0)
    for messages in _read(path):  # to its end: what is damaged is refused however few conversations are wanted
        if len(found.conversations) == count:
            continue
        turns = list(_turns(messages, encode))
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


def _turns(messages: Sequence[Message], encode: Encode) -> Iterator[Turn]:
    joined = [
        (is_answer, "\n".join(text for _, text in run))
        for is_answer, run in groupby((message for message in messages if message[1].strip()), key=lambda one: one[0])
    ]
    first = 1 if joined and joined[0][0] else 0
    begun = False
    for (_, prompt), (_, answer) in zip(joined[first::2], joined[first + 1 :: 2], strict=False):
        tokens, num_answer = encode(prompt, continues=True), len(encode(answer, continues=True))
        if tokens and num_answer:  # a tokenizer may know none of the letters
            yield tuple(tokens if begun else encode(prompt)), num_answer
            begun = True


def _read(path: str) -> Iterator[list[Message]]:
    """The messages of each conversation."""
    give = "give a JSON file as of ShareGPT, a list of conversations"
    try:
        with Path(path).open("rb") as file:
            listed = json.loads(read_bounded(file, path).decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): {give}.") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start + 1} is not UTF-8: save the file as UTF-8.") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: not JSON ({error.msg} at column {error.colno}): {give}.") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, brackets thousands deep
        raise UsageError(f"{path} is not readable as JSON: {give}.") from None
    if not isinstance(listed, list):
        raise UsageError(f"{path} holds no list: {give}.")
    for number, conversation in enumerate(listed, start=1):
        messages = conversation.get("conversations") if isinstance(conversation, dict) else None
        if not isinstance(messages, list):
            raise UsageError(
                f'{path}: conversation {number} has no list of messages: give {{"conversations": [{{"from": "human", '
                '"value": "Hello"}, ...]}.'
            )
        yield [
            _message(message, f"{path}: message {i} of conversation {number}") for i, message in enumerate(messages, 1)
        ]


def _message(message: Any, what: str) -> Message:
    sender, text = (message.get("from"), message.get("value")) if isinstance(message, dict) else (None, None)
    if sender not in (*READ, *ANSWERED):
        raise UsageError(f'{what} is from {json.dumps(sender):.40}: give "from" as {one_of((*READ, *ANSWERED))}.')
    if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError(f'{what} has the "value" {json.dumps(text):.40}: give text, without half a surrogate pair.')
    return sender in ANSWERED, text

"""Decodes an answer token by token, never showing half a character."""

from __future__ import annotations

from collections.abc import Callable

UNFINISHED = "\ufffd"  # what a character decodes to whose last bytes are missing


class Spelling:
    """Decodes tokens as they come; the cost of each does not grow with the text.

    >>> spelling = Spelling(tokenizer.decode)
    >>> [spelling.add(token) for token in tokenizer.encode("né")]  # é is two tokens, of a byte each
    ['n', '', 'é']
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []  # the last token that completed text (the next may depend on it), and all after
        self._before = 0  # characters that `_tokens[0]` decodes to by itself

    def add(self, token: int) -> str:
        """Return the characters that this token completes."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith(UNFINISHED):
            return ""
        new = text[self._before :]
        if len(self._tokens) > 1:
            self._tokens = [token]
            text = self._decode(self._tokens)
        self._before = len(text)
        return new

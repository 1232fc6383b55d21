"""Streams an answer's text as its tokens come: whole characters, up to a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minifuse.model.text.spelling import Spelling


class TextStream:
    """Turns tokens into text that may be sent, up to a stop string.

    Text that may begin a stop string is held back until later tokens decide, or the answer ends.

    >>> stream = TextStream(decode, stops=["\\n\\n"])  # one character per token
    >>> [stream.add(ord(letter)) for letter in "a\\nb\\n\\nc"], stream.stopped
    (['a', '', '\\nb', '', '', ''], True)

    Args:
        trim: whether leading blanks are dropped.

    Attributes:
        text: all text that was returned so far.
        stopped: whether a stop string has come; later tokens then add nothing.
    """

    def __init__(self, decode: Callable[[list[int]], str], stops: Sequence[str] = (), *, trim: bool = False) -> None:
        self._spelling = Spelling(decode)
        self._stops = stops
        self._trim = trim
        self._held = ""
        self.text = ""
        self.stopped = False

    def add(self, token: int) -> str:
        """Return the text that may be sent now."""
        return "" if self.stopped else self._send(self._spelling.add(token), ends=False)

    def end(self) -> str:
        """Return what was held back. Call this when the answer has ended."""
        return self._send("", ends=True)

    def _send(self, new: str, ends: bool) -> str:
        text = self._held + new
        if self._trim:
            text = text.lstrip()
            self._trim = not text
        places = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            self.stopped = True
            sent, self._held = text[: min(places)], ""
        else:
            held = 0 if ends else self._beginning_of_stop(text)
            sent, self._held = text[: len(text) - held], text[len(text) - held :]
        self.text += sent
        return sent

    def _beginning_of_stop(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that begins a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for count in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stops):
                return count
        return 0

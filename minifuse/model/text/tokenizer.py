"""Text to token ids and back, with the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minifuse.errors import ModelError

__all__ = ["Tokenizer"]


class Tokenizer:
    """The tokenizer of a model, read from its `tokenizer.json`.

    Raises:
        ModelError: the file is not a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as HFTokenizer

        self._path = path
        with self._named("cannot be read as a tokenizer"):
            self._tokenizer = HFTokenizer.from_file(str(path))

    def encode(self, text: str) -> tuple[int, ...]:
        """Raises `ModelError` where the tokenizer fails, as for a word that it neither has nor has a token for."""
        with self._named("cannot make tokens of a text"):
            return tuple(self._tokenizer.encode(text).ids)

    def decode(self, token_ids: list[int]) -> str:
        """The text of an answer, without special tokens such as EOS."""
        with self._named("cannot make a text of tokens"):
            text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Makes one error of all that the library raises: a bare Exception, or what is not even that if it panics."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            why = " ".join(str(error).split())
            raise ModelError(f"{self._path} {what} ({why}): download it again.") from None

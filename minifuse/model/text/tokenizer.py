"""Text to token ids and back, with the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from minifuse.errors import ModelError

__all__ = ["UNFINISHED", "Tokenizer"]

UNFINISHED = "\ufffd"  # what stands for the bytes of a letter whose last ones are still to come


class Tokenizer:
    """The tokenizer of a model, read from its `tokenizer.json` as transformers' AutoTokenizer reads it.

    Padding and truncation that the file was saved with do not apply: texts are encoded whole, one by one.

    Raises:
        ModelError: the file is not a tokenizer.
    """

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer as HFTokenizer

        self._path = path
        with self._named("cannot be read as a tokenizer"):
            self._tokenizer = HFTokenizer.from_file(str(path))
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()

    def encode(self, text: str, *, continues: bool = False) -> tuple[int, ...]:
        """The tokens of a text.

        Args:
            continues: the text goes on behind others, so that no special tokens are put around it.

        Raises:
            ModelError: the tokenizer fails, as for a word that it neither has nor has a token for.
        """
        with self._named("cannot make tokens of a text"):
            return tuple(self._tokenizer.encode(text, add_special_tokens=not continues).ids)

    def decode(self, token_ids: list[int]) -> str:
        """The text of an answer, without special tokens such as EOS."""
        with self._named("cannot make a text of tokens"):
            text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, list[int]]:
        """The text of these tokens, and how many of its characters are there after each.

        The bytes of a letter may be divided among tokens: it is there after the last of them. Costs a short `decode`
        for each token, whatever the length of the text.

        >>> tokenizer.pieces(tokenizer.encode("add 17"))  # of the tokens "add", " ", "1", "7"
        ("add 17", [3, 4, 5, 6])
        """
        tokens = list(token_ids)
        text = self.decode(tokens)
        ends: list[int] = []
        begin = 0  # tokens [begin, i) are told already, and decoded again for what they do to the next
        told, before = 0, 0  # characters: of all that is told, and of those tokens alone
        for i in range(len(tokens)):
            now = self.decode(tokens[begin : i + 1])
            if not now.endswith(UNFINISHED):
                told += len(now) - before
                begin, before = i, len(self.decode(tokens[i : i + 1])) if begin < i else len(now)
            ends.append(max(0, min(told, len(text))))
        if ends:
            ends[-1] = len(text)
        return text, ends

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

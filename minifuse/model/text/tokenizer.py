"""Text to token ids and back, with the `tokenizers` library."""

from __future__ import annotations

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

        try:
            self._tokenizer = HFTokenizer.from_file(str(path))
        except Exception as error:  # the library raises a bare Exception
            raise ModelError(f"{path} cannot be read as a tokenizer ({error}): download it again.") from None

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text).ids)

    def decode(self, token_ids: list[int]) -> str:
        """The text of an answer, without special tokens such as EOS."""
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        return text

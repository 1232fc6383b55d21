"""Text to token ids and back, with the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from minifuse.core.errors import ModelError
from minifuse.model.text.spelling import Spelling
from minifuse.model.text.tokenizer_config import configure

# What to replace by what to clean up a text, in this order.
CLEANED = {" .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't", " 'm": "'m"}
CLEANED |= {" 's": "'s", " 've": "'ve", " 're": "'re"}


class Tokenizer:
    """A model's tokenizer, read from `tokenizer.json` and files next to it, as transformers does.

    Padding and truncation that are saved with it do not apply.

    Args:
        family: the model's family; its tokenizer class is used if the files name no class.

    Raises:
        ModelError: the file is not a tokenizer.
    """

    def __init__(self, path: Path, family: str = "llama") -> None:
        from tokenizers import Tokenizer as HFTokenizer

        self._path = path
        with self._named("cannot be read as a tokenizer"):
            self._tokenizer = HFTokenizer.from_file(str(path))
            self._cleans_up = configure(self._tokenizer, path, family)

    def encode(self, text: str, *, continues: bool = False) -> tuple[int, ...]:
        """Encode a text, with the special tokens that begin or end a text.

        Args:
            continues: whether the text follows another, as a later turn does; special tokens are then left out.

        Raises:
            ModelError: the tokenizer fails, as for an unknown word if there is no token for unknown words.
        """
        with self._named("cannot make tokens of a text"):
            return tuple(self._tokenizer.encode(text, add_special_tokens=not continues).ids)

    def decode(self, token_ids: list[int]) -> str:
        """Decode an answer, without special tokens such as EOS."""
        with self._named("cannot make a text of tokens"):
            text: str = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        for before, after in CLEANED.items() if self._cleans_up else ():
            text = text.replace(before, after)
        return text

    def special(self, token: int) -> str:
        """Return the text of a special token, or "" for any other token."""
        spelled = self._tokenizer.decode([token], skip_special_tokens=False)
        return spelled if not self._tokenizer.decode([token], skip_special_tokens=True) else ""

    def pieces(self, token_ids: Sequence[int]) -> tuple[str, list[int]]:
        """Decode tokens, and return the number of characters after each token.

        A character whose bytes are split among tokens counts from the last of these on. The cost is a short `decode`
        for each token, whatever the length of the text.

        >>> tokenizer.pieces(tokenizer.encode("add 17"))  # of the tokens "add", " ", "1", "7"
        ("add 17", [3, 4, 5, 6])
        """
        text = self.decode(list(token_ids))
        spelling, count = Spelling(self.decode), 0
        ends: list[int] = []
        for token in token_ids:
            count += len(spelling.add(token))
            ends.append(min(count, len(text)))
        if ends:
            ends[-1] = len(text)
        return text, ends

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Turn whatever the library raises, panics included, into a `ModelError`."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit, GeneratorExit, ModelError):
            raise
        except BaseException as error:
            why = " ".join(str(error).split())
            raise ModelError(f"{self._path} {what} ({why}): download it again.") from None

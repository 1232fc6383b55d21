"""tiny's tokenizer: one token per known word, one per byte for everything else."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from minifuse.model.tiny.words import vocabulary

__all__ = ["EOS", "EOS_ID", "build_tokenizer"]

EOS, EOS_ID = "<eos>", 0


def build_tokenizer() -> Tokenizer:
    """A byte-level tokenizer without merges: a word with its space is one token if it is known, else its bytes are.

    Any text encodes, and decodes to itself: ` 17` is one token, ` 1717` five.
    """
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [word.replace(" ", "Ġ") for word in vocabulary()]  # how the byte-level alphabet writes a space
    ids = {token: index for index, token in enumerate((EOS, *bytes_, *words))}
    tokenizer = Tokenizer(BPE(ids, [], ignore_merges=True))
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS, special=True, normalized=False)])
    return tokenizer

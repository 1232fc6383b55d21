"""A directory's tokenizer gives what transformers' AutoTokenizer gives for it: ids of prompts, and texts of answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import RAW, refusal
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from minifuse.core.errors import ModelError
from minifuse.model.text.load import resolve_text

SPECIAL = [AddedToken(text, special=True, normalized=False) for text in ("<s>", "</s>", "<unk>")]
IDS = {token.content: i for i, token in enumerate(SPECIAL)}
WORDS = ("don", "n't", "'m", ".", ",", "hi", "two", "spaces", "x", "7", "8")
TEXTS = ("", "hi", " two  spaces", "hi</s>two", "<s> x", "é☃", "don n't . , hi", "a\n78 <extra>x", "ti ti")


def byte_level() -> Tokenizer:
    """As of GPT-2, and of Llama 3."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {**IDS, **{letter: i + 3 for i, letter in enumerate(alphabet)}, "hi": 259, "Ġt": 260, "78": 261}
    made = Tokenizer(models.BPE(vocab, [("h", "i"), ("Ġ", "t"), ("7", "8")], ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def digits_apart() -> Tokenizer:
    made = byte_level()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return made


def sentence_piece() -> Tokenizer:
    """As of Llama 2."""
    letters = [*"▁hitwospacen.,x78", *(f"<0x{byte:02X}>" for byte in range(256)), "hi", "▁t"]
    vocab = {**IDS, **{letter: i + 3 for i, letter in enumerate(letters)}}
    made = Tokenizer(models.BPE(vocab, [("h", "i"), ("▁", "t")], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return made


def words() -> Tokenizer:
    made = Tokenizer(models.WordLevel({**IDS, **{word: i + 3 for i, word in enumerate(WORDS)}}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def saved(
    make: Callable[[], Tokenizer], folder: Path, family: str = "llama", special: bool = True, **config: Any
) -> Path:
    """A model's directory with this tokenizer, which begins a text with <s>, and this tokenizer_config.json."""
    made = make()
    if special:
        made.add_special_tokens(SPECIAL)
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps(RAW[family]))
    return folder


BACKEND = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LLAMA = {**BACKEND, "tokenizer_class": "LlamaTokenizer"}
EXTRA = {"content": "<extra>", "lstrip": False, "rstrip": True, "single_word": False, "normalized": False}

CASES: dict[str, Callable[[Path], Path]] = {
    "bytes": lambda to: saved(byte_level, to, **BACKEND),
    "no files beside it": lambda to: saved(byte_level, to),
    "no special tokens of its own": lambda to: saved(byte_level, to, special=False, **BACKEND),
    "bos and eos are the template's": lambda to: saved(
        byte_level, to, **BACKEND, add_bos_token=False, add_eos_token=True
    ),
    "clean up is not for BPE": lambda to: saved(byte_level, to, **BACKEND, clean_up_tokenization_spaces=True),
    "special tokens are split": lambda to: saved(byte_level, to, **BACKEND, split_special_tokens=True),
    "a token more": lambda to: saved(byte_level, to, **BACKEND, extra_special_tokens=["<extra>"]),
    "a token more, of older files": lambda to: saved(byte_level, to, **BACKEND, additional_special_tokens=["<extra>"]),
    "a token of the model": lambda to: saved(byte_level, to, **BACKEND, image_token="<extra>"),
    "listed tokens": lambda to: saved(
        byte_level, to, **BACKEND, added_tokens_decoder={
            **{str(i): {"content": text, "special": True} for text, i in IDS.items()},
            "262": {**EXTRA, "special": True},
        }
    ),
    "GPT-2, by its config.json": lambda to: saved(byte_level, to, "gpt2"),
    "GPT-J with a space before": lambda to: saved(byte_level, to, "gptj", add_prefix_space=True),
    "OPT": lambda to: saved(byte_level, to, "opt", tokenizer_class="GPT2Tokenizer", bos_token="</s>"),
    "OPT of the plain class": lambda to: saved(digits_apart, to, "opt", **BACKEND),
    "a LLaMA of GPT-2's class": lambda to: saved(digits_apart, to, tokenizer_class="GPT2Tokenizer"),
    "Llama 2": lambda to: saved(sentence_piece, to, **LLAMA),
    "Llama 2, fast": lambda to: saved(sentence_piece, to, **{**LLAMA, "tokenizer_class": "LlamaTokenizerFast"}),
    "Llama 2, legacy": lambda to: saved(sentence_piece, to, **LLAMA, legacy=True),
    "Llama 2 without a space": lambda to: saved(sentence_piece, to, **LLAMA, add_prefix_space=False),
    "Llama 2 of the plain class": lambda to: saved(sentence_piece, to, **BACKEND),
    "Llama 3 of Llama 2's class": lambda to: saved(byte_level, to, **LLAMA),
    "words": lambda to: saved(words, to, **BACKEND),
    "words, cleaned up": lambda to: saved(words, to, **BACKEND, clean_up_tokenization_spaces=True),
}  # fmt: skip


def same(folder: Path) -> None:
    """Assert that minifuse and transformers read this directory alike."""
    theirs, ours = AutoTokenizer.from_pretrained(folder), resolve_text(str(folder)).tokenizer()
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert list(ours.encode(text)) == ids, text
        alone = theirs(text, add_special_tokens=False)["input_ids"]
        assert list(ours.encode(text, continues=True)) == alone, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text


@pytest.mark.parametrize("case", CASES)
def test_as_transformers_reads_it(case: str, tmp_path: Path) -> None:
    same(CASES[case](tmp_path))


@pytest.mark.parametrize("special", [True, False])
def test_tokens_of_older_files(special: bool, tmp_path: Path) -> None:
    folder = saved(byte_level, tmp_path, special=special, tokenizer_class="PreTrainedTokenizerFast")
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {**EXTRA, "content": "</s>"}}))
    (folder / "added_tokens.json").write_text(json.dumps({"<extra>": 262}))
    same(folder)


def test_saved_padding_and_truncation_do_not_apply(tmp_path: Path) -> None:
    def padded() -> Tokenizer:
        made = byte_level()
        made.enable_truncation(max_length=16)
        made.enable_padding(length=12, pad_id=1, pad_token="</s>")
        return made

    folder = saved(padded, tmp_path, **BACKEND, pad_token="</s>")
    same(folder)
    tokenizer = resolve_text(str(folder)).tokenizer()
    assert [len(tokenizer.encode(text)) for text in ("hi", 40 * "x")] == [2, 41]


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"added_tokens_decoder": [3]}', '{"tokenizer_class": 3}', '{"extra_special_tokens": 3}']
)
def test_a_config_that_makes_no_sense(text: str, tmp_path: Path) -> None:
    (saved(byte_level, tmp_path) / "tokenizer_config.json").write_text(text)
    with refusal(ModelError, "tokenizer", "download it again"):
        resolve_text(str(tmp_path)).tokenizer()

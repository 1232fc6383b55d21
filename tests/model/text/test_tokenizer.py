"""Texts have the tokens that transformers' AutoTokenizer gives for the same directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from minifuse.model.text.tokenizer import Tokenizer as Ours
from minifuse.workload.files import read_jsonl
from minifuse.workload.sharegpt import read_sharegpt

TEXTS = ["hi", "", "a prompt that is longer than sixteen tokens, as most are", "é <s> inside"]
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}


def _saved(directory: Path, *, bos: bool = False, padded: bool = False, **config: Any) -> Path:
    """A byte-level tokenizer with the special tokens <s> 0, </s> 1, <unk> 2, as a model's directory has it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "</s>", "<unk>"]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(special + letters)}, [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if bos:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    if padded:
        made.enable_truncation(max_length=16)
        made.enable_padding(length=12, pad_id=1, pad_token="</s>")
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({**CONFIG, **config}))
    return directory / "tokenizer.json"


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"padded": True},
        {"add_bos_token": True, "add_eos_token": True},
    ],
    ids=str,
)
def test_a_text_has_the_tokens_of_autotokenizer(config: dict[str, Any], bos: bool, tmp_path: Path) -> None:
    ours = Ours(_saved(tmp_path, bos=bos, **config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert list(ours.encode(text)) == theirs(text)["input_ids"], text
        assert list(ours.encode(text, continues=True)) == theirs(text, add_special_tokens=False)["input_ids"], text
        ids = theirs(text)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_one_beginning_in_a_conversation(tmp_path: Path) -> None:
    """<s> stands before the first turn alone; in a file of ShareGPT an answer is counted without it."""
    tokenizer = Ours(_saved(tmp_path, bos=True))
    lines = ['{"prompt": "hi", "conversation": "c"}', '{"prompt": "hi", "conversation": "c"}', '{"prompt": "hi"}']
    assert [request.prompt[0] == 0 for request in read_jsonl(lines, tokenizer.encode)] == [True, False, True]
    messages = [{"from": ("human", "gpt")[i % 2], "value": "hi"} for i in range(4)]
    path = tmp_path / "talk.json"
    path.write_text(json.dumps([{"conversations": messages}]))
    (turns,) = read_sharegpt(str(path), tokenizer.encode, 1, 100).conversations
    assert [(len(tokens), answer) for tokens, answer in turns] == [(3, 2), (2, 2)]

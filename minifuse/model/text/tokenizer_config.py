"""Applies the files next to a tokenizer.json, as transformers does: special tokens, pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minifuse.model.text.fields import read_object

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer


GPT2, LLAMA = "GPT2Tokenizer", "LlamaTokenizer"
OF_FAMILY = {"gpt2": GPT2, "gptj": GPT2, "opt": GPT2}  # the class if tokenizer_config.json names none
SPECIAL = {
    GPT2: dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>"),
    LLAMA: {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
}
LISTS = ("extra_special_tokens", "additional_special_tokens")


def configure(tokenizer: Tokenizer, path: Path, family: str) -> bool:
    """Apply to `tokenizer` the files next to its tokenizer.json at `path`.

    Returns:
        Whether decoded text is to be cleaned up, as by removing blanks before punctuation.
    """
    config = read_object(path.parent / "tokenizer_config.json") or {}
    name = (config.get("tokenizer_class") or OF_FAMILY.get(family, "")).removesuffix("Fast")
    is_bpe = type(tokenizer.model).__name__ == "BPE"
    if name == LLAMA and '"ByteLevel"' in path.read_text(encoding="utf-8"):
        name = ""  # Llama 3 and others name this class, but have another pipeline
    if name in SPECIAL and is_bpe:
        _set_pipeline(tokenizer, name, config)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.encode_special_tokens = bool(config.get("split_special_tokens"))
    if "added_tokens_decoder" not in config:
        config |= read_object(path.parent / "special_tokens_map.json") or {}
    _add_tokens(tokenizer, {**SPECIAL.get(name, {}), **config}, path.parent)
    return bool(config.get("clean_up_tokenization_spaces")) and not is_bpe


def _set_pipeline(tokenizer: Tokenizer, name: str, config: Mapping[str, Any]) -> None:
    """Set the pipeline as transformers' class `name` does, whatever tokenizer.json says."""
    from tokenizers import decoders, pre_tokenizers

    model, is_llama = tokenizer.model, name == LLAMA
    model.dropout = model.unk_token = None
    model.ignore_merges = False
    model.fuse_unk = model.byte_fallback = is_llama
    tokenizer.normalizer = None
    if not is_llama:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space")))
        tokenizer.decoder = decoders.ByteLevel()
        return
    prefix = config.get("add_prefix_space") is not False
    scheme = "never" if not prefix else "always" if config.get("legacy") else "first"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if prefix else steps)


def _add_tokens(tokenizer: Tokenizer, config: Mapping[str, Any], directory: Path) -> None:
    """Add the tokens named in the files next to tokenizer.json; known tokens keep their ids."""
    from tokenizers import AddedToken

    listed = config.get("added_tokens_decoder")
    if listed is not None:
        tokenizer.add_tokens([AddedToken(**token) for _, token in sorted(listed.items(), key=lambda one: int(one[0]))])
    special = list(_special(config))
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    if listed is None:
        names = {token.content for token in special}
        more = sorted((read_object(directory / "added_tokens.json") or {}).items(), key=lambda one: int(one[1]))
        added = [AddedToken(text, special=text in names, normalized=text not in names) for text, _ in more]
        special = [*(token for token in added if token.content not in known), *special]
    tokenizer.add_tokens([token for token in special if token.content not in known])


def _special(config: Mapping[str, Any]) -> Iterator[AddedToken]:
    """List the special tokens, from fields such as eos_token and from lists."""
    from tokenizers import AddedToken

    named = [value for key, value in config.items() if key.endswith("_token")]
    for key in LISTS:
        value = config.get(key) or []
        named += value.values() if isinstance(value, dict) else value
    for value in named:
        if isinstance(value, str):
            yield AddedToken(value, special=True)
        elif isinstance(value, dict):
            flags = {flag: value[flag] for flag in ("single_word", "lstrip", "rstrip", "normalized") if flag in value}
            yield AddedToken(value["content"], special=True, **flags)

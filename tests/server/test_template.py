"""Chats as tokens: the template of a model is rendered as transformers does, and turns are appended to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers

from minifuse.core.errors import ModelError, RequestRefused
from minifuse.model.source import resolve
from minifuse.model.text.load import TINY, TextSource
from minifuse.server.template import Jinja, Plain, Said, template_of

CHATML = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "{{ '<|start|>' + message.role + '\n' + message.content + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
CHAT = [Said("system", "be brief"), Said("user", "add 17 and 25"), Said("assistant", "42"), Said("user", "and é?")]


def with_template(folder: Path, template: Any) -> TextSource:
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    config = {"chat_template": template, "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    eos = json.loads((folder / "tokenizer.json").read_text())["added_tokens"][0]["content"]
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": eos}))
    source = resolve(str(folder))
    assert isinstance(source, TextSource)
    return source


def test_without_a_template_prompts_and_answers_follow_one_another() -> None:
    source = resolve("tiny")
    assert isinstance(source, TextSource)
    tokenizer = source.tokenizer()
    template = template_of(source, tokenizer)
    assert isinstance(template, Plain)
    eos = source.config.eos_ids
    asked = tokenizer.encode("be brief\nadd 17 and 25")
    assert template.whole(CHAT) == (*asked, *tokenizer.encode(" 42"), *eos, *tokenizer.encode("and é?"))
    assert template.rest(CHAT, 3, eos[0]) == tokenizer.encode("and é?")
    assert template.rest(CHAT, 3, 5) == (*eos, *tokenizer.encode("and é?"))  # the answer was cut off


def test_a_models_template_is_rendered_as_transformers_does(tmp_path: Path) -> None:
    source = with_template(tmp_path / "model", CHATML)
    tokenizer = source.tokenizer()
    ours = template_of(source, tokenizer)
    assert isinstance(ours, Jinja)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "model"))
    messages = [{"role": role, "content": text} for role, text in CHAT]
    rendered = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert ours.render(CHAT) == rendered
    assert list(ours.whole(CHAT)) == theirs(rendered, add_special_tokens=False)["input_ids"]


def test_a_turn_is_put_behind_the_tokens_before_it(tmp_path: Path) -> None:
    source = with_template(tmp_path / "model", CHATML)
    tokenizer = source.tokenizer()
    template = template_of(source, tokenizer)
    [eos] = source.config.eos_ids
    before = (*template.whole(CHAT[:2]), *tokenizer.encode("42", continues=True), eos)
    rest = template.rest(CHAT, 3, eos)
    assert rest is not None
    assert tokenizer.decode([*before, *rest]) == tokenizer.decode(list(template.whole(CHAT)))


def test_a_template_that_does_not_append_turns_is_not_continued(tmp_path: Path) -> None:
    source = with_template(tmp_path / "model", "{{ messages | length }}{{ messages[-1].content }}")
    template = template_of(source, source.tokenizer())
    assert template.rest(CHAT, 3, source.config.eos_ids[0]) is None


def test_what_a_template_refuses_and_one_that_cannot_be_read(tmp_path: Path) -> None:
    source = with_template(tmp_path / "model", CHATML)
    with pytest.raises(RequestRefused, match="no tools"):
        template_of(source, source.tokenizer()).whole([Said("tool", "x")])
    broken = with_template(tmp_path / "broken", "{% for %}")
    with pytest.raises(ModelError, match="chat template"):
        template_of(broken, broken.tokenizer())
    named = with_template(tmp_path / "named", [{"name": "default", "template": "x"}])
    assert isinstance(template_of(named, named.tokenizer()), Jinja)

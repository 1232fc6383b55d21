"""Turns a chat's messages into tokens, by the model's template or a plain one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from minifuse.core.errors import ModelError, RequestRefused
from minifuse.model.text.fields import read_object
from minifuse.model.text.load import TextSource
from minifuse.model.text.tokenizer import Tokenizer


class Said(NamedTuple):
    """What somebody said in a chat."""

    role: str  # system, user or assistant
    text: str


class Template(Protocol):
    def whole(self, chat: Sequence[Said]) -> tuple[int, ...]:
        """Encode a chat up to the point where the assistant is to speak."""
        ...

    def rest(self, chat: Sequence[Said], count: int, last: int) -> tuple[int, ...] | None:
        """Encode a chat's messages from number `count` on; the message before is an answer.

        Args:
            last: the last token of that answer.

        Returns:
            None if the rendered chat does not begin with the first `count` messages.
        """
        ...


class Plain:
    """Joins prompts and answers, with EOS after each answer, for models without a template.

    >>> # "remember ann 17", "ok" and "recall ann" become the tokens of "remember ann 17", " ok", EOS, "recall ann"
    """

    def __init__(self, tokenizer: Tokenizer, eos: int | None) -> None:
        self._tokenizer, self._eos = tokenizer, eos

    def whole(self, chat: Sequence[Said]) -> tuple[int, ...]:
        return self._encode(chat, begins=True)

    def rest(self, chat: Sequence[Said], count: int, last: int) -> tuple[int, ...] | None:
        ended = () if self._eos in (None, last) else (self._eos,)
        return ended + self._encode(chat[count:], begins=False)

    def _encode(self, chat: Sequence[Said], begins: bool) -> tuple[int, ...]:
        tokens: tuple[int, ...] = ()
        asked: list[str] = []
        for role, text in chat:
            if role != "assistant":
                asked.append(text)
                continue
            if asked:
                tokens += self._tokenizer.encode("\n".join(asked), continues=bool(tokens) or not begins)
            tokens += self._tokenizer.encode(f" {text}", continues=bool(tokens) or not begins)
            tokens += () if self._eos is None else (self._eos,)
            asked = []
        return tokens + self._tokenizer.encode("\n".join(asked), continues=bool(tokens) or not begins)


class Jinja:
    """The template that comes with a model, rendered as by transformers."""

    def __init__(self, source: str, names: dict[str, str], tokenizer: Tokenizer) -> None:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _refuse
        self._template = environment.from_string(source)
        self._names, self._tokenizer = names, tokenizer

    def render(self, chat: Sequence[Said]) -> str:
        """Render a chat up to the point where the assistant is to speak.

        Raises:
            RequestRefused: the template refuses the chat.
        """
        from jinja2 import TemplateError

        messages = [{"role": role, "content": text} for role, text in chat]
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._names)
        except TemplateError as error:
            raise RequestRefused(f"The model's chat template refuses the messages: {error}.") from None

    def whole(self, chat: Sequence[Said]) -> tuple[int, ...]:
        return self._tokenizer.encode(self.render(chat), continues=True)  # the template begins the text itself

    def rest(self, chat: Sequence[Said], count: int, last: int) -> tuple[int, ...] | None:
        before = self.render(chat[: count - 1]) + chat[count - 1].text + self._tokenizer.special(last)
        now = self.render(chat)
        return self._tokenizer.encode(now[len(before) :], continues=True) if now.startswith(before) else None


def _refuse(why: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(why)


def template_of(source: TextSource, tokenizer: Tokenizer) -> Template:
    """Return the chat template of a model.

    Raises:
        ModelError: the template cannot be read.
    """
    config, text = {}, None
    if source.directory is not None:
        config = read_object(source.directory / "tokenizer_config.json") or {}
        beside = source.directory / "chat_template.jinja"
        text = beside.read_text(encoding="utf-8") if beside.exists() else config.get("chat_template")
    if isinstance(text, list):  # several, by name
        text = next((one["template"] for one in text if one.get("name") == "default"), None)
    eos = source.config.eos_ids[0] if source.config.eos_ids else None
    if text is None:
        return Plain(tokenizer, eos)
    from jinja2 import TemplateError

    tokens = {name: value for name, value in config.items() if name.endswith("_token")}
    names = {name: value["content"] if isinstance(value, dict) else value for name, value in tokens.items() if value}
    try:
        return Jinja(text, names, tokenizer)
    except TemplateError as error:
        raise ModelError(f"The chat template of {source.name} cannot be read ({error}): repair it.") from None

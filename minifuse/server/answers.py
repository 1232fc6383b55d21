"""Writes answers in OpenAI's form: whole, or in chunks as their tokens come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from minifuse.core.report import TokenLogprobs
from minifuse.core.request import FinishReason, Request
from minifuse.model.text.tokenizer import Tokenizer
from minifuse.serve.run import Answer
from minifuse.server.loop import Piece
from minifuse.server.text_stream import TextStream

Kind = Literal["chat", "completion"]
REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.ABORTED: "abort"}
REPLACED = "\N{REPLACEMENT CHARACTER}"
OBJECTS = {"chat": "chat.completion", "completion": "text_completion"}
CHUNKS = {"chat": "chat.completion.chunk", "completion": "text_completion"}


@dataclass(eq=False)
class Choice:
    """One of a request's answers, as it grows."""

    index: int
    prompt: int  # the number of the prompt that it answers
    request: Request
    stream: TextStream
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)  # one for each token, in OpenAI's form for chats
    num_sent: int = 0  # how many of `logprobs` were sent
    reused: int = 0  # tokens of the prompt whose KV was found in memory
    answer: Answer | None = None
    finish_reason: str | None = None

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None


class Reply:
    """Collects the pieces of a request, and writes them as one object or as chunks.

    Args:
        name: the id of the completion.
        num_prompt: the number of tokens of all prompts, chat history included.
    """

    def __init__(
        self, kind: Kind, name: str, model: str, tokenizer: Tokenizer, choices: Sequence[Choice], num_prompt: int
    ) -> None:
        self.kind, self.name, self.model, self.tokenizer = kind, name, model, tokenizer
        self.created = int(time.time())
        self.choices = {choice.request.id: choice for choice in choices}
        self.num_prompt = num_prompt

    @property
    def ended(self) -> bool:
        return all(choice.ended for choice in self.choices.values())

    def take(self, piece: Piece) -> tuple[Choice, str]:
        """Add a piece to its choice; return the choice and the text to send now."""
        choice = self.choices[piece.request]
        if choice.ended:  # a stop string has ended it
            choice.answer = choice.answer or piece.answer
            return choice, ""
        if piece.reused is not None:
            choice.reused = piece.reused
        text = ""
        for i, token in enumerate(piece.tokens):
            choice.tokens.append(token)
            if piece.logprobs:
                choice.logprobs.append(self._logprob(token, piece.logprobs[i]))
            text += choice.stream.add(token)
            if choice.stream.stopped:
                choice.finish_reason = "stop"
                return choice, text
        if piece.answer is not None:
            choice.answer = piece.answer
            choice.finish_reason = REASONS.get(piece.answer.finish_reason, "error")
            text += choice.stream.end()
        return choice, text

    # --- as one object

    def whole(self) -> dict[str, Any]:
        """Return the completion as one object. Call this when every choice has ended."""
        choices = sorted(self.choices.values(), key=lambda choice: choice.index)
        return {
            "id": self.name,
            "object": OBJECTS[self.kind],
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(choice) for choice in choices],
            "usage": self.usage(),
        }

    def _choice(self, choice: Choice) -> dict[str, Any]:
        text = choice.stream.text
        said = (
            {"message": {"role": "assistant", "content": text, "refusal": None}}
            if self.kind == "chat"
            else {"text": text}
        )
        return {
            "index": choice.index,
            **said,
            "logprobs": self._logprobs(choice, choice.logprobs),
            "finish_reason": choice.finish_reason,
        }

    def usage(self) -> dict[str, Any]:
        """Count tokens; `cached_tokens` counts prompt tokens whose KV was in memory."""
        choices = self.choices.values()
        num_new = sum(len(choice.tokens) for choice in choices)
        cached = {choice.prompt: choice.reused for choice in choices}  # several answers to one prompt count once
        return {
            "prompt_tokens": self.num_prompt,
            "completion_tokens": num_new,
            "total_tokens": self.num_prompt + num_new,
            "prompt_tokens_details": {"cached_tokens": sum(cached.values())},
        }

    # --- in chunks

    def opening(self, choice: Choice) -> dict[str, Any]:
        """Return the first chunk of a chat's choice, which names the role."""
        return self._chunk(choice, {"delta": {"role": "assistant", "content": ""}}, None)

    def delta(self, choice: Choice, text: str) -> dict[str, Any]:
        """Return a chunk with new text, unsent log-probabilities, and any finish reason."""
        told = choice.logprobs[choice.num_sent :]
        choice.num_sent = len(choice.logprobs)
        said = {"delta": {"content": text} if text else {}} if self.kind == "chat" else {"text": text}
        return self._chunk(choice, said, self._logprobs(choice, told))

    def closing(self) -> dict[str, Any]:
        """Return the last chunk, which has the usage and no choice."""
        return {**self._head(), "choices": [], "usage": self.usage()}

    def _chunk(self, choice: Choice, said: dict[str, Any], logprobs: Any) -> dict[str, Any]:
        told = {"index": choice.index, **said, "logprobs": logprobs, "finish_reason": choice.finish_reason}
        return {**self._head(), "choices": [told]}

    def _head(self) -> dict[str, Any]:
        return {"id": self.name, "object": CHUNKS[self.kind], "created": self.created, "model": self.model}

    # --- log-probabilities

    def _logprob(self, token: int, told: TokenLogprobs) -> dict[str, Any]:
        top = [self._token(one, logprob) for one, logprob in told.top]
        return {**self._token(token, told.logprob), "top_logprobs": top}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.tokenizer.decode([token]) or self.tokenizer.special(token)
        spelled = None if REPLACED in text else list(text.encode())  # a part of a character has no text
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": spelled}

    def _logprobs(self, choice: Choice, told: list[dict[str, Any]]) -> dict[str, Any] | None:
        if choice.request.logprobs is None:
            return None
        if self.kind == "chat":
            return {"content": told, "refusal": None}
        first = choice.logprobs[: choice.num_sent - len(told)] if told is not choice.logprobs else []
        offset = sum(len(one["token"]) for one in first)
        offsets = []
        for one in told:
            offsets.append(offset)
            offset += len(one["token"])
        return {
            "tokens": [one["token"] for one in told],
            "token_logprobs": [one["logprob"] for one in told],
            "top_logprobs": [{top["token"]: top["logprob"] for top in one["top_logprobs"]} for one in told],
            "text_offset": offsets,
        }

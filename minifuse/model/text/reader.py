"""Checks what a transformer reads: token ids of its vocabulary, within its context."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minifuse.core.errors import RequestRefused, brief
from minifuse.core.request import Request, Sequence


@dataclass(frozen=True, slots=True)
class TextReader:
    """Checks that token ids are below `vocab_size` and texts fit `max_context` tokens."""

    vocab_size: int
    max_context: int

    def check(self, request: Request, num_history: int = 0) -> None:
        name = f"Request {request.id!r}"
        if request.problem is not None:
            raise RequestRefused(f"{name} {request.problem}")
        if not request.prompt:
            raise RequestRefused(f"{name} has an empty prompt: give at least one token.")
        if request.max_new_tokens < 1:
            raise RequestRefused(f"{name} asks for {brief(request.max_new_tokens)} new tokens: ask for at least 1.")
        new = request.prompt[num_history:]
        bad = next((token for token in new if not 0 <= token < self.vocab_size), None)
        if bad is not None:
            raise RequestRefused(
                f"{name} has the token id {brief(bad)}, and the vocabulary is 0 to {self.vocab_size - 1}: "
                "give ids made by this model's tokenizer."
            )
        if request.max_length > self.max_context:
            asked = f"has {len(request.prompt)} prompt tokens and asks for {brief(request.max_new_tokens)} more"
            raise RequestRefused(
                f"{name} {asked}, and the context is {self.max_context}: shorten the prompt or lower max_new_tokens."
            )

    def fit(self, request: Request) -> Request:
        room = max(1, self.max_context - len(request.prompt))
        return replace(request, max_new_tokens=room) if request.clip and room < request.max_new_tokens else request

    def begin(self, request: Request) -> Sequence:
        return Sequence(request)

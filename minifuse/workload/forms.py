"""Declares pydantic models of data in files: a request's line, a ShareGPT conversation.

Importing pydantic takes longer than most commands run, so this module is imported only when a file is read.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter

Text = Annotated[str, Field(min_length=0)]  # a bound makes pydantic refuse halves of surrogate pairs
Name = Annotated[str, Field(min_length=1)]
Natural = Annotated[int, Field(ge=0)]
Amount = Annotated[FiniteFloat, Field(ge=0)]


class Line(BaseModel):
    """A line of a file: a request."""

    model_config = ConfigDict(strict=True, extra="forbid")

    id: Name | Annotated[list[Name], Field(min_length=1)] | None = None
    prompt: Text | Annotated[list[Text], Field(min_length=1)] | None = None
    prompt_token_ids: list[int | list[int]] | None = None
    max_new_tokens: int | None = None
    arrival_s: Amount | None = None
    priority: int | None = None
    user: Name | None = None
    conversation: Name | None = None
    think_s: Amount | None = None
    eos_token_id: int | list[int] | None = None
    ignore_eos: bool | None = None
    temperature: Amount | None = None
    top_k: Natural | None = None
    top_p: Annotated[FiniteFloat, Field(gt=0, le=1)] | None = None
    seed: Natural | None = None


class TreeLine(Line):
    """A line of a file: a request that may have a tree."""

    tree: str | int | list[Any] | None = None


READ = ("human", "user", "system")  # senders whose messages the model reads; other senders write answers


class Message(BaseModel):
    """A message of one side."""

    sender: Literal["human", "user", "system", "gpt", "chatgpt", "bing", "bard", "assistant"] = Field(alias="from")
    text: str = Field(alias="value")

    @property
    def is_answer(self) -> bool:
        return self.sender not in READ


class Conversation(BaseModel):
    """The messages of a conversation, in order."""

    conversations: list[Message]


LISTED = TypeAdapter(list[Conversation])

"""Bodies of requests in OpenAI's API; what is not supported is refused, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from minifuse.core.submitted import fits_utf8

MOST_CHOICES = 16
MOST_STOPS = 4
MOST_LOGPROBS = 20
INT64 = 2**63 - 1


def _spelled(text: str) -> str:
    if not fits_utf8(text):
        raise ValueError("half of a surrogate pair is no character")
    return text


Text = Annotated[str, Field(strict=True), AfterValidator(_spelled)]
Stop = Annotated[Text, Field(min_length=1)]
Token = Annotated[StrictInt, Field(ge=0, le=INT64)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StreamOptions(Form):
    include_usage: StrictBool = False
    include_obfuscation: StrictBool = False  # none is ever added
    continuous_usage_stats: StrictBool = False  # vLLM's: the usage so far in every chunk


class Asked(Form):
    """The fields that both kinds of completion have.

    `top_k`, `ignore_eos` and `priority` are vLLM's additions. Some unsupported fields are accepted if they have
    their default value, because some clients always send them.
    """

    model: Text | None = None
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    stop: Annotated[list[Stop], Field(max_length=MOST_STOPS)] | Stop | None = None
    n: Annotated[StrictInt, Field(ge=1, le=MOST_CHOICES)] | None = None
    seed: Annotated[StrictInt, Field(ge=-INT64, le=INT64)] | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[StrictInt, Field(ge=-1, le=INT64)] | None = None
    ignore_eos: StrictBool = False
    priority: Annotated[StrictInt, Field(ge=-(10**12), le=10**12)] = 0
    user: Text | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logit_bias: Annotated[dict[str, Any], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _streams(self) -> Asked:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is given without stream: add stream=true, or leave it out")
        return self

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def includes_usage_so_far(self) -> bool:
        return self.includes_usage and self.stream_options.continuous_usage_stats  # type: ignore[union-attr]


class CompletionForm(Asked):
    """The body of `/v1/completions`."""

    prompt: (
        Text
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[Text], Field(min_length=1)]
        | Annotated[list[Annotated[list[Token], Field(min_length=1)]], Field(min_length=1)]
    )
    max_tokens: Annotated[StrictInt, Field(ge=1, le=INT64)] | None = None
    logprobs: Annotated[StrictInt, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None
    best_of: Literal[1] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Return the prompts; several are served as one request."""
        given: Any = self.prompt
        return list(given) if isinstance(given, list) and not isinstance(given[0], int) else [given]


class Part(Form):
    type: Literal["text"]
    text: Text


class Message(Form):
    """One message of a chat; only text is accepted as content."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[Part]
    name: None = None
    refusal: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Field(max_length=0)] | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class TextFormat(Form):
    type: Literal["text"]


class ChatForm(Asked):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[StrictInt, Field(ge=1, le=INT64)] | None = None
    max_tokens: Annotated[StrictInt, Field(ge=1, le=INT64)] | None = None  # the former name of max_completion_tokens
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    response_format: TextFormat | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    store: Literal[False] | None = None
    metadata: Annotated[dict[str, Any], Field(max_length=0)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatForm:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs is given without logprobs: add logprobs=true, or leave it out")
        if None not in (self.max_tokens, self.max_completion_tokens):
            raise ValueError("max_tokens and max_completion_tokens are both given: give one of them")
        if self.messages[-1].role == "assistant":
            raise ValueError("the last message is the assistant's: end with one to answer")
        return self

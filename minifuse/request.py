"""What a user asked (`Request`) and how far serving it has come (`Sequence`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from typing import Any, Protocol

from minifuse.cell_graph import CellGraph
from minifuse.errors import RequestRefused

__all__ = ["FinishReason", "Limits", "Phase", "Request", "Sampling", "Sequence", "TextLimits", "by_request"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep every token."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Request:
    """One user's question, complete at birth and never changed.

    A request of several prompts (Flover, section IV: "batch size n") is one `Request` for each, with the same `group`
    and arrival: they are refused or accepted as one. `arrival_s` is in seconds since the run began. `stop_ids` are the
    tokens that end the answer (usually the tokenizer's EOS); with `ignore_eos` the answer always has `max_new_tokens`
    tokens.
    """

    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int = 128
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    sampling: Sampling = GREEDY
    arrival_s: float = 0.0
    priority: int = 0
    conversation: str | None = None
    group: str | None = None
    problem: str | None = None  # why it cannot be read at all, as the engine will say when it refuses it
    given: Any = None  # what a cell model unfolds beside the prompt: a tree, or whatever its `unfold` reads

    @property
    def max_length(self) -> int:
        """Tokens of prompt and answer together, at most."""
        return len(self.prompt) + self.max_new_tokens

    @property
    def max_cached(self) -> int:
        """Tokens whose KV is ever needed: the last token sampled is never fed back."""
        return self.max_length - 1


def by_request(prompts: Iterable[Request]) -> list[list[Request]]:
    """The prompts of each request together: neighbours of one group."""
    keyed = groupby(enumerate(prompts), key=lambda pair: pair[1].group or pair[0])
    return [[prompt for _, prompt in of_one] for _, of_one in keyed]


class Limits(Protocol):
    """What a model can read."""

    def check(self, request: Request) -> None:
        """Raise `RequestRefused` if the model could not serve this request with any amount of memory."""
        ...


@dataclass(frozen=True, slots=True)
class TextLimits:
    """The limits of a language model: token ids below `vocab_size`, texts of up to `max_context` tokens."""

    vocab_size: int
    max_context: int

    def check(self, request: Request) -> None:
        name = f"Request {request.id!r}"
        if request.problem is not None:
            raise RequestRefused(f"{name} {request.problem}")
        if not request.prompt:
            raise RequestRefused(f"{name} has an empty prompt: give at least one token.")
        if request.max_new_tokens < 1:
            raise RequestRefused(f"{name} asks for {request.max_new_tokens} new tokens: ask for at least 1.")
        bad = next((token for token in request.prompt if not 0 <= token < self.vocab_size), None)
        if bad is not None:
            raise RequestRefused(
                f"{name} has the token id {bad}, and the vocabulary is 0 to {self.vocab_size - 1}: "
                "give ids made by this model's tokenizer."
            )
        if request.max_length > self.max_context:
            raise RequestRefused(
                f"{name} has {len(request.prompt)} prompt tokens and asks for {request.max_new_tokens} more, and the "
                f"context is {self.max_context}: shorten the prompt or lower max_new_tokens."
            )


class Phase(Enum):
    """The life of a request (Flover, section V). Techniques without pre-processing skip the second and the third.

    A request that has been evicted is suspended until it runs again (Pensieve, 3.4.3.5).
    """

    RECEIVED = "received"
    PREPROCESSING = "preprocessing"
    READY = "ready"
    RUNNING = "running"
    SUSPENDED = "suspended"
    FINISHED = "finished"


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"


@dataclass(slots=True, eq=False)
class Sequence:
    """A request being served. Stages read it; only `Engine` writes it.

    >>> s = Sequence(Request("r0", prompt=(7, 8), max_new_tokens=3))
    >>> s.tokens, s.answer, len(s)
    ([7, 8], [], 2)
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    phase: Phase = Phase.RECEIVED
    finish_reason: FinishReason | None = None
    graph: CellGraph | None = None  # what it unfolds into; None: a text, whose every iteration is one cell
    num_nodes_done: int = 0  # of the graph
    results: dict[int, Any] = field(default_factory=dict)  # what the graph's results came to: outputs, by node

    def __post_init__(self) -> None:
        self.tokens = self.tokens or list(self.request.prompt)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def answer(self) -> list[int]:
        """The new tokens only, the stop token included."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def num_new(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def finished(self) -> bool:
        return self.phase is Phase.FINISHED

    def __len__(self) -> int:
        return len(self.tokens)

    def why_finished(self) -> FinishReason | None:
        """The reason this sequence ends with its last token, or None: it goes on.

        A stop token that is the last allowed token counts as `STOP`.
        """
        if self.num_new and not self.request.ignore_eos and self.tokens[-1] in self.request.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.num_new >= self.request.max_new_tokens else None

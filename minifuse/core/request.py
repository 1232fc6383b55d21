"""What a user requests (`Request`), and the state of serving it (`Sequence`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

MAX_NEW_TOKENS = 256
DEFAULT: int = None  # type: ignore[assignment]  # stands for MAX_NEW_TOKENS, or for the context's room if less


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is sampled; greedily at temperature 0."""

    temperature: float = 0.0
    top_k: int = 0  # how many of the likeliest tokens to keep; 0: all
    top_p: float = 1.0  # total probability of the tokens to keep
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Request:
    """What a user requests. The serving engine parses its numbers and token ids (`core/submitted.py`).

    A request of several prompts (Flover, section IV) is one `Request` per prompt, with the same group, arrival,
    priority and user. A request `after` another arrives `delay_s` after the other has ended, and continues its text.
    """

    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int = DEFAULT
    stop_ids: tuple[int, ...] = ()  # the tokens that end the answer, usually the tokenizer's EOS
    ignore_eos: bool = False  # the answer has max_new_tokens tokens, whatever they are
    sampling: Sampling = GREEDY
    arrival_s: float = 0.0  # since the run began
    priority: int = 0  # the highest is served first, under a policy with order=priority
    conversation: str | None = None
    after: str | None = None  # the request whose text this one continues
    delay_s: float = 0.0
    group: str | None = None
    user: str | None = None  # who asks; metrics can be grouped by user
    problem: str | None = None  # why the request cannot be read; the engine refuses it with this sentence
    structure: Any = None  # what a model of cells unfolds besides the prompt: a tree, or whatever its `unfold` reads
    clip: bool = field(default=False, compare=False)  # lower max_new_tokens to what the context has room for
    logprobs: int | None = None  # report each token's log-probability, and this many of the likeliest tokens

    def __post_init__(self) -> None:
        if self.max_new_tokens is None:
            object.__setattr__(self, "max_new_tokens", MAX_NEW_TOKENS)  # type: ignore[unreachable]
            object.__setattr__(self, "clip", True)

    @property
    def max_length(self) -> int:
        """Return how many tokens prompt and answer have together, at most."""
        return len(self.prompt) + self.max_new_tokens

    @property
    def max_cached(self) -> int:
        """Return how many tokens need KV, at most: the last token is never fed back."""
        return self.max_length - 1


class Phase(Enum):
    """The life of a request (Flover, section V)."""

    RECEIVED = "received"
    PREPROCESSING = "preprocessing"  # its prompt, except for the last token, is computed separately (Flover)
    READY = "ready"  # preprocessed; it joins the next iteration
    RUNNING = "running"
    SUSPENDED = "suspended"  # evicted, until it runs again (Pensieve, 3.4.3.5)
    FINISHED = "finished"


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"
    NAN = "nan"  # there was no next token: the logits had a NaN, or their largest was infinite
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    ABORTED = "aborted"


@dataclass(slots=True, eq=False)
class Sequence:
    """A request being served. Stages read it; only `Requests` changes it.

    >>> s = Sequence(Request("r0", prompt=(7, 8), max_new_tokens=3))
    >>> s.tokens, s.answer, len(s)
    ([7, 8], [], 2)
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    phase: Phase = Phase.RECEIVED
    finish_reason: FinishReason | None = None
    ended_s: float = math.nan
    num_history: int = 0  # how many leading tokens of the prompt are the text of earlier turns
    graph: Any = None  # the cell graph that it unfolds into (`minifuse/core/unfolded.py`); texts have none
    results: dict[int, Any] = field(default_factory=dict)  # outputs of a graph, by node

    def __post_init__(self) -> None:
        self.tokens = self.tokens or list(self.request.prompt)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def answer(self) -> list[int]:
        """Return the new tokens only, the stop token included."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def num_new(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, tokens: tuple[int, ...], num_pieces: int, results: Mapping[int, Any] | None) -> tuple[int, ...]:
        """Add a plan's tokens, up to the answer's end. Returns the tokens added.

        `Unfolded` also counts the plan's pieces of work and keeps `results`; a text ignores both.
        """
        if len(tokens) == 1:  # as in most iterations
            self.tokens.append(tokens[0])
            return tokens
        for count, token in enumerate(tokens, start=1):
            self.tokens.append(token)
            if count < len(tokens) and self.why_finished() is not None:
                return tokens[:count]
        return tokens

    def why_finished(self) -> FinishReason | None:
        """Return why this sequence is finished, or None if it goes on."""
        request = self.request
        num_new = len(self.tokens) - len(request.prompt)
        if num_new and not request.ignore_eos and self.tokens[-1] in request.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_new and num_new >= request.max_new_tokens else None

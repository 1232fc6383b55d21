"""What a user requests (`Request`), and the state of serving it (`Sequence`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from typing import Any

from minifuse.cell_graph import CellGraph
from minifuse.errors import LawBroken, RequestRefused, UsageError
from minifuse.parsing import fits_utf8

__all__ = [
    "FinishReason",
    "Phase",
    "Request",
    "Sampling",
    "Sequence",
    "TextReader",
    "by_request",
    "check_are_requests",
    "check_name",
    "check_prompts",
]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep every token.

    Raises:
        UsageError: a value is not one that this allows.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, is_allowed, allowed in (
            ("temperature", _is_number(self.temperature) and 0 <= self.temperature < math.inf, "a number from 0"),
            ("top_k", isinstance(self.top_k, int) and self.top_k >= 0, "a whole number from 0"),
            ("top_p", _is_number(self.top_p) and 0 <= self.top_p <= 1, "a number from 0 to 1"),
            ("seed", isinstance(self.seed, int), "a whole number"),
        ):
            if not is_allowed:
                raise UsageError(f"The sampling has {name} = {getattr(self, name)!r}: give {allowed}.")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Request:
    """What a user requests, complete at birth and never changed.

    A request of several prompts (Flover, section IV: "batch size n") is one `Request` for each, with the same `group`,
    arrival, priority and user: they are refused or accepted as one. `arrival_s` is in seconds since the run began.
    Requests of a higher `priority` are served first by a policy whose `order` is that (`batching.order=priority`). No
    shipped policy reads `user`; your own may, and metrics are told by it (`--by user`). `stop_ids`
    are the tokens that end the answer (usually the tokenizer's EOS); with `ignore_eos` the answer always has
    `max_new_tokens` tokens.

    A request may follow another, of the same conversation if it has one: it arrives `delay_s` after the end of request
    `after`, though not before `arrival_s`, with all of that one's text, stop tokens included, in front of its own
    prompt.
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
    after: str | None = None  # the request whose text it continues
    delay_s: float = 0.0
    group: str | None = None
    user: str | None = None  # who asks
    problem: str | None = None  # why it cannot be read at all: the engine refuses it with this sentence
    structure: Any = None  # what a model of cells unfolds beside the prompt: a tree, or whatever its `unfold` reads

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, tuple):  # a list, as a tokenizer gives it
            try:  # type: ignore[unreachable]
                object.__setattr__(self, "prompt", tuple(self.prompt))
            except TypeError:
                raise UsageError(f"Request {self.id!r} has the prompt {self.prompt!r:.60}: give token ids.") from None

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


def check_are_requests(given: Iterable[object]) -> None:
    """Raise `UsageError` unless all that is given are requests."""
    for one in given:
        if not isinstance(one, Request):
            raise UsageError(f"A request was given as {one!r:.60}: give Request(id, prompt), the prompt as token ids.")


def check_name(text: str, what: str) -> str:
    """The name of a conversation or a user, as it is. Raise `UsageError` if it is empty, or UTF-8 cannot spell it."""
    if not text or not fits_utf8(text):
        raise UsageError(f"{what} is {text!r}: give a name that UTF-8 can spell.")
    return text


def _check_types(request: Request) -> None:
    """Raise `RequestRefused` unless the fields that no reader looks at have the types that they are declared with."""
    name = f"Request {request.id!r}"
    if not isinstance(request.id, str) or not request.id:
        raise RequestRefused(f"{name} has an id that is no text: give one such as 'r0'.")
    for field_name in ("group", "conversation", "after", "user"):
        value = getattr(request, field_name)
        if not (value is None or isinstance(value, str)):
            raise RequestRefused(f"{name} has {field_name} = {value!r}: give a text, or leave it out.")
    for what, text in (("conversation", request.conversation), ("user", request.user)):
        if text is not None:
            try:
                check_name(text, f"The {what} of request {request.id!r}")
            except UsageError as error:
                raise RequestRefused(str(error)) from None
    if not isinstance(request.sampling, Sampling):
        raise RequestRefused(f"{name} has sampling = {request.sampling!r:.60}: give Sampling(temperature=...).")
    stop_ids: object = request.stop_ids
    if not isinstance(stop_ids, Collection) or not all(isinstance(token, int) for token in stop_ids):
        raise RequestRefused(f"{name} has stop_ids = {request.stop_ids!r:.60}: give token ids, such as (3,).")


def check_prompts(prompts: tuple[Request, ...], ids: Collection[str], groups: Collection[str]) -> None:
    """Raise `RequestRefused` unless these prompts can be taken in as one request, whose ids and group are new."""
    for prompt in prompts:
        _check_types(prompt)
    group = prompts[0].group
    if len(prompts) > 1 and group is None:
        raise RequestRefused(
            f"Requests {prompts[0].id!r} to {prompts[-1].id!r} were submitted as one, and have no group: give the "
            "prompts of one request the same."
        )
    if group in groups:
        raise RequestRefused(
            f"A request of the group {group!r} was submitted before: give every request a group of its own, and "
            "submit its prompts together."
        )
    if group in ids:
        raise RequestRefused(f"The group {group!r} has the id of a request: give every request and group its own.")
    for i, prompt in enumerate(prompts):
        if prompt.id in groups:
            raise RequestRefused(f"Request {prompt.id!r} has the id of a group: give every request and group its own.")
        if prompt.id in ids or any(prompt.id == other.id for other in prompts[:i]):
            raise RequestRefused(f"Request {prompt.id!r} was submitted twice: give every request an id of its own.")
        if _shared(prompt) != _shared(prompts[0]):
            raise RequestRefused(
                f"Requests {prompts[0].id!r} and {prompt.id!r} were submitted as one, and differ in group, arrival, "
                "priority or user: give the prompts of one request the same of each."
            )


def _shared(prompt: Request) -> tuple[object, ...]:
    """What the prompts of one request have in common."""
    return prompt.group, prompt.arrival_s, prompt.priority, prompt.user


@dataclass(frozen=True, slots=True)
class TextReader:
    """The reader of a transformer: token ids below `vocab_size`, texts of up to `max_context` tokens."""

    vocab_size: int
    max_context: int

    def check(self, request: Request, num_history: int = 0) -> None:
        name = f"Request {request.id!r}"
        if request.problem is not None:
            raise RequestRefused(f"{name} {request.problem}")
        if not request.prompt:
            raise RequestRefused(f"{name} has an empty prompt: give at least one token.")
        if not _is_whole(request.max_new_tokens) or request.max_new_tokens < 1:
            raise RequestRefused(
                f"{name} asks for {request.max_new_tokens!r} new tokens: ask for a whole number, at least 1."
            )
        new = request.prompt[num_history:]
        bad = next((token for token in new if not (_is_whole(token) and 0 <= token < self.vocab_size)), None)
        if bad is not None:
            raise RequestRefused(
                f"{name} has the token id {bad!r}, and the vocabulary is 0 to {self.vocab_size - 1}: "
                "give ids made by this model's tokenizer."
            )
        if request.max_length > self.max_context:
            raise RequestRefused(
                f"{name} has {len(request.prompt)} prompt tokens and asks for {request.max_new_tokens} more, and the "
                f"context is {self.max_context}: shorten the prompt or lower max_new_tokens."
            )

    def begin(self, request: Request) -> Sequence:
        return Sequence(request)


class Phase(Enum):
    """The life of a request (Flover, section V). Techniques without pre-processing skip the second and the third phase.

    A request that was evicted is suspended until it runs again (Pensieve, 3.4.3.5).
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
    NAN = "nan"  # there was no next token: the logits had a NaN, or their largest was infinite
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    ABORTED = "aborted"


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
    ended_s: float = math.nan
    num_history: int = 0  # leading tokens of the prompt that are the text of the requests before it
    graph: CellGraph | None = None  # what the request unfolds into; None: a text, of which an iteration is a cell
    num_nodes_done: int = 0  # of the graph
    results: dict[int, Any] = field(default_factory=dict)  # outputs of the graph's results, by node

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

    @property
    def unfolded(self) -> CellGraph:
        """Its graph, for what serves models of cells alone."""
        if self.graph is None:
            raise LawBroken("layout", f"{self.id} is a text where a cell graph is needed")
        return self.graph

    def __len__(self) -> int:
        return len(self.tokens)

    def take(
        self, tokens: tuple[int, ...], num_nodes: int = 0, results: Mapping[int, Any] | None = None
    ) -> tuple[int, ...]:
        """Add what a plan produced: tokens, computed nodes of the graph, and results. Called by `Engine` alone.

        Returns:
            The tokens taken in: those up to the one that ends the answer.
        """
        if self.graph is None and len(tokens) == 1:  # as in most iterations
            self.tokens.append(tokens[0])
            return tokens
        for count, token in enumerate(tokens, start=1):
            self.tokens.append(token)
            if count < len(tokens) and self.why_finished() is not None:
                tokens = tokens[:count]
                break
        if self.graph is not None:
            self.num_nodes_done += num_nodes
            self.results |= results or {}
        return tokens

    def why_finished(self) -> FinishReason | None:
        """The reason this sequence ends with what it has taken in, or None: it goes on.

        A stop token that is the last allowed token counts as `STOP`. A graph also ends with its last node.
        """
        request = self.request
        num_new = len(self.tokens) - len(request.prompt)
        if num_new:
            if not request.ignore_eos and self.tokens[-1] in request.stop_ids:
                return FinishReason.STOP
            if num_new >= request.max_new_tokens:
                return FinishReason.LENGTH
        done = self.graph is not None and self.num_nodes_done == len(self.graph)
        return FinishReason.STOP if done else None

"""What a user requests (`Request`), and the state of serving it (`Sequence`)."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby
from typing import Any

from minifuse.cell_graph import CellGraph
from minifuse.errors import LawBroken, RequestRefused, UsageError
from minifuse.parsing import INT64, brief, fits_utf8, plain

__all__ = [
    "DEFAULT",
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


MAX_NEW_TOKENS = 256
DEFAULT: int = None  # type: ignore[assignment]  # of max_new_tokens: MAX_NEW_TOKENS, or what the context has room for


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep every token.

    Numbers may be numpy's or torch's. The engine refuses a request with a number that no tensor holds.

    Raises:
        UsageError: a value is not one that this allows.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _make_plain(self, "temperature", "top_k", "top_p", "seed")
        for name, is_allowed, allowed in (
            ("temperature", _is_number(self.temperature) and 0 <= self.temperature < math.inf, "a number from 0"),
            ("top_k", _is_whole(self.top_k) and self.top_k >= 0, "a whole number from 0"),
            ("top_p", _is_number(self.top_p) and 0 <= self.top_p <= 1, "a number from 0 to 1"),
            ("seed", _is_whole(self.seed), "a whole number"),
        ):
            if not is_allowed:
                raise UsageError(f"The sampling has {name} = {brief(getattr(self, name))}: give {allowed}.")
        if self.temperature <= sys.float_info.max:
            object.__setattr__(self, "temperature", float(self.temperature))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _make_plain(of: object, *names: str) -> None:
    """Replace the numbers of numpy and torch in these fields by Python's."""
    for name in names:
        value = getattr(of, name)
        if type(value) not in (int, float):
            object.__setattr__(of, name, plain(value))


def _token_ids(given: Iterable[Any]) -> tuple[Any, ...]:
    """The tokens of a list, a numpy array or a tensor, as Python's numbers."""
    tokens = tuple(plain(given))
    return tokens if {*map(type, tokens)} <= {int} else tuple(map(plain, tokens))


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class Request:
    """What a user requests, complete at birth and never changed.

    A request of several prompts (Flover, section IV: "batch size n") is one `Request` for each, with the same `group`,
    arrival, priority and user: they are refused or accepted as one. `arrival_s` is in seconds since the run began.
    Requests of a higher `priority` are served first by a policy whose `order` is that (`batching.order=priority`). No
    shipped policy reads `user`; your own may, and metrics are told by it (`--by user`). `stop_ids`
    are the tokens that end the answer (usually the tokenizer's EOS); with `ignore_eos` the answer always has
    `max_new_tokens` tokens: 256 by default, or as many as the context has room for. With `clip` any other
    `max_new_tokens` is lowered to that room as well; without it a request that does not fit is refused.

    Token ids and numbers may be numpy's or torch's.

    A request may follow another, of the same conversation if it has one: it arrives `delay_s` after the end of request
    `after`, though not before `arrival_s`, with all of that one's text, stop tokens included, in front of its own
    prompt.
    """

    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int = DEFAULT
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
    clip: bool = field(default=False, compare=False)  # lower max_new_tokens to what the context has room for

    def __post_init__(self) -> None:
        if self.max_new_tokens is None:
            object.__setattr__(self, "max_new_tokens", MAX_NEW_TOKENS)  # type: ignore[unreachable]
            object.__setattr__(self, "clip", True)
        _make_plain(self, "max_new_tokens", "ignore_eos", "arrival_s", "delay_s", "priority")
        try:
            object.__setattr__(self, "prompt", _token_ids(self.prompt))
        except TypeError:
            raise UsageError(f"Request {self.id!r} has the prompt {brief(self.prompt)}: give token ids.") from None
        if isinstance(plain(self.stop_ids), Collection):  # anything else the engine refuses
            object.__setattr__(self, "stop_ids", _token_ids(self.stop_ids))

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
            raise UsageError(f"A request was given as {brief(one)}: give Request(id, prompt), the prompt as token ids.")


def check_name(text: str, what: str) -> str:
    """The name of a conversation or a user, as it is. Raise `UsageError` if it is empty, or UTF-8 cannot spell it."""
    if not text or not fits_utf8(text):
        raise UsageError(f"{what} is {text!r}: give a name that UTF-8 can spell.")
    return text


def _check_types(request: Request) -> None:
    """Raise `RequestRefused` unless all fields have the types of their declarations, and numbers fit into tensors."""
    name = f"Request {brief(request.id)}"
    strange = [token for token in request.prompt if type(token) is not int and not _is_whole(token)]
    if strange:
        raise RequestRefused(
            f"{name} has the token id {brief(strange[0])}, which is no whole number: give ids made by this model's "
            "tokenizer."
        )
    if not _is_whole(request.max_new_tokens):
        raise RequestRefused(f"{name} asks for {brief(request.max_new_tokens)} new tokens: ask for a whole number.")
    if not isinstance(request.id, str) or not request.id:
        raise RequestRefused(f"{name} has an id that is no text: give one such as 'r0'.")
    for field_name in ("group", "conversation", "after", "user"):
        value = getattr(request, field_name)
        if not (value is None or isinstance(value, str)):
            raise RequestRefused(f"{name} has {field_name} = {brief(value)}: give a text, or leave it out.")
    for what, text in (("conversation", request.conversation), ("user", request.user)):
        if text is not None:
            try:
                check_name(text, f"The {what} of request {request.id!r}")
            except UsageError as error:
                raise RequestRefused(str(error)) from None
    if not isinstance(request.ignore_eos, bool):
        raise RequestRefused(f"{name} has ignore_eos = {brief(request.ignore_eos)}: give True or False.")
    stop_ids: object = request.stop_ids
    if not isinstance(stop_ids, tuple) or not all(map(_is_whole, stop_ids)):
        raise RequestRefused(f"{name} has stop_ids = {brief(request.stop_ids)}: give token ids, such as (3,).")
    sampling = request.sampling
    if not isinstance(sampling, Sampling):
        raise RequestRefused(f"{name} has sampling = {brief(request.sampling)}: give Sampling(temperature=...).")
    for field_name, value, most in (
        ("temperature", sampling.temperature, sys.float_info.max),
        ("top_k", sampling.top_k, INT64[1]),
    ):
        if value > most:
            raise RequestRefused(f"{name} has {field_name} = {brief(value)}: give at most {most}.")


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
    """A request being served. Stages read it; only `Requests` writes it.

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
        """Add what a plan produced: tokens, computed nodes of the graph, and results. Called by `Requests` alone.

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

"""Makes synthetic requests: random prompts with random lengths and arrival times.

Everything follows from a seed. Each choice (prompt lengths, output lengths, arrivals, the tokens of each prompt)
draws from a random stream of its own. So changing one distribution changes no other values, and a longer workload
begins with the requests of a shorter one.

A request of several prompts is a `Request` per prompt: neighbours in the list, with the same `group`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from minifuse.core.errors import UsageError
from minifuse.core.request import DEFAULT, GREEDY, Request, Sampling
from minifuse.core.submitted import by_request
from minifuse.workload.laws import Arrival, Lengths


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """Values for the fields that a request leaves out."""

    max_new_tokens: int = DEFAULT
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    sampling: Sampling = GREEDY  # to the seed, `read_jsonl` adds the number of earlier prompts
    arrival_s: float = 0.0  # only for `read_jsonl`: `synthetic` has a law of arrivals


DEFAULTS = RequestDefaults()
PROMPT_LENGTHS = "prompt lengths"  # a random stream
MAX_TOKENS = 1 << 25  # limit on the tokens of all prompts together, about a gigabyte


def synthetic(
    count: int,
    prompt_lengths: Lengths,
    output_lengths: Lengths,
    vocab_size: int,
    arrival: Arrival | None = None,
    seed: int = 0,
    defaults: RequestDefaults = DEFAULTS,
    prompts_per_request: int = 1,
) -> list[Request]:
    """List the requests of `synthetic_stream`.

    Raises:
        UsageError: as `synthetic_stream`, or the prompts have too many tokens.
    """
    laws = prompt_lengths, output_lengths
    stream = synthetic_stream(count, *laws, vocab_size, arrival, seed, defaults, prompts_per_request)
    rng, num_prompts = _stream(seed, PROMPT_LENGTHS), count * prompts_per_request
    num_tokens = sum(prompt_lengths.draw(rng) for _ in range(num_prompts))
    if num_tokens > MAX_TOKENS:
        raise UsageError(
            f"The {num_prompts:,} synthetic prompts have {num_tokens:,} tokens, and over {MAX_TOKENS:,} take too "
            "much memory: give fewer or shorter ones."
        )
    return [*stream]


def synthetic_stream(
    count: int,
    prompt_lengths: Lengths,
    output_lengths: Lengths,
    vocab_size: int,
    arrival: Arrival | None = None,
    seed: int = 0,
    defaults: RequestDefaults = DEFAULTS,
    prompts_per_request: int = 1,
) -> Iterator[Request]:
    """Make requests r0, r1, ... one by one, their random prompts without stop tokens.

    The drawn output length becomes the request's `max_new_tokens`; `defaults.max_new_tokens` is not used. If
    `defaults.ignore_eos`, answers have exactly the drawn length. All prompts of a request (r0/0, r0/1, ...) have the
    same output length; each has a prompt length of its own.

    Raises:
        UsageError: a count is below 1, or all tokens are stop tokens.
    """
    if count < 1:
        raise UsageError(f"The number of requests is {count}: give at least 1.")
    if prompts_per_request < 1:
        raise UsageError(f"The number of prompts of a request is {prompts_per_request}: give at least 1.")
    stop_ids = set(defaults.stop_ids)
    tokens = [token for token in range(vocab_size) if token not in stop_ids]
    if not tokens:
        raise UsageError(f"All {vocab_size} tokens of the vocabulary end an answer: give fewer stop tokens.")

    def draw() -> Iterator[Request]:
        prompt_rng, output_rng = _stream(seed, PROMPT_LENGTHS), _stream(seed, "output lengths")
        for i, arrival_s in enumerate(arrival_times(count, arrival or Arrival(), seed)):
            output = output_lengths.draw(output_rng)
            for k in range(prompts_per_request):
                rng = _stream(seed, f"tokens {i * prompts_per_request + k}")
                yield Request(
                    id=f"r{i}" if prompts_per_request == 1 else f"r{i}/{k}",
                    prompt=tuple(rng.choices(tokens, k=prompt_lengths.draw(prompt_rng))),
                    max_new_tokens=output,
                    stop_ids=defaults.stop_ids,
                    ignore_eos=defaults.ignore_eos,
                    sampling=defaults.sampling,
                    arrival_s=arrival_s,
                    group=None if prompts_per_request == 1 else f"r{i}",
                )

    return draw()


def gather(prompts: Sequence[Request], size: int = 1) -> list[Request]:
    """Join every `size` prompts into one request: r0/0, r0/1, ... of the group r0."""
    if size == 1:
        return [replace(prompt, id=f"r{i}", group=None) for i, prompt in enumerate(prompts)]
    return [replace(prompt, id=f"r{i // size}/{i % size}", group=f"r{i // size}") for i, prompt in enumerate(prompts)]


def arrive(requests: Iterable[Request], arrival: Arrival, seed: int = 0) -> list[Request]:
    """Give requests ascending arrival times drawn from this law; a group arrives together."""
    grouped = [*by_request(requests)]
    times = arrival_times(len(grouped), arrival, seed)
    return [replace(prompt, arrival_s=time) for time, prompts in zip(times, grouped, strict=True) for prompt in prompts]


def share_out(requests: Iterable[Request], shares: Sequence[int], seed: int = 0) -> Iterator[Request]:
    """Give each request a random user u0, u1, ..., chosen in proportion to the shares.

    All prompts of a request, and all turns of a conversation, have the same user.
    """
    rng, users = _stream(seed, "users"), [f"u{i}" for i in range(len(shares))]
    drawn: dict[str, str] = {}
    for request in requests:
        shared = request.conversation or request.group
        user = drawn.get(shared) if shared else None
        if user is None:
            user = rng.choices(users, shares)[0]
            if shared:
                drawn[shared] = user
        yield replace(request, user=user)


def arrival_times(n: int, arrival: Arrival, seed: int = 0) -> list[float]:
    """Draw the arrival times of n requests from this law."""
    return arrival.times(n, _stream(seed, "arrivals"))


def _stream(seed: int, name: str) -> random.Random:
    return random.Random(f"minifuse {name} {seed}")  # seeds that are strings are hashed with SHA-512

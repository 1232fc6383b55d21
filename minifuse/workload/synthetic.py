"""Makes synthetic requests: random prompts with random lengths and arrival times.

Everything follows from a seed. Each choice (prompt lengths, output lengths, arrivals, the tokens of each prompt)
draws from a random stream of its own. So changing one distribution changes no other values, and a longer workload
begins with the requests of a shorter one.

A request of several prompts is a `Request` per prompt: neighbours in the list, with the same `group`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
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
    """Make requests r0, r1, ... with random prompts that contain no stop tokens.

    The drawn output length becomes the request's `max_new_tokens`; `defaults.max_new_tokens` is not used. If
    `defaults.ignore_eos`, answers have exactly the drawn length. All prompts of a request (r0/0, r0/1, ...) have the
    same output length; each has a prompt length of its own.

    Raises:
        UsageError: a count is below 1, the prompts have too many tokens, or all tokens are stop tokens.
    """
    if count < 1:
        raise UsageError(f"The number of requests is {count}: give at least 1.")
    if prompts_per_request < 1:
        raise UsageError(f"The number of prompts of a request is {prompts_per_request}: give at least 1.")
    stop_ids = set(defaults.stop_ids)
    tokens = [token for token in range(vocab_size) if token not in stop_ids]
    if not tokens:
        raise UsageError(f"All {vocab_size} tokens of the vocabulary end an answer: give fewer stop tokens.")
    prompt_rng, output_rng = _stream(seed, "prompt lengths"), _stream(seed, "output lengths")
    output = [output_lengths.draw(output_rng) for _ in range(count)]
    lengths = [prompt_lengths.draw(prompt_rng) for _ in range(count * prompts_per_request)]
    if sum(lengths) > MAX_TOKENS:
        raise UsageError(
            f"The {len(lengths):,} synthetic prompts have {sum(lengths):,} tokens, and over {MAX_TOKENS:,} take too "
            "much memory: give fewer or shorter ones."
        )
    prompts = [
        Request(
            id=f"r{i}",
            prompt=tuple(_stream(seed, f"tokens {i}").choices(tokens, k=length)),
            max_new_tokens=output[i // prompts_per_request],
            stop_ids=defaults.stop_ids,
            ignore_eos=defaults.ignore_eos,
            sampling=defaults.sampling,
        )
        for i, length in enumerate(lengths)
    ]
    return arrive(gather(prompts, prompts_per_request), arrival or Arrival(), seed)


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


def share_out(requests: Iterable[Request], shares: Sequence[int], seed: int = 0) -> list[Request]:
    """Give each request a random user u0, u1, ..., chosen in proportion to the shares.

    All prompts of a request, and all turns of a conversation, have the same user.
    """
    rng, users = _stream(seed, "users"), [f"u{i}" for i in range(len(shares))]
    drawn: dict[str, str] = {}
    found = []
    for request in requests:
        key = request.conversation or request.group or request.id
        if key not in drawn:
            drawn[key] = rng.choices(users, shares)[0]
        found.append(replace(request, user=drawn[key]))
    return found


def arrival_times(n: int, arrival: Arrival, seed: int = 0) -> list[float]:
    """Draw the arrival times of n requests from this law."""
    return arrival.times(n, _stream(seed, "arrivals"))


def _stream(seed: int, name: str) -> random.Random:
    return random.Random(f"minifuse {name} {seed}")  # seeds that are strings are hashed with SHA-512

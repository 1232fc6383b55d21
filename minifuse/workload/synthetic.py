"""Synthetic requests: random prompts with lengths and arrival times drawn from laws.

Everything follows from a seed. Each choice draws from a stream of its own (prompt lengths, output lengths,
arrivals, the tokens of each single prompt), so changing one law leaves all other values as they were,
and the first n requests of a longer workload are those of the shorter one.

A request of several prompts is one `Request` for each of them, neighbours in the list with the same `group`.
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
    sampling: Sampling = GREEDY  # `read_jsonl` adds the number of earlier prompts to its seed, so equal prompts differ
    arrival_s: float = 0.0  # read by `read_jsonl` only: `synthetic` has a law of arrivals


DEFAULTS = RequestDefaults()
MAX_TOKENS = 1 << 25  # of all prompts: a gigabyte


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
    """Make requests r0, r1, ... of random tokens that are no stop tokens.

    The drawn output length is the request's `max_new_tokens` (that of `defaults` is not used). With
    `defaults.ignore_eos` it is the answer's exact length. All prompts of a request (r0/0, r0/1, ...) share this output
    length; the length of each prompt is drawn for itself.

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
    """Make every `size` prompts one request: r0/0, r0/1, ... of the group r0."""
    if size == 1:
        return [replace(prompt, id=f"r{i}", group=None) for i, prompt in enumerate(prompts)]
    return [replace(prompt, id=f"r{i // size}/{i % size}", group=f"r{i // size}") for i, prompt in enumerate(prompts)]


def arrive(requests: Iterable[Request], arrival: Arrival, seed: int = 0) -> list[Request]:
    """Give requests, in this order, arrival times by this law; a group arrives as one."""
    grouped = by_request(requests)
    times = arrival_times(len(grouped), arrival, seed)
    return [replace(prompt, arrival_s=time) for time, prompts in zip(times, grouped, strict=True) for prompt in prompts]


def share_out(requests: Iterable[Request], shares: Sequence[int], seed: int = 0) -> list[Request]:
    """Give each request one of the users u0, u1, ..., drawn with these shares.

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
    return random.Random(f"minifuse {name} {seed}")  # a string is hashed with SHA-512, whatever the hash seed

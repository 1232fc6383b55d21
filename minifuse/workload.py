"""What is asked, and when: synthetic requests, arrival laws and length laws (`request_file` reads requests).

Everything follows from a seed. Each choice draws from a stream of its own (prompt lengths, output lengths,
arrivals, the tokens of each single prompt), so changing one law leaves all the others' values as they were,
and the first n requests of a longer workload are those of the shorter one.

A request of several prompts is one `Request` for each of them, neighbours in the list with the same `group`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Protocol

from minifuse.errors import UsageError
from minifuse.parsing import did_you_mean, one_of, parse_duration, parse_float, parse_int
from minifuse.request import GREEDY, Request, Sampling

__all__ = [
    "Arrival",
    "Lengths",
    "Lognormal",
    "RequestDefaults",
    "Uniform",
    "arrival_times",
    "arrive",
    "by_request",
    "gather",
    "parse_arrival",
    "parse_lengths",
    "synthetic",
]

MAX_LENGTH = 1 << 20  # no law draws more tokens than this
MAX_SIGMA = 5.0
CV_RANGE = (1e-3, 100.0)  # beyond, the gamma law is a constant or a single burst

_ARRIVALS = ("none", "constant:500ms", "poisson:50ms", "gamma:50ms:cv=2", "gamma:50ms:burstiness=0.25")
_LENGTHS = ("32", "fixed:32", "uniform:8:64", "lognormal:64:0.8", "lognormal:64:0.8:max=512")


@dataclass(frozen=True, slots=True)
class Arrival:
    """Gaps between arrivals: gamma-distributed with this mean (seconds) and coefficient of variation.

    `cv` 0 makes them constant, 1 makes the arrivals Poisson, more makes them come in bursts. The field's
    "burstiness" is the gamma's shape, 1 / cv**2. A mean of 0 is everybody at once.
    """

    mean_s: float = 0.0
    cv: float = 0.0

    def times(self, n: int, rng: random.Random) -> list[float]:
        """Arrival times of n requests in seconds, ascending. The first one comes at 0: a run begins with it.

        >>> Arrival(0.5).times(3, random.Random())
        [0.0, 0.5, 1.0]
        """
        if self.mean_s == 0 or self.cv == 0:
            return [i * self.mean_s for i in range(n)]
        shape = self.cv**-2
        gaps = (rng.gammavariate(shape, self.mean_s / shape) for _ in range(n - 1))
        return list(accumulate(gaps, initial=0.0))[:n]


class Lengths(Protocol):
    """A law of lengths in tokens."""

    def draw(self, rng: random.Random) -> int:
        """One length, at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Each of low..high, both included, equally often; a fixed length is low..low."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Many short, few long: `mean` is that of the lengths themselves, `sigma` their logarithm's deviation.

    A draw is rounded to whole tokens, then clipped to 1..max; a low `max` therefore lowers the mean.
    """

    mean: float
    sigma: float
    max: int = MAX_LENGTH

    def draw(self, rng: random.Random) -> int:
        mu = math.log(self.mean) - self.sigma**2 / 2  # E[exp(N(mu, sigma))] = exp(mu + sigma^2 / 2)
        return min(max(round(rng.lognormvariate(mu, self.sigma)), 1), self.max)


def parse_arrival(text: str) -> Arrival:
    """An arrival law: `none`, `constant:GAP`, `poisson:GAP`, `gamma:GAP:cv=2` or `gamma:GAP:burstiness=0.25`.

    GAP is the mean time from one arrival to the next, such as 500ms.

    >>> parse_arrival("gamma:50ms:burstiness=0.25")
    Arrival(mean_s=0.05, cv=2.0)

    Raises:
        UsageError: it is anything else.
    """
    match text.strip().split(":"):
        case ["none"]:
            return Arrival()
        case ["constant", gap]:
            return Arrival(_mean_gap(gap))
        case ["poisson", gap]:
            return Arrival(_mean_gap(gap), cv=1.0)
        case ["gamma", gap, option] if option.startswith("cv="):
            what = "The coefficient of variation of a gamma arrival"
            return Arrival(_mean_gap(gap), cv=parse_float(option[3:], what, *CV_RANGE))
        case ["gamma", gap, option] if option.startswith("burstiness="):
            low, high = (cv**-2 for cv in reversed(CV_RANGE))
            shape = parse_float(option[11:], "The burstiness of a gamma arrival", low, high)
            return Arrival(_mean_gap(gap), cv=shape**-0.5)
        case [law, *_]:
            hint = did_you_mean(law, ("none", "constant", "poisson", "gamma"))
            raise UsageError(f'The arrival law is "{text}"{hint}: give {one_of(_ARRIVALS)}.')
    raise AssertionError  # split never returns an empty list


def parse_lengths(text: str) -> Lengths:
    """A length law: `32` or `fixed:32`, `uniform:8:64`, `lognormal:MEAN:SIGMA`, optionally with `:max=512`.

    Raises:
        UsageError: it is anything else.
    """
    match text.strip().split(":"):
        case ["fixed", only]:
            length = parse_int(only, "A fixed length", 1, MAX_LENGTH)
            return Uniform(length, length)
        case ["uniform", low, high]:
            least = parse_int(low, "The shortest length", 1, MAX_LENGTH)
            return Uniform(least, parse_int(high, "The longest length", least, MAX_LENGTH))
        case ["lognormal", mean, sigma, *rest] if not rest or (len(rest) == 1 and rest[0].startswith("max=")):
            return Lognormal(
                parse_float(mean, "The mean length", 1, MAX_LENGTH),
                parse_float(sigma, "The sigma of a lognormal length", 0, MAX_SIGMA),
                parse_int(rest[0][4:], "The longest length", 1, MAX_LENGTH) if rest else MAX_LENGTH,
            )
        case [only] if only[:1] in tuple("+-0123456789"):
            return parse_lengths(f"fixed:{only}")
        case [law, *_]:
            hint = did_you_mean(law, ("fixed", "uniform", "lognormal"))
            raise UsageError(f'The length law is "{text}"{hint}: give {one_of(_LENGTHS)}.')
    raise AssertionError  # split never returns an empty list


def _mean_gap(text: str) -> float:
    gap = parse_duration(text, "The gap between arrivals")
    if gap == 0:
        raise UsageError(f'The gap between arrivals is "{text}": give one above 0, or the law none.')
    return gap


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """What holds for every request that does not say otherwise."""

    max_new_tokens: int = 128
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    sampling: Sampling = GREEDY  # to its seed `read_jsonl` adds the number of prompts before: equal ones should differ
    arrival_s: float = 0.0  # read by `read_jsonl` only: `synthetic` has a law of arrivals


DEFAULTS = RequestDefaults()


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
    """Requests r0, r1, ... of random tokens, none of them a stop token.

    The output length drawn is the request's `max_new_tokens` (that of `defaults` is not used); with
    `defaults.ignore_eos` it is the answer's exact length. It holds for all prompts of a request (r0/0, r0/1, ...),
    each of which has a length of its own.

    Raises:
        UsageError: there is nobody to serve, or no token to draw.
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
    prompts = [
        Request(
            id=f"r{i}",
            prompt=tuple(_stream(seed, f"tokens {i}").choices(tokens, k=prompt_lengths.draw(prompt_rng))),
            max_new_tokens=output[i // prompts_per_request],
            stop_ids=defaults.stop_ids,
            ignore_eos=defaults.ignore_eos,
            sampling=defaults.sampling,
        )
        for i in range(count * prompts_per_request)
    ]
    return arrive(gather(prompts, prompts_per_request), arrival or Arrival(), seed)


def gather(prompts: Sequence[Request], size: int = 1) -> list[Request]:
    """Every `size` prompts made one request: r0/0, r0/1, ... of the group r0. One alone is just r0, of no group."""
    if size == 1:
        return [replace(prompt, id=f"r{i}", group=None) for i, prompt in enumerate(prompts)]
    return [replace(prompt, id=f"r{i // size}/{i % size}", group=f"r{i // size}") for i, prompt in enumerate(prompts)]


def by_request(prompts: Iterable[Request]) -> list[list[Request]]:
    """The prompts of each request together: neighbours of one group."""
    keyed = groupby(enumerate(prompts), key=lambda pair: pair[1].group or pair[0])
    return [[prompt for _, prompt in of_one] for _, of_one in keyed]


def arrive(requests: Iterable[Request], arrival: Arrival, seed: int = 0) -> list[Request]:
    """The same requests, arriving in this order by this law, whatever their arrival was; a group arrives as one."""
    asked = by_request(requests)
    times = arrival_times(len(asked), arrival, seed)
    return [replace(prompt, arrival_s=time) for time, prompts in zip(times, asked, strict=True) for prompt in prompts]


def arrival_times(n: int, arrival: Arrival, seed: int = 0) -> list[float]:
    """When n requests arrive by this law."""
    return arrival.times(n, _stream(seed, "arrivals"))


def _stream(seed: int, name: str) -> random.Random:
    return random.Random(f"minifuse {name} {seed}")  # a string is hashed with SHA-512, whatever the hash seed

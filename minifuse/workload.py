"""What is asked, and when: synthetic requests, request files, arrival laws and length laws.

Everything follows from a seed. Each choice draws from a stream of its own (prompt lengths, output lengths,
arrivals, the tokens of each single prompt), so changing one law leaves all the others' values as they were,
and the first n requests of a longer workload are those of the shorter one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Protocol

from minifuse.errors import ModelError, UsageError
from minifuse.parsing import Fields, did_you_mean, one_of, parse_duration, parse_float, parse_int, read_lines
from minifuse.request import GREEDY, Request, Sampling

__all__ = [
    "Arrival",
    "Lengths",
    "Lognormal",
    "RequestDefaults",
    "Uniform",
    "arrival_times",
    "arrive",
    "parse_arrival",
    "parse_lengths",
    "read_jsonl",
    "synthetic",
]

Encode = Callable[[str], Sequence[int]]

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
    sampling: Sampling = GREEDY
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
) -> list[Request]:
    """Requests r0, r1, ... of random tokens, none of them a stop token.

    The output length drawn is the request's `max_new_tokens` (that of `defaults` is not used); with
    `defaults.ignore_eos` it is the answer's exact length.

    Raises:
        UsageError: there is nobody to serve, or no token to draw.
    """
    if count < 1:
        raise UsageError(f"The number of requests is {count}: give at least 1.")
    stop_ids = set(defaults.stop_ids)
    tokens = [token for token in range(vocab_size) if token not in stop_ids]
    if not tokens:
        raise UsageError(f"All {vocab_size} tokens of the vocabulary end an answer: give fewer stop tokens.")
    prompt_rng, output_rng = _stream(seed, "prompt lengths"), _stream(seed, "output lengths")
    requests = [
        Request(
            id=f"r{i}",
            prompt=tuple(_stream(seed, f"tokens {i}").choices(tokens, k=prompt_lengths.draw(prompt_rng))),
            max_new_tokens=output_lengths.draw(output_rng),
            stop_ids=defaults.stop_ids,
            ignore_eos=defaults.ignore_eos,
            sampling=defaults.sampling,
        )
        for i in range(count)
    ]
    return arrive(requests, arrival or Arrival(), seed)


def arrive(requests: Sequence[Request], arrival: Arrival, seed: int = 0) -> list[Request]:
    """The same requests, arriving in this order by this law, whatever their arrival was."""
    times = arrival_times(len(requests), arrival, seed)
    return [replace(request, arrival_s=time) for request, time in zip(requests, times, strict=True)]


def arrival_times(n: int, arrival: Arrival, seed: int = 0) -> list[float]:
    """When n requests arrive by this law."""
    return arrival.times(n, _stream(seed, "arrivals"))


def _stream(seed: int, name: str) -> random.Random:
    return random.Random(f"minifuse {name} {seed}")  # a string is hashed with SHA-512, whatever the hash seed


_FIELDS = (
    *("id", "prompt", "prompt_token_ids", "max_new_tokens", "arrival_s", "priority", "conversation"),
    *("eos_token_id", "ignore_eos", "temperature", "top_k", "top_p", "seed"),
)


def read_jsonl(
    source: Path | str | Iterable[str],
    encode: Encode,
    defaults: RequestDefaults | Callable[[int], RequestDefaults] = DEFAULTS,
    name: str = "standard input",
) -> list[Request]:
    """Requests from a file of JSON objects, one per line, in the file's order.

        {"id": "greeting", "prompt": "Hello", "max_new_tokens": 20}
        {"prompt_token_ids": [5, 17], "arrival_s": 0.5, "temperature": 0.8, "seed": 7}

    `source` is a path, or lines that messages call `name`. `defaults` may depend on the request's index. The first
    request is r0 unless it has an id, the second r1, and so on. A request that can never be served (an empty prompt,
    a token out of the vocabulary, no token to generate, a text that `encode` cannot encode) is built as it is: the
    engine refuses it alone.

    Raises:
        UsageError: the file cannot be read, holds no request, or has a line that is not a request.
    """
    if isinstance(source, str | Path):
        name, source = str(source), read_lines(Path(source))
    requests: list[Request] = []
    taken: dict[str, str] = {}
    for number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        fields = Fields(f"{name}:{number}", line, _FIELDS)
        index = len(requests)
        request = _request(fields, f"r{index}", encode, defaults(index) if callable(defaults) else defaults)
        if request.id in taken:
            problem = f'the id "{request.id}" is taken by {taken[request.id]}'
            raise fields.error(f"{problem}: give every request an id of its own")
        taken[request.id] = fields.where
        requests.append(request)
    if not requests:
        raise UsageError(f'{name} holds no request: give one per line, such as {{"prompt": "Hello"}}.')
    return requests


def _request(fields: Fields, default_id: str, encode: Encode, defaults: RequestDefaults) -> Request:
    if ("prompt" in fields) == ("prompt_token_ids" in fields):
        given = "both prompt and prompt_token_ids are" if "prompt" in fields else "no prompt or prompt_token_ids is"
        raise fields.error(f"{given} given: give exactly one of them")
    text, problem = fields.text("prompt", None), None
    try:
        prompt = fields.integers("prompt_token_ids", ()) if text is None else tuple(encode(text))
    except ModelError as error:  # no tokenizer: other requests may come as token ids
        prompt, problem = (), f"in {fields.where} is text: {error}"
    sampling = defaults.sampling
    return Request(
        id=fields.text("id", default_id),
        prompt=prompt,
        max_new_tokens=fields.integer("max_new_tokens", defaults.max_new_tokens),
        stop_ids=fields.integers("eos_token_id", defaults.stop_ids, or_one=True),
        ignore_eos=fields.flag("ignore_eos", defaults.ignore_eos),
        sampling=Sampling(
            temperature=fields.number("temperature", sampling.temperature, low=0),
            top_k=fields.integer("top_k", sampling.top_k, low=0),
            top_p=fields.number("top_p", sampling.top_p, low=0, high=1, above=True),
            seed=fields.integer("seed", sampling.seed, low=0),
        ),
        arrival_s=fields.number("arrival_s", defaults.arrival_s, low=0),
        priority=fields.integer("priority", 0),
        conversation=fields.text("conversation", None),
        problem=problem,
    )

"""Parses distributions ("laws") of arrivals and lengths, and draws from them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from minifuse.core.errors import UsageError
from minifuse.io.parsing import LONGEST_S, did_you_mean, one_of, parse_duration, parse_float, parse_int, quoted

MAX_LENGTH = 1 << 20  # no law draws more tokens than this
MAX_SIGMA = 5.0
MOST_USERS, MOST_SHARE = 1000, 10**6
CV_RANGE = (1e-3, 100.0)  # limits beyond which the gamma law is a constant or a single burst

_ARRIVALS = ("none", "constant:500ms", "poisson:50ms", "gamma:50ms:cv=2", "gamma:50ms:burstiness=0.25")
_LENGTHS = ("32", "fixed:32", "uniform:8:64", "lognormal:64:0.8", "lognormal:64:0.8:max=512")


@dataclass(frozen=True, slots=True)
class Arrival:
    """Gamma-distributed gaps between arrivals, with a mean (seconds) and a coefficient of variation.

    `cv` 0 makes the gaps constant, 1 makes the arrivals Poisson, and more makes arrivals come in bursts. The
    "burstiness" of other tools is the gamma's shape, 1 / cv**2. With a mean of 0 all requests arrive at once.
    """

    mean_s: float = 0.0
    cv: float = 0.0

    def times(self, n: int, rng: random.Random) -> list[float]:
        """Draw ascending arrival times of n requests, in seconds; the first is 0.

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
        """Draw one length, at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Equally likely lengths from `low` to `high`, both included; one length if they are equal."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Many short and few long lengths; `sigma` is the standard deviation of their logarithm.

    `mean` is the mean before each draw is rounded to whole tokens and clipped to 1..max, which may lower the mean.
    """

    mean: float
    sigma: float
    max: int = MAX_LENGTH

    def draw(self, rng: random.Random) -> int:
        return self.at(rng.normalvariate(0.0, 1.0))

    def at(self, deviation: float) -> int:
        """Return the length whose logarithm lies `deviation` standard deviations from its mean."""
        mu = math.log(self.mean) - self.sigma**2 / 2  # E[exp(N(mu, sigma))] = exp(mu + sigma^2 / 2)
        return min(max(round(math.exp(mu + self.sigma * deviation)), 1), self.max)


def parse_arrival(text: str) -> Arrival:
    """Parse an arrival law: `none`, `constant:GAP`, `poisson:GAP`, `gamma:GAP:cv=2` or `gamma:GAP:burstiness=0.25`.

    GAP is the mean time from one arrival to the next, such as 500ms.

    >>> parse_arrival("gamma:50ms:burstiness=0.25")
    Arrival(mean_s=0.05, cv=2.0)

    Raises:
        UsageError: `text` is anything else.
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
            raise UsageError(f"The arrival law is {quoted(text)}{hint}: give {one_of(_ARRIVALS)}.")
    raise AssertionError  # split never returns an empty list


def parse_lengths(text: str) -> Lengths:
    """Parse a length law: `32`, `fixed:32`, `uniform:8:64`, `lognormal:MEAN:SIGMA` or `lognormal:MEAN:SIGMA:max=512`.

    Raises:
        UsageError: `text` is anything else.
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
            raise UsageError(f"The length law is {quoted(text)}{hint}: give {one_of(_LENGTHS)}.")
    raise AssertionError  # split never returns an empty list


def parse_users(text: str) -> tuple[int, ...]:
    """Parse the users' shares of the requests; `4` stands for four users with equal shares.

    >>> parse_users("3"), parse_users("8:1:1")
    ((1, 1, 1), (8, 1, 1))

    Raises:
        UsageError: `text` is anything else.
    """
    shares = text.split(":")
    if len(shares) == 1:
        return (1,) * parse_int(text, "The number of users", 1, MOST_USERS)
    if len(shares) > MOST_USERS:
        raise UsageError(f"The shares of {len(shares)} users are given: give those of at most {MOST_USERS}.")
    return tuple(parse_int(share, "The share of a user", 1, MOST_SHARE) for share in shares)


def _mean_gap(text: str) -> float:
    gap = parse_duration(text, "The gap between arrivals", LONGEST_S)
    if gap == 0:
        raise UsageError(f"The gap between arrivals is {quoted(text)}: give one above 0, or the law none.")
    return gap

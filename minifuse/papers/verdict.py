"""Judges whether measured values agree with a paper's; too high is no agreement."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from minifuse.papers.experiment import Point, Values
from minifuse.papers.numbers import shown, told

TOLERANCE = 0.1  # the part by which a value may differ from a paper's

Judgement = Literal["agrees", "below", "above", "undecided"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A paper's claim in words, and the range of values that agree with it."""

    text: str
    least: float
    most: float = math.inf

    @classmethod
    def about(cls, value: float, form: str = "{:.2f}x", tolerance: float = TOLERANCE) -> Claim:
        """Claim a value, with a relative tolerance.

        >>> Claim.about(2.0)
        Claim(text='2.00x, within 10%', least=1.8, most=2.2)
        """
        return cls(f"{form.format(value)}, within {tolerance:.0%}", value * (1 - tolerance), value * (1 + tolerance))

    @classmethod
    def near(cls, share: float, points: float = 0.05) -> Claim:
        """Claim a share, with a tolerance in percentage points.

        >>> Claim.near(0.7).text
        '70.0%, within 5 points'
        """
        return cls(f"{share:.1%}, within {100 * points:g} points", share - points, share + points)

    def judge(self, rounds: Sequence[float], upper: Sequence[float] | None = None) -> Judgement:
        """Return the judgement that all rounds share; undecided if they differ, or without rounds.

        Args:
            upper: upper bounds of the values, if `rounds` are only lower bounds; by default, both are the values.

        >>> [Claim.about(2.0).judge(rounds) for rounds in ([1.9, 2.1], [1.5, 1.7], [2.5, 3.0], [1.7, 1.9], [])]
        ['agrees', 'below', 'above', 'undecided', 'undecided']
        >>> [Claim.about(2.0).judge([1.9], upper=[most]) for most in (2.1, math.inf)]
        ['agrees', 'undecided']
        """
        upper = rounds if upper is None else upper
        if not rounds:
            return "undecided"
        if max(upper) < self.least:
            return "below"
        if min(rounds) > self.most:
            return "above"
        return "agrees" if self.least <= min(rounds) and max(upper) <= self.most else "undecided"


# Without a number of the paper: equal values are no agreement.
LOWER = Claim("lower, without a number", 0.0, math.nextafter(1.0, 0.0))
MORE = Claim("more, without a number", math.nextafter(1.0, 2.0))
LESS_BY = Claim("lower, without a number", math.nextafter(0.0, 1.0))


def verdict(
    what: str,
    rounds: Sequence[float],
    claim: Claim,
    here: str | None = None,
    source: str = "thesis",
    upper: Sequence[float] | None = None,
) -> str:
    """Return a sentence that judges a claim and tells what was found.

    Args:
        here: what was found, in words; by default, the rounds as factors.
        upper: see `Claim.judge`.
    """
    found = told(rounds) if here is None else here
    return f"{what}: {claim.judge(rounds, upper)}: {found} ({source}: {claim.text})."


def by_rate(
    what: str,
    found: Mapping[float, Sequence[float]],
    claim: Claim,
    form: str = "{:.2f}x",
    source: str = "thesis",
    by: str = "requests/s",
) -> str:
    """Return a sentence that judges a claim at each value of an axis.

    Args:
        found: the values of all rounds, by requests per second.
        by: the name of the axis.
    """
    each = [f"{claim.judge(rounds)} at {shown(rate)}, {told(rounds, form)}" for rate, rounds in found.items()]
    return f"{what}, by {by}: {'; '.join(each) or 'undecided, as no rate tells'} ({source}: {claim.text})."


def up_to(what: str, found: Mapping[float, Sequence[float]], most: float, form: str, source: str = "thesis") -> str:
    """Return the verdict on an "up to" claim, by the highest value of all rates.

    Args:
        found: the values of all rounds, by requests per second.
        most: the paper's highest value.

    >>> up_to("Fewer", {1.0: [0.01], 2.0: [0.14]}, 0.13, "{:.0%}")
    'Fewer: agrees: 14% at most; by requests/s 1% at 1, 14% at 2 (thesis: up to 13%, within 10%).'
    """
    highest = [max(of_round) for of_round in zip(*found.values(), strict=True)]
    claim = Claim.about(most, f"up to {form}")
    each = ", ".join(f"{told(rounds, form)} at {shown(rate)}" for rate, rounds in found.items())
    here = f"{told(highest, form)} at most; by requests/s {each}" if highest else "no rate tells"
    return verdict(what, highest, claim, here, source)


def against_paper(points: Sequence[Point], key: str, name: Callable[[Values], str], form: str = "{:.2f}x") -> str:
    """Compare the gain of each point with the paper's, if the paper gives one.

    Args:
        key: the key of the gain; the gains of all rounds are in `<key>_rounds`, its limit, if any, in `<key>_limit`.
        name: returns a name for a point.
        form: the format of the gains.

    Returns:
        Sentences that tell how many points agree, and name the others. Without a number of the paper, one that says so.
    """
    judged: dict[Judgement, list[str]] = {"agrees": [], "below": [], "above": [], "undecided": []}
    for point in points:
        published, gain = point.paper.get(key), point.measured.get(key)
        if not isinstance(published, float) or not isinstance(gain, float):
            continue
        rounds = point.measured.get(f"{key}_rounds", (gain,))
        limit = point.measured.get(f"{key}_limit")
        best = "" if limit is None or gain >= published else f", {limit:.2f}x if no request slowed another down"
        text = f"{name(point.at)} ({told(rounds, form)}; paper {form.format(published)}{best})"
        judged[Claim.about(published).judge(rounds)].append(text)
    others: Mapping[str, list[str]] = {name: found for name, found in judged.items() if found and name != "agrees"}
    num_all = sum(map(len, judged.values()))
    noun = key.replace("_", " ").replace("speedup", "speed-up")
    if not num_all:
        return f"Not compared: the paper has no {noun} for these points."
    agree = f"{len(judged['agrees'])} of {num_all} points agree with the paper's, within {TOLERANCE:.0%}"
    return " ".join(
        [
            f"{noun.capitalize()}: {agree}.",
            *(f"{name.capitalize()}: {'; '.join(found)}." for name, found in others.items()),
        ]
    )

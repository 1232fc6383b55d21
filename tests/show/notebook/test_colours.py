"""Colours: the same for a request in every picture, and told apart."""

from __future__ import annotations

import json
import math
import re
from itertools import combinations

import pytest

from minifuse.core.errors import UsageError
from minifuse.show.notebook.colours import HUES, owner_colour
from minifuse.show.notebook.played import play
from minifuse.show.notebook.prompts import asks, turns
from minifuse.show.page import PAGE

from .runs import run_of

Matrix = tuple[tuple[float, float, float], ...]
# What is seen without one of the three kinds of cones, in linear RGB (Machado, Oliveira and Fernandes, 2009).
SEEN: dict[str, Matrix] = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.0520)),
    "no green": ((0.3673, 0.8606, -0.2280), (0.2801, 0.6725, 0.0474), (-0.0118, 0.0429, 0.9689)),
    "no blue": ((1.2555, -0.0767, -0.1788), (-0.0784, 0.9308, 0.1476), (0.0047, 0.6914, 0.3039)),
}


def test_a_request_has_one_colour_in_every_run() -> None:
    for name in ("r0", "r3", "r5"):
        assert len({owner_colour(run_of(run), name) for run in ("static", "orca", "fusion", "baton")}) == 1


def test_turns_have_the_same_colour_in_whatever_order_they_arrive() -> None:
    requests = [*turns("a", "count from 3 to 20", "add 1 and 2"), *turns("b", "sort 2 1", "add 3 and 4")]
    serial, orca = play("serial", requests), play("orca", requests)
    assert [*serial.history.stories] != [*orca.history.stories]
    for name in serial.history.stories:
        assert owner_colour(serial, name) == owner_colour(orca, name)
    assert len({owner_colour(serial, name) for name in serial.history.stories}) == 4


def test_three_times_eight_requests_are_told_apart() -> None:
    played = play("serial", asks(*[(1, 1)] * 25))
    colours = [owner_colour(played, f"r{i}") for i in range(25)]
    assert len({*colours[:24]}) == 24
    assert colours[:8] == [*HUES]
    assert colours[24] == colours[0]


def test_hues_are_those_of_the_replay_page() -> None:
    (told,) = re.findall(r"^const HUES = (\[.*\]);$", (PAGE / "theme.js").read_text(), re.MULTILINE)
    assert tuple(json.loads(told)) == HUES


@pytest.mark.parametrize("matrix", SEEN.values(), ids=SEEN)
def test_hues_are_told_apart_by_who_does_not_see_them_all(matrix: Matrix) -> None:
    seen = [lab([sum(m * p for m, p in zip(row, linear(hue), strict=True)) for row in matrix]) for hue in HUES]
    assert min(math.dist(one, other) for one, other in combinations(seen, 2)) > 15


def linear(colour: str) -> list[float]:
    return [(int(colour[at : at + 2], 16) / 255) ** 2.2 for at in (1, 3, 5)]


def lab(colour: list[float]) -> tuple[float, float, float]:
    """Of linear RGB, the CIELAB coordinates: 2.3 apart is a difference that is just seen."""
    red, green, blue = (min(1.0, max(0.0, part)) for part in colour)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def luminance(colour: str) -> float:
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def test_an_unknown_request_is_refused() -> None:
    with pytest.raises(UsageError, match=r"orca has no request 'r9'.*: give r0, r1, r2, r3, r4 or r5\."):
        owner_colour(run_of("orca"), "r9")

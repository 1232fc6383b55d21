"""Interpolation between measured times: powers are met exactly, and nothing goes beyond the points unseen."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from minifuse.simulate.grid import Grid

AXES = {"rows": (1.0, 3.0, 8.0), "context": (16.0, 64.0, 100.0)}
inside = st.tuples(st.floats(1, 8), st.floats(16, 100))


@given(inside, st.floats(-2, 2), st.floats(-2, 2))
def test_a_product_of_powers_is_met_exactly_everywhere(point: tuple[float, float], one: float, other: float) -> None:
    grid = Grid.of(AXES, lambda rows, context: 1e-3 * rows**one * context**other)
    rows, context = point
    assert grid(rows, context) == pytest.approx(1e-3 * rows**one * context**other)
    assert grid.at(rows)(context) == pytest.approx(grid(rows, context))
    assert grid(16, 50) == pytest.approx(1e-3 * 16**one * 50**other)  # beyond the last point the slope continues
    assert grid(0.5, 0) == pytest.approx(grid(1, 16))  # below the first it is that point's


@given(st.lists(st.floats(1e-6, 1.0), min_size=9, max_size=9), inside)
def test_between_points_it_lies_between_their_times(seconds: list[float], point: tuple[float, float]) -> None:
    grid = Grid(axes=AXES, seconds=tuple(seconds))
    around = [
        grid.seconds[i * 3 + j]
        for i, j in itertools.product(range(3), repeat=2)
        if all(
            points[max(0, k - 1)] <= at <= points[min(2, k + 1)]
            for at, k, points in zip(point, (i, j), AXES.values(), strict=True)
        )
    ]
    assert min(around) * (1 - 1e-9) <= grid(*point) <= max(around) * (1 + 1e-9)
    for (i, rows), (j, context) in itertools.product(enumerate(AXES["rows"]), enumerate(AXES["context"])):
        assert math.isclose(grid(rows, context), seconds[i * 3 + j])


def test_what_lies_beyond_is_told() -> None:
    grid = Grid.of(AXES, lambda rows, context: rows * context)
    assert grid.covers(8, 100)
    assert grid.covers(0, 0)
    assert not grid.covers(9, 100)
    assert not grid.covers(8, 101)


def test_an_axis_of_one_point_is_constant() -> None:
    assert Grid(axes={"width": (5,)}, seconds=(2,))(1) == Grid(axes={"width": (5,)}, seconds=(2,))(50) == 2.0


@pytest.mark.parametrize(
    ("axes", "seconds"),
    [
        ({"rows": (2, 1)}, (1, 1)),
        ({"rows": (1, 1)}, (1, 1)),
        ({"rows": (0, 1)}, (1, 1)),
        ({"rows": ()}, ()),
        ({"rows": (1, 2)}, (1,)),
        ({"rows": (1, 2)}, (1, 0)),
        ({"rows": (1, 2)}, (1, math.inf)),
    ],
)
def test_a_grid_that_is_none(axes: dict[str, tuple[float, ...]], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError):
        Grid(axes=axes, seconds=seconds)

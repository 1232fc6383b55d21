"""Interpolates measured seconds between the points of a grid."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Grid(BaseModel):
    """Holds seconds measured at every combination of points of its axes.

    Between points, the logarithm of the seconds is linear in the logarithm of each coordinate, so that a power of a
    coordinate is met exactly. Below the first point of an axis, the time is that of the first point. Beyond the last
    point, the last slope continues; `covers` tells whether a point lies beyond.

    >>> grid = Grid(axes={"rows": (1, 4), "context": (16, 64)}, seconds=(1, 4, 2, 8))
    >>> [round(grid(*at), 3) for at in ((2, 32), (1, 8), (4, 128))]  # between; below the first; beyond the last
    [2.828, 1.0, 16.0]
    >>> round(grid.at(4)(32), 3), grid.covers(4, 128)
    (4.0, False)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    axes: Mapping[str, tuple[Positive, ...]]  # ascending points, by the axis' name
    seconds: tuple[Positive, ...]  # in row-major order: the last axis runs fastest

    @model_validator(mode="after")
    def _check(self) -> Grid:
        if not all(points and all(a < b for a, b in pairwise(points)) for points in self.axes.values()):
            raise ValueError("the points of an axis do not ascend")
        if len(self.seconds) != math.prod(map(len, self.axes.values())):
            raise ValueError("there is not one time for each combination of points")
        return self

    @classmethod
    def of(cls, axes: Mapping[str, tuple[float, ...]], seconds: Callable[..., float]) -> Grid:
        """Make a grid from `seconds(*coordinates)`, a function of a point."""
        points: list[tuple[float, ...]] = [()]
        for axis in axes.values():
            points = [(*point, value) for point in points for value in axis]
        return cls(axes=axes, seconds=tuple(seconds(*point) for point in points))

    @cached_property
    def _logs(self) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(map(math.log, points)) for points in self.axes.values())

    @cached_property
    def _values(self) -> tuple[float, ...]:
        return tuple(map(math.log, self.seconds))

    def __call__(self, *point: float) -> float:
        """Return the seconds at a point, one coordinate for each axis."""
        return math.exp(_interpolate(self._logs, self._values, point))

    def at(self, first: float) -> Grid:
        """Return the grid of the other axes, at one coordinate of the first axis."""
        name, *others = self.axes
        size = len(self.seconds) // len(self.axes[name])
        columns = [self._values[i::size] for i in range(size)]
        seconds = tuple(math.exp(_interpolate(self._logs[:1], column, (first,))) for column in columns)
        return Grid(axes={other: self.axes[other] for other in others}, seconds=seconds)

    def covers(self, *point: float) -> bool:
        """Tell whether no coordinate lies beyond the last point of its axis."""
        return all(value <= points[-1] for value, points in zip(point, self.axes.values(), strict=True))


def _interpolate(axes: tuple[tuple[float, ...], ...], values: tuple[float, ...], point: tuple[float, ...]) -> float:
    """Interpolate linearly on the first axis between the results on the others; `axes` are logarithms."""
    if not axes:
        return values[0]
    axis, others, size = axes[0], axes[1:], len(values) // len(axes[0])
    at = math.log(point[0]) if point[0] > 0 else axis[0]
    if at <= axis[0] or len(axis) == 1:
        return _interpolate(others, values[:size], point[1:])
    i = min(bisect_right(axis, at), len(axis) - 1)
    share = (at - axis[i - 1]) / (axis[i] - axis[i - 1])
    low = _interpolate(others, values[(i - 1) * size : i * size], point[1:])
    if not share:
        return low
    high = _interpolate(others, values[i * size : (i + 1) * size], point[1:])
    return low + share * (high - low)

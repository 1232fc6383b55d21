"""Tallies: exact while few values differ, rounded in bounded memory beyond."""

from __future__ import annotations

import random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifuse.trace.tally import Tally


@given(st.lists(st.lists(st.floats(0, 1e6)), max_size=5))
def test_exact(parts: list[list[float]]) -> None:
    tally, values = Tally(), [value for part in parts for value in part]
    for part in parts:
        tally.add(part)
    found = tally.summary()
    if not values:
        assert found is None
        return
    assert found is not None
    assert found["mean"] == pytest.approx(fmean(values), rel=1e-12, abs=1e-12)
    assert found["max"] == max(values)
    for percent in (50, 90, 99):
        assert found[f"p{percent}"] == pytest.approx(float(np.percentile(values, percent)), rel=1e-9, abs=1e-9)


def test_rounded() -> None:
    rng, tally, values = random.Random(0), Tally(most=20_000), list[float]()
    for _ in range(200):
        part = [rng.lognormvariate(-3, 0.2) for _ in range(500)]
        values += part
        tally.add(part)
        assert len(tally.counts) <= 20_000
    found = tally.summary()
    assert found is not None
    assert found["mean"] == pytest.approx(fmean(values), rel=1e-3)
    assert found["max"] == pytest.approx(max(values), rel=1e-3)
    for percent in (50, 90, 99):
        assert found[f"p{percent}"] == pytest.approx(float(np.percentile(values, percent)), rel=1e-3)
    assert tally.digits < 5, "five digits were too many"

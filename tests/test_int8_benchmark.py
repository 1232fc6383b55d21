"""benchmarks/int8_copies.py: its comparison, and the error that 8 bits have with a small model."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from minifuse.model.text.load import resolve_text

names = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "int8_copies.py"))


def test_only_tokens_before_the_first_difference_are_compared() -> None:
    exact = [[(7, -1.0), (8, -2.0), (9, -3.0)], [(1, -0.5)]]
    told = [[(7, -1.25), (5, -2.0), (9, -9.0)], [(1, -0.5)]]
    assert names["compare"](exact, told) == {"answers": 2, "unchanged": 1, "tokens": 2, "mean": 0.125, "most": 0.25}


def test_the_error_of_8_bits() -> None:
    """Copies as they are answer as float64 does; copies in int8 are off, by a part of the step of 1 in 127."""
    source = resolve_text("tiny")
    requests = names["load"](source, 4, 12)
    exact = names["answers"](source, "naive, float64", requests)
    as_is, int8 = (
        names["compare"](exact, names["answers"](source, f"fluid, float32, copies {how}", requests))
        for how in ("as they are", "in int8")
    )
    assert as_is["unchanged"] == 4
    assert as_is["most"] < 1e-4
    assert 1e-4 < int8["mean"] < 0.05
    assert int8["tokens"] == pytest.approx(48, abs=24)

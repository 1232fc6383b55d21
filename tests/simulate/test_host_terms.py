"""What the host does for a plan is counted, and the seconds of each term are found again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minifuse.core.places import Pages
from minifuse.core.plan import Layout, Move, Plan, Span, Work
from minifuse.core.shapes import Region
from minifuse.simulate.host_terms import fit, host_terms


def test_what_is_counted() -> None:
    work = (Work("a", 0, 5), Work("b", 7, 8), Work("c", 0, 1))
    places = (Pages((3, 4), 4), Pages((1, 2), 4), Pages((0,), 4))
    moves = (Move("offload", 0, 0, 3, "device", "host"), Move("copy", 0, 8, 2))
    plan = Plan(
        0,
        0,
        work,
        places,
        admitted=("a", "c"),
        layout=Layout((Span(0, 2), Span(2, 3)), lanes=((0,), (1,), (2,))),
        moves=moves,
    )
    assert host_terms(plan, num_layers=7) == {
        "iteration": 1,
        "layer": 7,
        "sequence": 3,
        "newcomer": 2,
        "token": 5,
        "block": 5,
        "copy": 2,
        "copied token": 5,
        "wave": 1,
        "lane": 3,
        "idle": 0,
    }
    assert host_terms(Plan(0, 0, work[1:2], places[1:2], layout=Layout((), Region(0, 4, 8))))["idle"] == 3


@given(st.lists(st.floats(0, 1e-3), min_size=3, max_size=3), st.integers(0, 2**32 - 1))
def test_terms_are_found_again(seconds: list[float], seed: int) -> None:
    names, drawn = ("iteration", "sequence", "token"), np.random.default_rng(seed)
    counted = [{"iteration": 1.0, "sequence": float(n), "token": float(t)} for n, t in drawn.integers(1, 50, (40, 2))]
    total = [sum(one[name] * cost for name, cost in zip(names, seconds, strict=True)) for one in counted]
    found = fit(counted, total, [1e-3] * 40)
    for name, cost in zip(names, seconds, strict=True):
        assert found.get(name, 0.0) == pytest.approx(cost, abs=1e-8)


def test_no_term_has_negative_seconds() -> None:
    counted = [{"a": 1.0, "b": float(n)} for n in range(1, 20)]
    found = fit(counted, [5.0 - 0.1 * one["b"] for one in counted], [1.0] * 19)
    assert found == {"a": pytest.approx(4.0), "b": 0.0}
    assert fit(counted, [-1.0] * 19, [1.0] * 19) == {"a": 0.0, "b": 0.0}
    assert fit([{"a": 1.0, "c": 0.0}], [2.0], [1.0]) == {"a": pytest.approx(2.0)}, "nothing tells what c costs"


def test_errors_count_relative_to_the_iteration() -> None:
    """The first of two runs of the same plan took 1 s of 1 s, the other 3 s of 100 s: the fit is near the first."""
    assert fit([{"a": 1.0}, {"a": 1.0}], [1.0, 3.0], [1.0, 100.0])["a"] == pytest.approx(1.0, abs=1e-3)

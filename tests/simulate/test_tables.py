"""What calibration times, and the tables that it makes of known times."""

from __future__ import annotations

import pytest
from machines import TOY

from minifuse.attention.layouts import PagedStage
from minifuse.attention.stage import PerSequenceStage
from minifuse.model.source import resolve
from minifuse.model.text.load import TextSource
from minifuse.simulate import operators
from minifuse.simulate.cell_tables import CellTables
from minifuse.simulate.operators import Iterating, Laps, Parts, Pieces, kv_for, num_iterated, typical
from minifuse.simulate.tables import ANY, ModelTables

STAGES = {"paged": PagedStage(), "per_sequence": PerSequenceStage()}


def _known(pieces: Pieces) -> Parts:
    """Times that tell tables apart: a call of attention takes 10 s, a prompt's pair 2 s, a single query's context 1 s.

    Half of a query's context counts as long as the longest.
    """
    longest = max(context for _, context in pieces)
    pairs = sum(queries * (context - queries) for queries, context in pieces if queries > 1)
    tokens = sum(queries for queries, _ in pieces)
    single = sum(context + longest for queries, context in pieces if queries == 1) / 2
    rows = float(len(pieces))
    attend = 10.0 + 2 * pairs + single
    return {"index": 3 * rows, "embed": 5.0 * tokens, "layer": 7.0 * tokens, "attend": attend, "head": 9 * rows}


def test_tables_hold_the_time_of_each_part() -> None:
    tables = ModelTables(TOY, STAGES, max_context=64, max_tokens=128)
    runs = tables.runs(TextSource("toy", TOY, None).load("float32"))
    taken = {(stage, pieces): _known(pieces) for stage, pieces in runs}  # type: ignore[arg-type]
    made = tables.attention("paged", taken)
    assert made.decode(3, 40) == pytest.approx(10 + 3 * 40, rel=0.1), "between the points"
    assert made.decode(4, 32) == pytest.approx(10 + 4 * 32)
    assert made.prefill(16, 64) == pytest.approx(10 + 2 * 16 * 64)
    assert (made.index_decode(8, 1), made.index_prefill(8, 1)) == (pytest.approx(24), pytest.approx(3))
    assert made.shared() == pytest.approx(10.0), "seven of eight calls are saved"
    assert made.index_shared() == pytest.approx(1e-9)
    assert made.ragged == pytest.approx(0.5, abs=0.02), "a row costs half its own context, and half the longest"
    assert tables.by_tokens("layer", taken)(100) == pytest.approx(700)
    assert tables.by_tokens("embed", taken)(3) == pytest.approx(15)
    assert tables.head(taken)(16) == pytest.approx(9 * 16)
    assert {stage for stage, _ in runs} == {ANY, *STAGES}


def test_an_iteration_is_computed_as_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of a prompt and of a single token, by a clock that counts how often it is read."""
    model = TextSource("toy", TOY, None).load("float32")
    of_layer = sum(weight.numel() * 4 for weight in model.layers[0].parameters())
    clock = iter(range(1000))
    monkeypatch.setattr(operators.time, "perf_counter", lambda: next(clock))
    pieces = ((5, 9), (1, 3))
    parts = Iterating(model, PagedStage(), kv_for(model, [pieces], 2)).iteration(pieces)(0)
    assert parts == {"index": 1, "cut": 1, "embed": 1, "layer": 2, "attend": 1, "head": 1}
    monkeypatch.setattr(operators, "MOST_WEIGHTS", of_layer)
    assert num_iterated(model) == 1


def test_a_context_longer_than_the_models_is_timed() -> None:
    model = TextSource("toy", TOY, None).load("float32")
    pieces = ((TOY.max_context, 2 * TOY.max_context),)
    assert Iterating(model, PagedStage(), kv_for(model, [pieces], 2)).iteration(pieces)(0)["attend"] > 0


def test_steps_of_cells() -> None:
    model = resolve("treelstm:hidden=8").load("float32")
    tables = CellTables(model.types)
    runs = tables.runs(model)
    taken = {key: {"step": float(key[2])} for key in runs}  # type: ignore[arg-type]
    assert {*tables.steps(taken)} == {*model.types}
    assert tables.steps(taken)["leaf"](48) == pytest.approx(48.0)
    assert next(iter(runs.values()))(0)["step"] > 0


def test_laps_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 1.0, 3.0, 7.0))
    monkeypatch.setattr(operators.time, "perf_counter", lambda: next(times))
    lap = Laps("cpu")
    for name in ("a", "b", "a"):
        lap(name)
    assert lap.seconds == {"a": 5.0, "b": 2.0}


def test_a_long_iteration_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(10))
    monkeypatch.setattr("minifuse.simulate.operators.time.perf_counter", lambda: float(next(seconds)))
    later = iter((1.0, 9.0))
    assert typical(lambda: {"layer": next(later)}) == {"layer": 1.0}

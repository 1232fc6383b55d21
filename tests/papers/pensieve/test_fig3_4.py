"""Pensieve's Figure 3.4: attention by context, the line through it, and what is refused."""

from __future__ import annotations

import json

import pytest
from helpers import sentence
from papers.figures import found

from minifuse.core.errors import UsageError
from minifuse.papers import EXPERIMENTS
from minifuse.papers.experiment import Conditions
from minifuse.papers.pensieve.fig3_4 import Line
from minifuse.simulate.chunk_cost import Measured

NAME = "pensieve-fig3.4"


def test_in_virtual_time() -> None:
    """OPT-13B: a layer has 12 x 5120^2 weights of 2 bytes, and a token 2 x 5120 numbers of KV, at 1.935 TB/s."""
    finding = found(NAME, scale="paper")
    (panel,) = finding.panels
    assert [point.at["context"] for point in panel.points] == [2**n for n in range(5, 15)]
    last = panel.points[-1].measured
    assert last["rest_ms"] == pytest.approx(12 * 5120**2 * 2 / 1.935e12 * 1e3)
    assert last["attention_ms"] == pytest.approx(16384 * 2 * 5120 * 2 / 1.935e12 * 1e3)
    assert last["share"] == pytest.approx(16384 / 30720)
    assert finding.facts["equal_at"] == pytest.approx(30720)
    assert any(note.startswith("Attention grows linearly: agrees") for note in finding.notes)
    json.dumps(EXPERIMENTS[NAME].as_json(finding))


def test_in_real_time_it_is_what_calibrate_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of all 4 layers; a point has those of one."""
    taken = {32: (0.4, 0.8, 1.2), 64: (1.2, 1.2, 1.2), 128: (2.0, 2.0, 2.0)}
    given = []

    def measure(*arguments: object) -> Measured:
        given.append(arguments[1:])
        return Measured(taken, (4.0, 4.0, 8.0))

    monkeypatch.setattr("minifuse.simulate.chunk_cost.measure", measure)
    finding = found(NAME, scale="quick", rounds=5)
    assert given == [((32, 64, 128, 256, 512), 32, 5)]
    (panel,) = finding.panels
    first = panel.points[0].measured
    assert (first["attention_ms"], first["rest_ms"], first["share"]) == (200.0, 1000.0, 0.2)
    assert first["attention_ms_rounds"] == (100.0, 200.0, 300.0)


def test_the_line_that_fits_best() -> None:
    line = Line.of([32, 64, 128], [0.6, 1.0, 1.8])
    assert (line.start, line.slope, line.explained) == (pytest.approx(0.2), pytest.approx(0.0125), pytest.approx(1.0))
    assert line.equal_at == pytest.approx(64)
    assert Line.of([32, 64, 128], [1.8, 1.0, 0.6]).equal_at is None


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            Line(0.2, 0.0125, 0.99),
            ["Attention grows linearly: agrees: a straight line explains 99.0%", "64 to"],
        ),
        (Line(0.0, 1e-5, 0.9), ["Attention grows linearly: does not agree", "longer than any here"]),
        (Line(0.0, 0.0, 0.0), ["at no context"]),
    ],
)
def test_the_notes_tell_whether_it_is_as_in_the_thesis(
    monkeypatch: pytest.MonkeyPatch, line: Line, words: list[str]
) -> None:
    monkeypatch.setattr(Line, "of", lambda contexts, attention: line)
    notes = " ".join(found(NAME, scale="paper").notes)
    assert all(one in notes for one in words)


def test_a_model_of_a_short_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minifuse.papers.pensieve.fig3_4.CHUNK", 512)
    with pytest.raises(UsageError) as refused:
        EXPERIMENTS[NAME].prepare(Conditions(model="tiny"))
    sentence(refused.value, "tiny is 1024", "at least 2048")

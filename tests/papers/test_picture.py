"""Pictures of panels: what is drawn, over what, with the spread of the rounds."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib import image
from matplotlib.figure import Figure

from minifuse.papers import picture as module
from minifuse.papers.experiment import RANGE, Column, Finding, Panel, Point
from minifuse.papers.page import tables
from minifuse.papers.picture import dark_form, picture

X, Y = Column("load", "at", "load", axis="x", log=True), Column("gain\nhere", "measured", "gain", axis="y")
PAPER = Column("gain\npaper", "paper", "gain", axis="y")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are made."""
    found: list[Figure] = []

    class Kept(Figure):
        def __init__(self, *arguments: object, **more: object) -> None:
            super().__init__(*arguments, **more)  # type: ignore[arg-type]
            found.append(self)

    monkeypatch.setattr(module, "Figure", Kept)
    return found


def finding(*panels: Panel) -> Finding:
    return Finding({}, panels, ())


def test_lines_over_numbers_with_the_papers_points_and_the_spread(drawn: list[Figure]) -> None:
    points = (
        Point({"load": 1.0}, {"gain": 2.0, "gain_rounds": (1.5, 2.0, 3.0)}, {"gain": 1.8}),
        Point({"load": 4.0}, {"gain": 1.0, "gain_rounds": (1.0, 1.0, 1.0)}, {}),
    )
    png = picture(finding(Panel("x", (X, Y, PAPER), points)))
    assert png is not None
    assert png.startswith(b"\x89PNG")
    (axes,) = drawn[0].axes
    lines = {str(line.get_label()): list(zip(*line.get_data(), strict=True)) for line in axes.lines}
    assert lines["gain here"] == [(1.0, 2.0), (4.0, 1.0)]
    assert lines["gain paper"] == [(1.0, 1.8)]
    (bars,) = [one for one in axes.collections if len(one.get_paths()) == 2]
    assert [path.vertices[:, 1].tolist() for path in bars.get_paths()] == [[1.5, 3.0], [1.0, 1.0]]
    assert axes.get_xscale() == "log"


def test_bars_over_names_and_lines_over_values_of_their_own(drawn: list[Figure]) -> None:
    name = Column("who", "at", "who")
    bars = Panel("bars", (name, Y), (Point({"who": "a"}, {"gain": 2.0}, {}), Point({"who": "b"}, {"gain": 3.0}, {})))
    own = Column("p90", "measured", "p90", axis="y", over="speed", over_head="requests/s")
    curve = Panel("curve", (X, own), (Point({"load": 1.0}, {"p90": 5.0, "speed": 0.9}, {}),))
    assert picture(finding(bars, curve)) is not None
    first, second = drawn[0].axes
    assert [patch.get_height() for patch in first.patches] == [2.0, 3.0]
    assert [label.get_text() for label in first.get_xticklabels()] == ["a", "b"]
    assert second.lines[0].get_data()[0] == [0.9]
    assert second.get_xlabel() == "requests/s"


def test_what_has_nothing_to_draw_has_no_picture() -> None:
    assert picture(finding(Panel("x", (Column("a", "at", "a"),), (Point({"a": 1}, {}, {}),)))) is None


def test_marks_in_the_heads_of_a_page_say_what_is_drawn() -> None:
    columns = {column.key + column.part: column for column in tables("flover/fig8")[0] if column.form != RANGE}
    assert (columns["interval_msat"].axis, columns["interval_msat"].log) == ("x", True)
    assert columns["interval_msat"].head == "interval\nms"
    assert columns["speedupmeasured"].axis == columns["speeduppaper"].axis == "y"
    assert columns["overlappaper"].axis is None


def test_the_dark_form_inverts_greys_and_keeps_colours() -> None:
    light = np.array([[(1, 1, 1), (0, 0, 0), (0.8, 0.8, 0.8), (0.8, 0.2, 0.2)]])
    written = io.BytesIO()
    image.imsave(written, light, format="png")
    dark = image.imread(io.BytesIO(dark_form(written.getvalue())), format="png")[..., :3]
    assert dark == pytest.approx(np.array([[(0, 0, 0), (1, 1, 1), (0.38, 0.38, 0.38), (0.8, 0.2, 0.2)]]), abs=0.01)

"""Charts, against the lines of the trace."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from minifuse.core.errors import UsageError
from minifuse.show.notebook.played import Played, play
from minifuse.show.notebook.prompts import asks
from minifuse.show.notebook.series import SERIES, draw_series
from minifuse.trace.log import Event

from .runs import run_of
from .words import assert_no_words_overlap


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def in_time(run: Played) -> list[Event]:
    found = [event for event in run.events if event["event"] == "step" and event["work"]]
    return sorted(found, key=lambda event: (event["wall"]["start_s"], event["step"]))


def waiting(run: Played, step: Event) -> int:
    """The requests that had come and were not on the device, told by arrivals, admissions and evictions."""
    start_s = step["wall"]["start_s"]
    came = [e["id"] for e in run.events if e["event"] == "request" and e.get("wall", e)["arrival_s"] <= start_s]
    inside: set[str] = set()
    for event in in_time(run):
        if (event["wall"]["start_s"], event["step"]) <= (start_s, step["step"]):
            inside = (inside | {*event["admitted"]}) - {*event["evicted"]}
    return len({*came} - inside)


OF_STEP = {
    "batch": lambda step: len({name for name, *_ in step["work"]}),
    "computed": lambda step: sum(work[2] - work[1] for work in step["work"]) + step["idle"],
    "idle": lambda step: step["idle"],
    "kv": lambda step: step["kv"][0],
    "host": lambda step: step["kv"][3],
}


@pytest.mark.parametrize(("name", "by"), [("static", "time"), ("vllm", "iterations"), ("fluid", "time")])
def test_bars_are_what_the_trace_counts(name: str, by: Any) -> None:
    run = run_of(name)
    picture = draw_series(run, series=SERIES, by=by)
    assert len(picture.axes) == len(SERIES) == 6
    steps = in_time(run)
    for series, axes in zip(SERIES, picture.axes, strict=True):
        heights = [round(bar.get_height()) for bar in bars(axes)]
        assert heights == [OF_STEP[series](step) if series in OF_STEP else waiting(run, step) for step in steps], series
        if by == "time":
            spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars(axes)]
            wall = [(step["wall"]["start_s"] * 1e3, step["wall"]["end_s"] * 1e3) for step in steps]
            assert [x for span in spans for x in span] == pytest.approx([x for span in wall for x in span])


def test_what_the_runs_are_for_happens() -> None:
    assert any(step["idle"] for step in in_time(run_of("static")))
    assert any(step["kv"][3] for step in in_time(run_of("vllm")))
    assert max(waiting(run_of("static"), step) for step in in_time(run_of("static"))) > 2


def test_memory_has_a_line_at_all_there_is() -> None:
    (axes,) = draw_series(run_of("vllm"), series="kv").axes
    (line,) = [one for one in axes.lines if one.get_gid() == "capacity"]
    assert {*line.get_ydata()} == {48}  # type: ignore[misc]
    assert [text.get_text() for text in axes.texts] == ["all there are: 48"]


def test_a_line_far_above_is_told_in_words_alone() -> None:
    large = play("vllm", asks("sort 7 2 5"), kv_memory="6MiB", label="large")
    (axes,) = draw_series(large, series="kv").axes
    assert [text.get_text() for text in axes.texts] == ["all there are: 4,096"]
    assert not [one for one in axes.lines if one.get_gid() == "capacity"]
    highest = max(bar.get_height() for bar in bars(axes))
    assert highest <= axes.get_ylim()[1] < 2 * highest
    both = draw_series(run_of("vllm"), large, series="kv").axes
    assert [axes.get_ylim()[1] >= 48 for axes in both] == [True, True]
    assert [len([one for one in axes.lines if one.get_gid() == "capacity"]) for axes in both] == [1, 0]


@pytest.mark.parametrize("names", [("orca", "naive"), ("naive", "orca")])
def test_runs_have_the_scale_of_the_highest(names: tuple[str, str]) -> None:
    runs = [play(name, asks("count from 3 to 9", "sort 7 2 5")) for name in names]
    left, right = draw_series(*runs, series="computed").axes
    highest = max(bar.get_height() for axes in (left, right) for bar in bars(axes))
    assert left.get_ylim() == right.get_ylim()
    assert left.get_ylim()[0] == 0 <= highest <= left.get_ylim()[1]


def test_of_cells_nodes_are_counted() -> None:
    for name, unit in (("cellular", "nodes"), ("orca", "tokens")):
        picture = draw_series(run_of(name), series=["computed", "idle"])
        assert [axes.get_ylabel() for axes in picture.axes] == [unit, unit]
        assert picture.axes[0].get_title(loc="left") == f"{unit} computed"


def test_runs_stand_side_by_side_on_the_same_axes() -> None:
    runs = run_of("static"), run_of("orca")
    picture = draw_series(*runs, series=["batch", "queue"])
    upper = picture.axes[:2]
    assert [axes.get_title() for axes in upper] == ["static\n", "orca\n"]
    for line in (picture.axes[:2], picture.axes[2:]):
        assert len({axes.get_ylim() for axes in line}) == 1
    assert len({axes.get_xlim() for axes in picture.axes}) == 1
    assert {axes.get_xlabel() for axes in picture.axes[2:]} == {"ms of virtual time"}


@pytest.mark.parametrize(
    ("series", "told"), [("batches", 'did you mean "batch"'), ([], "was given no series"), (["kv", "x"], "'x'")]
)
def test_an_unknown_series_is_refused(series: Any, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        draw_series(run_of("orca"), series=series)
    assert told in str(refused.value)


@pytest.mark.parametrize("names", [("vllm",), ("static", "orca")])
def test_no_words_overlap(names: tuple[str, ...]) -> None:
    assert_no_words_overlap(draw_series(*map(run_of, names)), 20)


def test_something_else_than_runs_is_refused() -> None:
    with pytest.raises(UsageError, match="draw_series was given 'orca'"):
        draw_series("orca")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'days'"):
        draw_series(run_of("orca"), by="days")  # type: ignore[arg-type]

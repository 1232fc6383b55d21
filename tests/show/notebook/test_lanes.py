"""Lanes: what is drawn of each request, against the trace's own lines."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from minifuse.core.errors import UsageError
from minifuse.show.notebook.colours import owner_colour, tint
from minifuse.show.notebook.lanes import LOOKS, draw_lanes
from minifuse.show.notebook.picture import Picture
from minifuse.show.notebook.played import Played
from minifuse.show.page import PAGE
from minifuse.show.timeline import (
    ENDED,
    HELD,
    IDLE,
    MEANINGS,
    PREPROCESSING,
    PROMPT,
    READY,
    RUNNING,
    SUSPENDED,
    WAITING,
)
from minifuse.trace.log import Event

from .runs import run_of
from .words import assert_no_words_overlap

COMPUTES = (RUNNING, PROMPT, PREPROCESSING)
FILLS = {  # what each sign is filled with, by the names of the page's style
    WAITING: "waiting-soft",
    PREPROCESSING: "apart",
    READY: "ready-soft",
    PROMPT: "prompt",
    RUNNING: "running",
    HELD: "held",
    SUSPENDED: "suspended-soft",
    IDLE: "idle-soft",
}


def boxes(axes: Axes) -> list[tuple[str, str, Rectangle]]:
    """What is drawn: the sign, the request, and the box."""
    found = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_gid()]
    return [(*str(box.get_gid()).split(" ", 1), box) for box in found]  # type: ignore[misc]


def widths(axes: Axes) -> Counter[tuple[str, str]]:
    """How wide the boxes of each sign and request are together."""
    sums: Counter[tuple[str, str]] = Counter()
    for sign, name, box in boxes(axes):
        sums[sign, name] += box.get_width()  # type: ignore[assignment]
    return sums


def steps_of(run: Played) -> list[Event]:
    return [event for event in run.events if event["event"] == "step" and event["work"]]


def words_of(picture: Picture) -> list[str]:
    return [text.get_text() for text in picture.legends[0].get_texts()]


@pytest.mark.parametrize("name", ["static", "orca", "fusion unshuffled", "baton", "vllm", "fluid", "pensieve"])
def test_each_iteration_with_work_of_a_request_is_a_cell(name: str) -> None:
    run = run_of(name)
    (axes,) = draw_lanes(run).axes
    drawn = widths(axes)
    for request in run.tokens:
        computed = sum(drawn[sign, request] for sign in COMPUTES)
        own = [event for event in steps_of(run) if request in {work[0] for work in event["work"]}]
        # With one worker a column is an iteration; beside another worker's, its own go on meanwhile.
        several = len({event["worker"] for event in steps_of(run)}) > 1
        assert computed >= len(own) if several else computed == len(own), request


def test_idle_cells_are_as_many_as_the_trace_counts() -> None:
    run = run_of("static")
    (axes,) = draw_lanes(run).axes
    seen: Counter[int] = Counter()
    for sign, _, box in boxes(axes):
        if sign == IDLE:
            seen.update(range(round(box.get_x()), round(box.get_x() + box.get_width())))
    decodes = {i: event for i, event in enumerate(steps_of(run)) if all(b - a == 1 for _, a, b in event["work"])}
    assert {i: event["idle"] for i, event in decodes.items() if event["idle"]} == dict(seen)
    assert sum(seen.values()) > 5


@pytest.mark.parametrize("name", ["static", "orca", "baton-pd", "vllm", "dynamic"])
def test_times_are_those_of_the_trace(name: str) -> None:
    run = run_of(name)
    (axes,) = draw_lanes(run, by="time").axes
    drawn = widths(axes)
    for request in run.tokens:
        own = [event for event in steps_of(run) if request in {work[0] for work in event["work"]}]
        seconds = sum(event["wall"]["end_s"] - event["wall"]["start_s"] for event in own)
        assert sum(drawn[sign, request] for sign in COMPUTES) == pytest.approx(seconds * 1e3)
        arrival_s = next(event["arrival_s"] for event in run.events if event.get("id") == request)
        first_s = own[0]["wall"]["start_s"]
        assert drawn[WAITING, request] == pytest.approx((first_s - arrival_s) * 1e3, abs=1e-9)
        covered = sum(drawn[sign, request] for sign in (*COMPUTES, WAITING, READY, SUSPENDED, HELD))
        assert covered == pytest.approx((own[-1]["wall"]["end_s"] - arrival_s) * 1e3)


def test_idle_time_is_that_of_the_iterations_that_compute_a_finished_row() -> None:
    run = run_of("static")
    (axes,) = draw_lanes(run, by="time").axes
    decodes = [event for event in steps_of(run) if all(stop - start == 1 for _, start, stop in event["work"])]
    seconds = sum(event["idle"] * (event["wall"]["end_s"] - event["wall"]["start_s"]) for event in decodes)
    drawn = sum(width for (sign, _), width in widths(axes).items() if sign == IDLE)
    assert drawn == pytest.approx(seconds * 1e3)
    assert drawn > 1


def test_who_is_evicted_is_suspended_until_it_comes_back() -> None:
    run = run_of("vllm")
    (axes,) = draw_lanes(run, by="time").axes
    out = {name: event["wall"]["start_s"] for event in steps_of(run) for name in event["evicted"]}
    back = {name: event["wall"]["start_s"] for event in steps_of(run) for name in event["admitted"] if name in out}
    drawn = {name: (box.get_x(), box.get_x() + box.get_width()) for sign, name, box in boxes(axes) if sign == SUSPENDED}
    assert drawn.keys() == out.keys() != set()
    for name, span in drawn.items():
        assert span == pytest.approx((out[name] * 1e3, back[name] * 1e3))


@pytest.mark.parametrize("by", ["iterations", "time"])
def test_each_request_has_a_row_and_ends_once(by: Any) -> None:
    run = run_of("static")
    (axes,) = draw_lanes(run, by=by).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [*run.tokens]
    ends = {str(line.get_gid()): line.get_xdata()[0] for line in axes.lines if line.get_gid()}  # type: ignore[index]
    finished = {name: (i, event) for i, event in enumerate(steps_of(run)) for name in event["finished"]}
    where = {
        name: i + 1 if by == "iterations" else event["wall"]["end_s"] * 1e3 for name, (i, event) in finished.items()
    }
    assert ends == pytest.approx({f"end {name}": at for name, at in where.items()})
    rows = {name: i for i, name in enumerate(run.tokens)}
    for _, name, box in boxes(axes):
        assert box.get_y() < rows[name] < box.get_y() + box.get_height()


@pytest.mark.parametrize("name", ["static", "baton-pd", "vllm"])
def test_colours_are_those_of_the_replay_page(name: str) -> None:
    (axes,) = draw_lanes(run_of(name)).axes
    seen = {sign: to_hex(box.get_facecolor()) for sign, _, box in boxes(axes)}
    style = (PAGE / "style.css").read_text().partition("@media")[0]
    assert seen.items() <= {sign: style.split(f"--{fill}: ")[1][:7] for sign, fill in FILLS.items()}.items()
    assert len({*seen.values()}) == len(seen) > 2


def test_names_have_the_colour_of_their_request() -> None:
    run = run_of("orca")
    (axes,) = draw_lanes(run).axes
    seen = {label.get_text(): label.get_color() for label in axes.get_yticklabels()}
    assert seen == {name: tint(owner_colour(run, name), 0.35, towards=0) for name in run.tokens}
    assert len({*seen.values()}) == len(seen)


def test_the_legend_tells_what_occurs_and_nothing_else() -> None:
    for name in ("static", "orca", "baton-pd", "vllm"):
        picture = draw_lanes(run_of(name))
        occurring = {sign for sign, *_ in boxes(picture.axes[0])}
        assert words_of(picture) == [MEANINGS[sign] for sign in LOOKS if sign in occurring]
    assert MEANINGS[IDLE] in words_of(draw_lanes(run_of("static")))


def test_columns_are_named_by_their_iterations() -> None:
    run = run_of("dynamic")  # it waits for a window, which is a column without a number
    (axes,) = draw_lanes(run).axes
    pauses = [event for event in run.events if event["event"] == "wait" and event["reasons"]]
    assert pauses
    named = {int(label.get_text()): at for label, at in zip(axes.get_xticklabels(), axes.get_xticks(), strict=True)}
    first = steps_of(run)[0]
    assert (
        named[first["step"]] == len([one for one in pauses if one["wall"]["end_s"] <= first["wall"]["start_s"]]) + 0.5
    )


def test_cells_have_the_letter_of_their_type() -> None:
    run = run_of("cellular")
    picture = draw_lanes(run)
    letters = [text.get_text() for text in picture.axes[0].texts]
    assert letters == ["l"] * sum(len(event["work"]) for event in steps_of(run))
    assert "l: computes a node of lstm" in words_of(picture)


def test_several_runs_have_one_axis() -> None:
    runs = run_of("static"), run_of("orca")
    picture = draw_lanes(*runs, by="time")
    assert len({axes.get_xlim() for axes in picture.axes}) == 1
    assert picture.axes[0].get_xlim()[1] == pytest.approx(max(run.history.last_s for run in runs) * 1e3)
    assert [axes.get_title(loc="left").split(":")[0] for axes in picture.axes] == ["static", "orca"]


def test_a_picture_is_shown_at_half_its_points() -> None:
    png, shown = draw_lanes(run_of("orca"))._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert 300 < shown["width"] < 1000
    assert int.from_bytes(png[16:20], "big") // 2 == shown["width"]


def test_no_words_overlap() -> None:
    assert_no_words_overlap(draw_lanes(run_of("baton-pd"), run_of("static")), 30)


@pytest.mark.parametrize(
    ("given", "more", "told"),
    [((), {}, "draw_lanes was given nothing"), (("orca",), {}, "'orca'"), (None, {"by": "days"}, "'days'")],
)
def test_what_cannot_be_drawn_is_refused(given: Any, more: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        draw_lanes(*((run_of("orca"),) if given is None else given), **more)
    assert told in str(refused.value)


def test_ends_are_told_apart_from_what_breaks_off() -> None:
    (axes,) = draw_lanes(run_of("orca")).axes
    assert {to_hex(line.get_color()) for line in axes.lines if line.get_gid()} == {"#1a1d21"}  # type: ignore[arg-type]
    assert ENDED not in {sign for sign, *_ in boxes(axes)}

"""Maps of memory: every slot as it is drawn, against the places, the counts and the moves of the trace."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Rectangle

from minifuse.core.errors import UsageError
from minifuse.show.notebook.colours import owner_colour, tint
from minifuse.show.notebook.memory import draw_memory
from minifuse.show.notebook.played import Played, play
from minifuse.show.notebook.prompts import asks
from minifuse.trace.log import Event, whole_tables

from .runs import run_of
from .words import assert_no_words_overlap

GAP = 0.6  # between boxes, in slots


def steps_of(run: Played) -> dict[int, Event]:
    return {event["step"]: event for event in whole_tables(run.events) if event["event"] == "step"}


def cells(axes: Axes, gid: str) -> dict[tuple[float, float], str]:
    """Every slot in boxes whose name begins so: its column and its line, and the colour."""
    found = {}
    for patch in axes.patches:
        if isinstance(patch, Rectangle) and str(patch.get_gid()).startswith(gid):
            for i in range(round(patch.get_width())):
                found[round(patch.get_x() + i, 3), round(patch.get_y(), 3)] = to_hex(patch.get_facecolor())
    return found


def where(slot: int, unit: int, across: int) -> tuple[float, int]:
    """The column and the number of the line of a slot, in boxes of `unit` slots, `across` in a line."""
    line, within = divmod(slot, unit * across)
    return round(within + within // unit * GAP, 3), line


def ends_of(arrow: FancyArrowPatch) -> list[tuple[float, float]]:
    """Where an arrow begins and ends: a straight one, or a curve."""
    straight = arrow._posA_posB  # type: ignore[attr-defined]
    points = straight or arrow._path_original.vertices[[0, -1]]  # type: ignore[attr-defined]
    return [(float(x), float(y)) for x, y in points]


def lines(drawn: dict[tuple[float, float], str], every: list[float]) -> dict[tuple[float, int], str]:
    """The same with the numbers of lines."""
    return {(x, every.index(y)): colour for (x, y), colour in drawn.items()}


def slots_of(place: list[Any]) -> list[int]:
    if len(place) == 1:
        return [slot for first, count in place[0] for slot in range(first, first + count)]
    if isinstance(place[0], list):
        return [block * place[1] + i for block in place[0] for i in range(place[1])]
    return [*range(place[0], place[0] + place[1])]


# How slots lie in the lines of a map: slots of a box, boxes of a line.
FORMS: dict[str, Callable[[Event], tuple[int, int]]] = {
    "orca": lambda step: (64, 1),
    "static": lambda step: (step["shape"]["stride"], 1),
    "fusion": lambda step: (32, 2),
    "vllm": lambda step: (4, 16),
    "pensieve": lambda step: (8, 8),
}


@pytest.mark.parametrize("name", FORMS)
def test_slots_have_the_colour_of_the_request_whose_place_they_are_in(name: str) -> None:
    run = run_of(name)
    steps = steps_of(run)
    first = FORMS[name](next(iter(steps.values())))
    for number in run.steps[:: max(1, len(run.steps) // 3)]:
        (axes,) = draw_memory(run, number).axes
        ground = sorted({y for _, y in cells(axes, "ground")})
        drawn = lines(cells(axes, "device written"), ground)
        unit, across = first
        for (request, _, stop), place in zip(steps[number]["work"], steps[number]["places"], strict=True):
            for slot in slots_of(place)[:stop]:
                assert drawn[where(slot, unit, across)] == owner_colour(run, request), (number, slot)
        fresh = sum(end - start for _, start, end in steps[number]["work"])
        marks = [one for one in axes.patches if one.get_gid() == "fresh"]
        assert sum(round(mark.get_width()) for mark in marks if isinstance(mark, Rectangle)) == fresh


@pytest.mark.parametrize("name", ["orca", "vllm"])
def test_as_many_slots_are_drawn_as_the_trace_counts(name: str) -> None:
    run = run_of(name)
    for number in run.steps[::6]:
        (axes,) = draw_memory(run, number).axes
        used, _, capacity, host = steps_of(run)[number]["kv"]
        assert len(cells(axes, "device written")) == used
        assert len(cells(axes, "host written")) == host
        top = [y for _, y in cells(axes, "ground")]
        assert len([y for y in top if y < min(top) + (2 if name == "orca" else 1)]) == capacity


def test_what_is_kept_is_drawn() -> None:
    run = run_of("pensieve")
    kept = {
        number: step["kept"] for number, step in steps_of(run).items() if step["work"] and any(step.get("kept", ()))
    }
    assert len(kept) > 4
    for number, (on_device, _) in list(kept.items())[::3]:
        (axes,) = draw_memory(run, number).axes
        assert len(cells(axes, "device kept")) == on_device


def test_what_is_set_aside_is_a_tint() -> None:
    run = run_of("orca")
    (axes,) = draw_memory(run, run.steps[0]).axes
    assert {*cells(axes, "device reserved").values()} == {tint(owner_colour(run, "r0"), 0.75)}
    assert len(cells(axes, "device reserved")) > 10


@pytest.mark.parametrize("name", ["static", "baton", "fusion unshuffled"])
def test_idle_slots_are_those_that_the_trace_counts(name: str) -> None:
    run = run_of(name)
    idle = {number: step for number, step in steps_of(run).items() if step["idle"]}
    assert len(idle) > 2
    for number, step in [*idle.items()][::2]:
        (axes,) = draw_memory(run, number).axes
        width = step["shape"]["width"] if step["shape"]["kind"] == "Region" else 1
        assert len(cells(axes, "device idle")) == step["idle"] * width
        if step["shape"]["kind"] == "Rectangle":  # memory counts the whole window of columns as in use
            needed = [cells(axes, f"device {state}") for state in ("written", "idle", "lying")]
            ring = {
                column % step["shape"]["stride"]
                for column in range(step["shape"].get("begin", 0), step["shape"]["stop"])
            }
            # A row is a ring: what is set aside for its request may begin in columns that are not yet released.
            again = [x for x, _ in cells(axes, "device reserved") if x in ring]
            assert sum(map(len, needed)) + len(again) == step["kv"][0]


def test_rows_of_states_are_idle_wave_by_wave() -> None:
    run = run_of("graph-padded")
    for number, step in steps_of(run).items():
        (axes,) = draw_memory(run, number).axes
        assert len(cells(axes, "device idle")) == step["idle"] > 0
        assert sum(text.get_text().startswith("device, wave ") for text in axes.texts) == len(step["waves"])


@pytest.mark.parametrize("name", ["fusion", "vllm", "fluid", "pensieve", "baton-pd"])
def test_each_move_is_an_arrow(name: str) -> None:
    run = run_of(name)
    moving = {number: step for number, step in steps_of(run).items() if step["moves"]}
    assert moving
    for number, step in list(moving.items())[:3]:
        (axes,) = draw_memory(run, number).axes
        arrows = Counter(one.get_gid() for one in axes.patches if isinstance(one, FancyArrowPatch))
        assert arrows == Counter(f"move {move[0]}" for move in step["moves"])
        outlined = [one for one in axes.patches if one.get_gid() == "moved" and isinstance(one, Rectangle)]
        assert sum(round(one.get_width()) for one in outlined) == 2 * sum(move[3] for move in step["moves"])
        for kind, count in Counter({move[0]: 0 for move in step["moves"]}).items():
            slots = count + sum(move[3] for move in step["moves"] if move[0] == kind)
            assert f"{kind.replace('_', ' ')}: {slots:,} slot" in axes.get_title(loc="left")


def test_an_arrow_goes_from_where_the_buffer_was_to_where_it_is() -> None:
    run = run_of("fusion")
    number, step = next((number, step) for number, step in steps_of(run).items() if step["moves"])
    (axes,) = draw_memory(run, number).axes
    ((_, source, target, count, *_),) = step["moves"]
    (arrow,) = [one for one in axes.patches if isinstance(one, FancyArrowPatch)]
    start, end = ends_of(arrow)
    assert start[0] == pytest.approx(where(source, 32, 2)[0] + count / 2)
    assert end[0] == pytest.approx(where(target, 32, 2)[0] + count / 2)
    assert (start[1] > end[1]) == (source >= 64 > target)


BUFFERS = asks((1, 14), (1, 5), (1, 14), (1, 5), (1, 9), (1, 14))


def test_an_arrow_within_a_line_leaves_neither_the_picture_nor_the_space_above_its_line() -> None:
    """Iteration 5 moves a buffer over two others of the first line."""
    (fusion, pensieve) = play("fusion", BUFFERS), run_of("pensieve")
    found = 0
    for run, steps in (
        (fusion, [5]),
        (pensieve, [n for n, step in steps_of(run_of("pensieve")).items() if step["moves"]][:8]),
    ):
        for number in steps:
            picture = draw_memory(run, number)
            (axes,) = picture.axes
            canvas = FigureCanvasAgg(picture)
            canvas.draw()
            title = axes._left_title.get_window_extent(canvas.get_renderer())  # type: ignore[attr-defined]
            headlines = [
                text.get_window_extent() for text in axes.texts if text.get_text().startswith(("device", "host"))
            ]
            for arrow in [one for one in axes.patches if isinstance(one, FancyArrowPatch)]:
                extent = arrow.get_window_extent()
                assert axes.bbox.y0 <= extent.y0
                assert extent.y1 <= axes.bbox.y1
                assert not extent.overlaps(title)
                if len({y for _, y in ends_of(arrow)}) == 1:
                    found += 1
                    assert not any(extent.overlaps(headline) for headline in headlines)
    assert found


def test_every_block_with_slots_of_a_request_has_its_name_once() -> None:
    run = play("vllm", asks((32, 3), (16, 3)), memory__block_size=4)
    (axes,) = draw_memory(run, 0).axes
    names = Counter(
        (text.get_text(), round(text.get_position()[0] // 4.6), text.get_position()[1]) for text in axes.texts
    )
    named = {key: count for key, count in names.items() if key[0] in ("r0", "r1")}
    assert {*named.values()} == {1}
    assert Counter(name for name, *_ in named) == {"r0": 8, "r1": 4}


def test_slots_of_later_tasks_are_told_apart_from_those_that_are_drawn() -> None:
    run = run_of("cellular")
    ahead = 0
    for number, step in steps_of(run).items():
        picture = draw_memory(run, number)
        (axes,) = picture.axes
        drawn, used = len(cells(axes, "device written")), step["kv"][0]
        title = axes.get_title(loc="left")
        assert f": {drawn} of 32 slots in use" in title
        assert (f"{used - drawn} more set aside for later tasks" in title) == (used > drawn)
        ahead += used > drawn
        assert picture.legends[0].get_texts()[0].get_text() == "has a state that is needed"
    assert ahead


def test_each_wave_has_the_device_as_it_is_then() -> None:
    run = run_of("fluid")
    number, step = next((number, step) for number, step in steps_of(run).items() if len(step["waves"]) > 2)
    (axes,) = draw_memory(run, number).axes
    ground = sorted({y for _, y in cells(axes, "ground")})
    for wave, (first, stop) in enumerate(step["waves"]):  # 48 slots of blocks of 4 are one line
        drawn = lines(cells(axes, "device written"), ground)
        for (request, _, end), place in list(zip(step["work"], step["places"], strict=True))[first:stop]:
            for slot in slots_of(place)[:end]:
                assert drawn[where(slot, 4, 16)[0], wave] == owner_colour(run, request)
    headlines = [text.get_text() for text in axes.texts if text.get_text().startswith("device, wave")]
    uploaded = sum(move[3] for move in step["moves"] if move[0] == "upload" and move[7] == 1)
    assert f"upload: {uploaded} slot" in headlines[1]


def test_steps_stand_one_above_the_other() -> None:
    run = run_of("orca")
    picture = draw_memory(run, [3, 5])
    assert [axes.get_title(loc="left").split(",")[1] for axes in picture.axes] == [" iteration 3", " iteration 5"]


@pytest.mark.parametrize("name", ["static", "vllm", "fluid", "pensieve"])
def test_no_words_overlap(name: str) -> None:
    run = run_of(name)
    moving = [number for number, step in steps_of(run).items() if step["moves"]]
    assert_no_words_overlap(draw_memory(run, moving[0] if moving else run.steps[-1]), 6)


def test_a_name_stands_only_where_there_is_room_for_it() -> None:
    requests = asks("count from 3 to 9", "sort 7 2 5", names=["rhinoceros", "o"])
    picture = draw_memory(play("vllm", requests, memory__block_size=2), 1)
    assert_no_words_overlap(picture, 5)
    names = [text.get_text() for text in picture.axes[0].texts]
    assert "o" in names
    assert "rhinoceros" not in names


@pytest.mark.parametrize("step", [99, -1, [], [0, 99], True, "3", 1.5])
def test_an_iteration_that_there_is_not_is_refused(step: Any) -> None:
    with pytest.raises(UsageError, match="the iterations of orca are 0 to 22: give one, or several"):
        draw_memory(run_of("orca"), step)


def test_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["minifuse.show.notebook.memory"], "MOST_SLOTS", 127)
    with pytest.raises(UsageError, match="orca uses 128 slots of the device, and at most 127 are drawn"):
        draw_memory(run_of("orca"), 0)


def test_of_much_memory_as_much_is_drawn_as_is_ever_used() -> None:
    run = play("orca", asks((100, 20)), kv_memory=None)
    (axes,) = draw_memory(run, 10).axes
    assert len(cells(axes, "ground")) == 119 < run.capacity

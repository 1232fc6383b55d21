"""The picture in characters."""

from __future__ import annotations

from events import request
from runs_told import apart, beside, cells, padded, preempted, told

from minifuse.show.timeline import draw_timeline
from minifuse.trace.history import History
from minifuse.trace.log import Event


def rows(events: list[Event], columns: int = 60, most: int = 10) -> dict[str, str]:
    return draw_timeline(History.of(events), columns, most).rows


def test_an_eviction() -> None:
    assert rows(preempted()) == {
        "a": "p#~~p|",
        "b": "..p|  ",
        "c": " ....|",
    }


def test_idle_rows_and_a_pause() -> None:
    picture = draw_timeline(History.of(padded()), 60, 10)
    assert picture.rows == {
        "a": ".p#|",
        "b": ".|xx",
    }
    assert picture.idle == "  55"
    assert picture.memory == ""  # hardly any of it was ever used
    assert list(picture.legend) == [".", "p", "#", "x", "|"]


def test_a_row_goes_on_idle_while_prompts_are_computed_apart_in_rows_of_their_own() -> None:
    """As `pd` does, on one worker: c's prompt from 3 to 4 s."""
    events = padded()
    rows_apart = {"kind": "Rectangle", "offset": 16, "rows": 1, "stride": 8, "start": 0, "stop": 4}
    prompt = told(
        3, [["c", 0, 4]], {"c": [7]}, shape=rows_apart, places=[[16, 8]], admitted=["c"], phase="preprocessing"
    )
    events[6] |= {"step": 4, "wall": {"start_s": 4.0, "end_s": 5.0}}
    events = [*events[:6], request("c", 3.0, 4), prompt, *events[6:]]
    assert rows(events) == {"a": ".p#-|", "b": ".|x x", "c": "   o:"}


def test_a_prompt_computed_apart() -> None:
    """Iterations of two workers side by side: each shows what the other does meanwhile."""
    assert rows(apart()) == {
        "b": "p##| ",
        "a": " oo:|",
    }


def test_iterations_that_overlap_stand_in_the_order_of_their_ends() -> None:
    """Ends: 1 (a), 2 (a), 2.5 (b), 3 (a), 4 (a and b), 5 (a and b), 5.5 (c), 6 (b), 7 (c)."""
    assert rows(beside()) == {
        "a": "op###|   ",
        "b": ".oo:p##| ",
        "c": "....ooo:|",
    }


def test_what_was_begun_for_a_request_that_has_ended_is_idle() -> None:
    """As where the next iteration is begun before the last has told its tokens."""
    events = preempted()
    events[-2]["work"].append(["b", 3, 4])
    events[-2]["places"].append([0, 8])
    assert rows(events)["b"] == "..p| x"


def test_cells_by_the_letter_of_their_type() -> None:
    picture = draw_timeline(History.of(cells()), 60, 10)
    assert picture.rows == {"a": "ee| ", "b": "e--|"}
    assert picture.legend["e"] == "computes nodes of encoder"


def test_columns_are_binned_when_there_are_more_than_fit() -> None:
    """Of two, the one that is told rather; an end always."""
    picture = draw_timeline(History.of(preempted()), 3, 10)
    assert picture.per_column == 2
    assert picture.rows == {"a": "p~|", "b": ".| ", "c": "..|"}
    assert draw_timeline(History.of(preempted()), 1, 10).rows == {"a": "|", "b": "|", "c": "|"}


def test_memory_in_tenths_of_its_capacity() -> None:
    assert draw_timeline(History.of(preempted()), 60, 10).memory == "352000"


def test_rows_are_left_out_from_the_last_to_arrive_on() -> None:
    picture = draw_timeline(History.of(preempted()), 60, 2)
    assert (list(picture.rows), picture.left_out) == (["a", "b"], 1)


def test_where_rows_are_left_out_the_picture_ends_with_those_that_are_shown() -> None:
    events = preempted()
    late: Event = {"event": "request", "id": "late", "arrival_s": 6.0, "prompt_tokens": 1}
    tail = [told(6, [["late", 0, 1]], {}, admitted=["late"]), told(7, [["late", 1, 2]], {})]
    whole = History.of([*events[:-1], late, *tail])
    assert draw_timeline(whole, 60, 4).rows["a"] == "p#~~p|  "
    picture = draw_timeline(whole, 60, 3)
    assert (picture.rows["a"], picture.num_columns, picture.in_all) == ("p#~~p|", 6, 8)


def test_who_was_aborted_while_it_waited_ends_there() -> None:
    aborted: Event = {"event": "aborted", "id": "c", "wall": {"end_s": 3.5}}
    events = [*preempted()[:8], aborted]
    assert rows(events)["c"] == " ..!"


def test_a_run_without_iterations() -> None:
    picture = draw_timeline(History.of(preempted()[:3]), 60, 10)
    assert (picture.rows, picture.num_columns) == ({"a": "", "b": ""}, 0)

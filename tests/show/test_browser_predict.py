"""Predict, in a browser: the page asks, and tells the answer, its reason and the score."""

from __future__ import annotations

import pytest

from .conftest import Screen
from .crowd import FEW_SLOTS, SWAP, Options, crowd_page
from .questions import admitting, asked, choices, choose, columns, numbers, score, told


def test_who_is_admitted_is_asked_of_those_that_wait_and_told_with_the_reasons_of_the_trace(screen: Screen) -> None:
    stop = admitting("orca")[0]
    step = columns("orca")[stop]
    screen.open(crowd_page("orca"), f"#stops={stop}")
    screen.press("end")
    assert "Which requests will be admitted?" in asked(screen)
    offered = choices(screen)
    others = [name for _, name, _ in step["reasons"]]
    assert set(offered) == {*numbers(step["admitted"]), *numbers(others)}
    assert screen.js("return document.activeElement.closest('.predict-question') !== null")
    choose(screen, *numbers(step["admitted"]))
    screen.click(".predict-answer")
    assert screen.state()["position"] == stop
    assert told(screen).startswith("Right.")
    for _, name, text in step["reasons"]:
        assert f"{name} {text}" in told(screen)
    assert score(screen) == "1 of 1 right"
    assert asked(screen) == ""


def test_a_wrong_answer_costs_and_the_right_one_is_told(screen: Screen) -> None:
    first, second, *_ = admitting("orca")
    step = columns("orca")[first]
    screen.open(crowd_page("orca"), f"#stops={first},{second}")
    screen.press("end")
    choose(screen, *numbers([step["reasons"][0][1]]))
    screen.click(".predict-answer")
    assert told(screen).startswith("Not quite.")
    assert step["admitted"][0] in told(screen)
    assert score(screen) == "0 of 1 right"
    screen.click(".predict-next")
    assert screen.state()["position"] == second - 1
    choose(screen, *numbers(columns("orca")[second]["admitted"]))
    screen.click(".predict-answer")
    assert score(screen) == "1 of 2 right"
    screen.press("end")
    assert screen.state()["position"] == len(columns("orca")) - 1  # what was asked is not asked again
    screen.press("home")
    screen.press("end")
    assert screen.state()["position"] == len(columns("orca")) - 1


def test_who_is_evicted_with_the_reason_of_the_trace(screen: Screen) -> None:
    steps = columns("vllm", SWAP)
    stops = [i for i, step in enumerate(steps) if step.get("evicted")]
    screen.open(crowd_page("vllm", SWAP), "#predict=evicted")
    screen.press("end")
    for stop in stops[:2]:
        step = steps[stop]
        assert asked(screen) == f"Iteration {stop}: Which requests will be evicted?"
        ran = {name for name, *_ in steps[stop - 1]["work"]} - set(steps[stop - 1]["finished"])
        assert set(numbers(step["evicted"])) < set(choices(screen)) <= {*numbers(sorted(ran))}
        choose(screen, *numbers(step["evicted"]))
        screen.click(".predict-answer")
        for name in step["evicted"]:
            assert f"{name} {next(text for _, one, text in step['reasons'] if one == name)}" in told(screen)
        screen.click(".predict-next")
    assert score(screen) == "2 of 2 right"


def test_which_window_is_shuffled_is_answered_with_the_keyboard_alone(screen: Screen) -> None:
    steps = columns("fusion", FEW_SLOTS)
    stop = next(i for i, step in enumerate(steps) if any(move[0] == "shuffle" for move in step.get("moves", ())))
    shape = steps[stop]["shape"]
    screen.open(crowd_page("fusion", FEW_SLOTS), "#predict=shuffled")
    screen.press("end")
    assert screen.state()["position"] == stop - 1
    offered = choices(screen)
    assert len(offered) > 1
    last = shape["offset"] + shape["size"] - 1
    name = f"slot {last}" if shape["size"] == 1 else f"slots {shape['offset']} to {last}"
    assert offered[str(shape["offset"])] == name
    screen.until("return document.activeElement.name === 'predict-choice'")
    screen.press("space", *["down"] * [*offered].index(str(shape["offset"])), "enter")
    assert told(screen).startswith(f"Right. Iteration {stop} on the main stream: {name}")
    move = next(move for move in steps[stop]["moves"] if move[0] == "shuffle")
    width = shape["width"]
    assert f"slot {move[1] // width} is copied to slot {move[2] // width}: {move[3]} tokens" in told(screen)
    assert screen.state()["position"] == stop
    screen.press("enter")  # the focus is on what goes on
    assert screen.state()["position"] > stop


def test_skipping_is_counted_apart(screen: Screen) -> None:
    stop = admitting("orca")[0]
    screen.open(crowd_page("orca"), f"#stops={stop}")
    screen.press("end")
    screen.click(".predict-skip")
    assert screen.state()["position"] == stop
    assert told(screen).startswith("Skipped.")
    assert columns("orca")[stop]["admitted"][0] in told(screen)
    assert score(screen) == "no answers yet, 1 skipped"


@pytest.mark.parametrize(("name", "options"), [("static", ()), ("vllm", SWAP)])
def test_who_will_run_is_asked_where_others_run_than_before(name: str, options: Options, screen: Screen) -> None:
    steps = columns(name, options)
    screen.open(crowd_page(name, options), "#predict=running")
    screen.press("end")
    stop = screen.state()["position"] + 1
    assert asked(screen) == f"Iteration {stop}: Which requests will run in it?"
    ran = {work[0] for work in steps[stop - 1]["work"]}
    runs = sorted({work[0] for work in steps[stop]["work"]})
    assert ran != set(runs)
    offered = choices(screen)
    assert set(numbers(runs)) <= set(offered)
    finished = {one for step in steps[:stop] for one in step.get("finished", {})}
    assert not set(numbers(sorted(finished))) & set(offered)
    choose(screen, *numbers(runs))
    screen.click(".predict-answer")
    assert told(screen).startswith(f"Right. Iteration {stop}: {', '.join(runs)} run")
    assert score(screen) == "1 of 1 right"


def test_an_answer_without_a_choice_is_told(screen: Screen) -> None:
    stop = admitting("orca")[0]
    screen.open(crowd_page("orca"), f"#stops={stop}")
    screen.press("end")
    screen.click(".predict-answer")
    assert "Nothing is chosen: choose at least one, or skip." in screen.text("predict")
    assert asked(screen)
    assert score(screen) == "no answers yet"

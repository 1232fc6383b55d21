"""Predict, in a browser: the page stops, asks, holds back what is later, and tells the answer and its reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minifuse.replay.page import assemble
from minifuse.replay.record import read_run, record
from minifuse.trace import Event, read_trace

from .conftest import Screen
from .crowd import FEW_SLOTS, SWAP, WAVES, Options, crowd_page, crowd_trace

QUESTION = ".predict-question"


def columns(name: str, options: Options = ()) -> list[Event]:
    """Steps and waits, as the page counts them."""
    return [event for event in read_trace(crowd_trace(name, options)) if event["event"] in ("step", "wait")]


def asked(screen: Screen) -> str:
    """The question that is open, or ""."""
    return str(screen.js("return document.querySelector('.predict-question legend')?.textContent ?? ''"))


def choices(screen: Screen) -> dict[str, str]:
    """What can be chosen: value -> text."""
    found: dict[str, str] = screen.js(
        "return Object.fromEntries([...document.querySelectorAll('.predict-choice')].map((label) =>"
        " [label.querySelector('input').value, label.textContent.trim()]))"
    )
    return found


def choose(screen: Screen, *values: str) -> None:
    for value in values:
        screen.click(f'{QUESTION} input[value="{value}"]')


def told(screen: Screen) -> str:
    return str(screen.js("return document.querySelector('.predict-result').textContent"))


def score(screen: Screen) -> str:
    return str(screen.js("return document.querySelector('.predict-score').textContent"))


def numbers(names: list[str]) -> list[str]:
    """The page's numbers of requests r0, r1, ..."""
    return [name.removeprefix("r") for name in names]


def admitting(name: str, options: Options = ()) -> list[int]:
    """Columns that admit some while others wait, with what is told of the others."""
    steps = columns(name, options)
    return [i for i, step in enumerate(steps) if i and step.get("admitted") and step["reasons"]]


def test_it_stops_where_the_address_says_and_holds_back_what_is_later(screen: Screen) -> None:
    first, second, *_ = admitting("orca")
    screen.open(crowd_page("orca"), f"#stops={second},{first}")
    assert asked(screen) == ""
    screen.press("end")
    assert screen.state()["position"] == first - 1
    assert asked(screen).startswith(f"Iteration {first}: ")
    for key in ("right", "end", "space"):
        screen.press(key)
        assert screen.state()["position"] == first - 1, key
    screen.js(
        "const one = document.getElementById('scrubber'); one.value = one.max; one.dispatchEvent(new Event('input'))"
    )
    assert screen.state()["position"] == first - 1
    assert screen.js("return document.getElementById('scrubber').value") == str(first - 1)
    screen.js("window.app.select(0)")  # what was before may be looked at again
    assert screen.state()["position"] == 0
    assert asked(screen).startswith(f"Iteration {first}: ")


def test_nothing_of_what_is_asked_can_be_seen(screen: Screen) -> None:
    stop = next(i for i, step in enumerate(columns("vllm", SWAP)) if step.get("evicted"))
    name = columns("vllm", SWAP)[stop]["evicted"][0]
    screen.open(crowd_page("vllm", SWAP), f"#stops={stop}&request={name}")
    screen.press("end")
    covers = (
        "const veils = [...document.querySelectorAll('.predict-veil')].map((one) => one.getBoundingClientRect());"
        "const hosts = ['lanes-a', 'charts-a'].map((id) => document.getElementById(id).getBoundingClientRect());"
        "const {axis, lanes} = window.app.a;"
        "const from = lanes.host.clientWidth - lanes.seen + axis.right(window.app.index) - axis.left;"
        "return veils.map(({left, right, height}, k) => [left - hosts[k].left - from, right - hosts[k].right, height])"
    )
    lanes, charts = screen.until(f"const found = (() => {{ {covers} }})(); return found.length === 2 && found")
    for left, right, height in (lanes, charts):
        assert abs(left) < 2
        assert abs(right) < 2
        assert height > 50
    entries = "return [...document.querySelectorAll('#story-a li button')].map((one) => Number(one.dataset.iteration))"
    assert max(screen.js(entries)) < stop
    assert "evicted" not in screen.text("story-a")
    assert screen.js("return window.app.a.memory.frame.index") == stop - 1
    screen.click(".predict-skip")
    assert screen.js("return document.querySelectorAll('.predict-veil').length") == 0
    assert stop in screen.js(entries)


def test_who_is_admitted_is_asked_of_those_that_wait_and_told_with_the_reasons_of_the_trace(screen: Screen) -> None:
    stop = admitting("orca")[0]
    step = columns("orca")[stop]
    screen.open(crowd_page("orca"), f"#stops={stop}")
    screen.press("end")
    assert "Who will be admitted?" in asked(screen)
    offered = choices(screen)
    others = [name for _, name, _ in step["reasons"]]
    assert set(offered) == {*numbers(step["admitted"]), *numbers(others), "nobody"}
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
    choose(screen, "nobody")
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


def test_nobody_and_somebody_exclude_each_other(screen: Screen) -> None:
    stop = admitting("orca")[0]
    screen.open(crowd_page("orca"), f"#stops={stop}")
    screen.press("end")
    name = numbers(columns("orca")[stop]["admitted"])[0]
    choose(screen, name, "nobody")
    checked = "return [...document.querySelectorAll('.predict-question input:checked')].map((one) => one.value)"
    assert screen.js(checked) == ["nobody"]
    choose(screen, name)
    assert screen.js(checked) == [name]


def test_who_is_evicted_with_the_reason_of_the_trace(screen: Screen) -> None:
    steps = columns("vllm", SWAP)
    stops = [i for i, step in enumerate(steps) if step.get("evicted")]
    screen.open(crowd_page("vllm", SWAP), "#predict=evicted")
    screen.press("end")
    for stop in stops[:2]:
        step = steps[stop]
        assert asked(screen) == f"Iteration {stop}: Who will be evicted?"
        ran = {name for name, *_ in steps[stop - 1]["work"]} - set(steps[stop - 1]["finished"])
        assert set(numbers(step["evicted"])) < set(choices(screen)) <= {*numbers(sorted(ran)), "nobody"}
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
    assert told(screen).startswith(f"Right. Iteration {stop}: {name}")
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


def test_it_is_switched_on_and_off_by_hand_and_the_address_tells(screen: Screen) -> None:
    from selenium.webdriver.support.select import Select

    screen.open(crowd_page("vllm", SWAP))
    screen.press("end")
    assert screen.state()["position"] == len(columns("vllm", SWAP)) - 1
    screen.press("home")
    screen.click(".predict-on")
    Select(screen.find(".predict-kind")).select_by_visible_text("someone is evicted")
    stops = [i for i, step in enumerate(columns("vllm", SWAP)) if step.get("evicted")]
    assert f"{len(stops)} stops are left" in screen.text("predict")
    screen.click("#end")  # with the focus in the list, the key would choose from it
    assert screen.state()["position"] == stops[0] - 1
    screen.until("return location.hash.includes('predict=evicted')")
    screen.click(".predict-on")
    assert asked(screen) == ""
    screen.press("end")
    assert screen.state()["position"] == len(columns("vllm", SWAP)) - 1
    screen.until("return !location.hash.includes('predict')")


def test_playing_stops_at_a_question(screen: Screen) -> None:
    stop = admitting("orca")[0]
    screen.open(crowd_page("orca"), f"#stops={stop}")
    screen.js("document.getElementById('speed').value = '60'")
    screen.press("space")
    screen.until("return document.querySelector('.predict-question legend') !== null")
    screen.until("return !window.app.playing")
    assert screen.state()["position"] == stop - 1


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("stops=abc", "The address has stops=abc: give whole numbers from 1 on, as in stops=10,20,35."),
        ("stops=0,-2", "The address has stops=0,-2: give whole numbers from 1 on, as in stops=10,20,35."),
        ("predict=when", "The address has predict=when: give any, evicted, shuffled, admitted, running."),
    ],
)
def test_an_address_that_cannot_be_read_is_told(address: str, said: str, screen: Screen) -> None:
    screen.open(crowd_page("orca"), f"#{address}")
    assert said in screen.text("predict")
    screen.press("end")
    assert screen.state()["position"] == len(columns("orca")) - 1


def test_stops_beyond_the_run_and_at_waits_are_told(screen: Screen) -> None:
    screen.open(crowd_page("orca"), "#stops=99999")
    assert "iteration 99999 is not one of this run's" in screen.text("predict")


def test_another_run_has_questions_of_its_own(screen: Screen, tmp_path: Path) -> None:
    """A question about one run is closed when another is looked at; the score stays."""
    page = tmp_path / "two.html"
    runs = [read_run(crowd_trace("static")), read_run(crowd_trace("orca"))]
    page.write_text(assemble(record(runs)), encoding="utf-8")
    screen.open(page, "#run=static&predict=admitted")
    screen.press("end")
    assert asked(screen)
    screen.click(".predict-skip")
    screen.press("end")
    assert asked(screen)
    screen.choose("run-a", "orca")
    assert asked(screen) == ""
    assert screen.js("return document.body.classList.contains('asking')") is False
    assert "1 skipped" in score(screen)


@pytest.mark.parametrize(("name", "options"), [("static", ()), ("fluid", WAVES)])
def test_who_will_run_is_asked_where_others_run_than_before(name: str, options: Options, screen: Screen) -> None:
    steps = columns(name, options)
    screen.open(crowd_page(name, options), "#predict=running")
    screen.press("end")
    stop = screen.state()["position"] + 1
    assert asked(screen) == f"Iteration {stop}: Who will run in it?"
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


def test_a_stop_is_added_by_hand_and_told_in_the_address(screen: Screen) -> None:
    screen.open(crowd_page("static"), "#i=7")
    screen.click(".predict-add")
    screen.until("return location.hash.includes('stops=7')")
    screen.js("window.app.select(9)")
    screen.click(".predict-add")
    screen.until("return location.hash.includes('stops=7,9')")
    screen.click("h1")
    screen.press("home")
    screen.press("end")
    assert screen.state()["position"] == 6
    assert asked(screen).startswith("Iteration 7: ")
    assert screen.js("return document.querySelector('.predict-add').disabled")


@pytest.mark.parametrize("by", ["time", "token"])
def test_while_a_question_is_open_nothing_later_is_told_of_b_either(by: str, screen: Screen, tmp_path: Path) -> None:
    page = tmp_path / "two.html"
    runs = [read_run(crowd_trace("fluid", WAVES)), read_run(crowd_trace("static"))]
    page.write_text(assemble(record(runs)), encoding="utf-8")
    screen.open(page, f"#run=fluid&b=static&i=7&stops=8&request=r0&by={by}")
    screen.press("right")  # the position stays, and only the question is new
    assert asked(screen)
    assert screen.state()["position"] == 7
    last = screen.state()["indexOther"]
    numbers_told = (
        "return [...document.querySelectorAll(arguments[0])].flatMap((one) =>"
        " (one.textContent.match(/[0-9,]+/g) ?? []).map((text) => Number(text.replaceAll(',', ''))))"
    )
    for side, most in (("a", 7), ("b", last)):
        told_of = screen.js(numbers_told, f"#story-{side} li button.to-iteration")
        assert told_of
        assert max(told_of) <= most, side
        # "in 30 iterations" tells of the future as well
        counts = re.findall(r"in ([0-9,]+) iterations?", screen.text(f"story-{side}"))
        assert all(int(count.replace(",", "")) <= most + 1 for count in counts), side

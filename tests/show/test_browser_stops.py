"""Predict, in a browser: where the page stops, and that nothing later is seen while a question is open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run

from .conftest import Screen
from .crowd import SWAP, WAVES, crowd_page, crowd_trace
from .questions import admitting, asked, columns, score

BEYOND = """
const {axis, lanes, charts} = app.a;
const from = Math.ceil(76 + axis.right(arguments[0]) - axis.left) + 1, found = new Set();
const style = getComputedStyle(document.documentElement);
const probe = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
const pixel = (name) => {
  probe.fillStyle = style.getPropertyValue(`--${name}`);
  probe.fillRect(0, 0, 1, 1);
  return new Uint32Array(probe.getImageData(0, 0, 1, 1).data.buffer)[0];
};
const named = new Map(arguments[1].map((name) => [pixel(name), name]));
for (const {canvas} of [lanes, charts]) {
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
  copy.drawImage(canvas, 0, 0);
  const data = copy.getImageData(from, 0, canvas.width - from, canvas.height).data;
  for (const one of new Uint32Array(data.buffer)) if (named.has(one)) found.add(named.get(one));
}
return [...found];
"""


def shown_beyond_the_cover(screen: Screen, last: int | None = None) -> set[str]:
    """The colours of states, work and charts that A's lanes and charts have on the right of column `last`, or the
    selected one."""
    names = ["running", "held", "prompt", "waiting", "waiting-soft", "suspended-soft", "idle-soft"]
    return set(screen.js(BEYOND, screen.state()["index"] if last is None else last, names))


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
    assert shown_beyond_the_cover(screen) == set()
    entries = "return [...document.querySelectorAll('#story-a li button')].map((one) => Number(one.dataset.iteration))"
    assert max(screen.js(entries)) < stop
    assert "evicted" not in screen.text("story-a")
    assert screen.js("return window.app.a.memory.frame.index") == stop - 1
    assert screen.js("return app.a.charts.gaps.every(({column}) => column < arguments[0])", stop)
    row = screen.js("return app.main.requests.findIndex(({id}) => id === arguments[0])", name)
    x = screen.js("const {axis} = app.a; return 76 + axis.right(app.index) - axis.left")
    screen.click_at("#lanes-a canvas", x + 30, 18 + 20 * (row + 0.5))
    assert screen.state()["position"] == stop - 1
    assert not screen.find("#lanes-a .tip").is_displayed()
    screen.click(".predict-skip")
    assert shown_beyond_the_cover(screen)
    assert stop in screen.js(entries)


def test_what_is_behind_the_next_stop_is_covered_before_and_after_each_question(screen: Screen) -> None:
    first, second, *_ = [i for i, step in enumerate(columns("vllm", SWAP)) if step.get("evicted")]
    screen.open(crowd_page("vllm", SWAP), f"#i=1&stops={first},{second}")
    limit = "return app.limitOf(app.main)"
    assert screen.js(limit) == first - 1
    assert shown_beyond_the_cover(screen, first - 1) == set()
    assert asked(screen) == ""
    screen.press("end")
    screen.click(".predict-skip")
    assert screen.state()["position"] == first
    assert screen.js(limit) == second - 1
    assert shown_beyond_the_cover(screen, first)
    assert shown_beyond_the_cover(screen, second - 1) == set()
    screen.press("end")
    screen.click(".predict-skip")
    assert screen.js(limit) is None  # Infinity
    assert shown_beyond_the_cover(screen, second)
    screen.press("home")
    assert screen.js(limit) is None


def test_another_address_closes_the_question(screen: Screen) -> None:
    stop = admitting("orca")[0]
    screen.open(crowd_page("orca"), f"#stops={stop}")
    screen.press("end")
    assert asked(screen)
    screen.js("location.hash = '#i=3'")
    screen.until("return app.position === 3")
    assert asked(screen) == ""
    assert screen.js("return document.body.className.match(/asking|covered/)") is None
    screen.press("end")
    assert screen.state()["position"] == len(columns("orca")) - 1


def test_it_is_switched_on_and_off_by_hand_and_the_address_tells(screen: Screen) -> None:
    from selenium.webdriver.support.select import Select

    screen.open(crowd_page("vllm", SWAP))
    screen.press("end")
    assert screen.state()["position"] == len(columns("vllm", SWAP)) - 1
    screen.press("home")
    screen.click(".predict-on")
    Select(screen.find(".predict-kind")).select_by_visible_text("a request is evicted")
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
    wait = next(i for i, step in enumerate(columns("dynamic")) if i and step["event"] == "wait")
    screen.open(crowd_page("dynamic"), "#stops=99999")
    assert "The address has a stop with nothing to ask: column 99999 of this run does not exist, or " in screen.text(
        "predict"
    )
    screen.open(crowd_page("dynamic"), f"#stops=99999,{wait}")
    assert (
        f"columns {wait}, 99999 of this run do not exist, or leave no choice that can be asked about."
        in screen.text("predict")
    )


def test_a_stop_at_which_all_that_can_run_do_is_told_and_not_asked(screen: Screen) -> None:
    """A question of which every choice is right would be none."""
    last = len(columns("fluid", WAVES)) - 1
    screen.open(crowd_page("fluid", WAVES), f"#stops={last}")
    assert f"column {last} of this run does not exist, or leaves no choice" in screen.text("predict")
    screen.press("end")
    assert screen.state()["position"] == last
    assert asked(screen) == ""
    assert screen.js("return document.querySelector('.predict-add').disabled")


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
    first = asked(screen)
    screen.choose("run-a", "orca")
    assert asked(screen) != first
    screen.click(".predict-on")
    assert asked(screen) == ""
    assert screen.js("return document.body.classList.contains('asking')") is False
    assert "1 skipped" in score(screen)


@pytest.mark.parametrize("how", ["list", "card"])
def test_another_run_is_not_shown_beyond_its_stops(how: str, screen: Screen, tmp_path: Path) -> None:
    """Whichever way another run is chosen as A, what was to be asked up to the moment that is shown is asked first."""
    page = tmp_path / "two.html"
    runs = [read_run(crowd_trace("static")), read_run(crowd_trace("orca"))]
    page.write_text(assemble(record(runs)), encoding="utf-8")
    last = len(columns("static")) - 1
    stop = admitting("orca")[0]
    screen.open(page, f"#run=static&i={last}&b=orca")
    screen.js("location.hash += '&predict=admitted'")
    screen.until("return app.predict.on")
    if how == "list":
        screen.choose("run-a", "orca")
    else:
        screen.js("document.getElementById('overview').open = true")
        screen.click("button[aria-label='Show orca as A']")
    assert screen.state()["a"] == "orca"
    assert screen.js("return app.predict.stops()[0].column") == stop
    assert screen.state()["position"] == stop - 1
    assert asked(screen).startswith(f"Iteration {stop}: ")
    assert shown_beyond_the_cover(screen) == set()
    screen.click(".predict-skip")
    screen.choose("run-a", "static")
    assert screen.state()["position"] < last


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
    runs = [read_run(crowd_trace("orca")), read_run(crowd_trace("static"))]
    page.write_text(assemble(record(runs)), encoding="utf-8")
    stop = admitting("orca")[0]
    screen.open(page, f"#run=orca&b=static&i={stop - 1}&stops={stop}&request=r0&by={by}")
    screen.press("right")  # the position stays, and only the question is new
    assert asked(screen)
    assert screen.state()["position"] == stop - 1
    last = screen.state()["indexOther"]
    numbers_told = (
        "return [...document.querySelectorAll(arguments[0])].flatMap((one) =>"
        " (one.textContent.match(/[0-9,]+/g) ?? []).map((text) => Number(text.replaceAll(',', ''))))"
    )
    for side, most in (("a", stop - 1), ("b", last)):
        told_of = screen.js(numbers_told, f"#story-{side} li button.to-iteration")
        assert told_of
        assert max(told_of) <= most, side
        # "in 30 iterations" tells of the future as well
        counts = re.findall(r"in ([0-9,]+) iterations?", screen.text(f"story-{side}"))
        assert all(int(count.replace(",", "")) <= most + 1 for count in counts), side


@pytest.mark.parametrize(
    ("kind", "asks"), [("running", "run in it"), ("admitted", "be admitted"), ("any", "be admitted")]
)
def test_stops_and_what_to_ask_about_may_both_be_given(kind: str, asks: str, screen: Screen) -> None:
    stop = admitting("orca")[0]
    screen.open(crowd_page("orca"), f"#stops={stop}&predict={kind}")
    screen.press("end")
    assert asked(screen) == f"Iteration {stop}: Which requests will {asks}?"

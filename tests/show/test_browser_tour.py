"""The tour, in a browser: from part to part, with the keyboard alone."""

from __future__ import annotations

from typing import Any

from .conftest import Pages, Screen
from .crowd import crowd_page

STOP = """
const dialog = document.getElementById("tour-dialog"), box = dialog.getBoundingClientRect();
const marked = [...document.querySelectorAll(".toured")], {clientWidth, clientHeight} = document.documentElement;
const first = marked[0]?.getBoundingClientRect() ?? {top: -1, bottom: -1};
return {
  title: document.getElementById("tour-title").textContent,
  words: document.getElementById("tour-words").textContent,
  count: document.getElementById("tour-count").textContent,
  inside: box.left >= 0 && box.top >= 0 && box.right <= clientWidth && box.bottom <= clientHeight,
  focused: dialog.contains(document.activeElement) && !document.activeElement.disabled,
  marked: marked.map((one) => one.id || one.className.replace("toured", "").trim()),
  seen: first.top < clientHeight && first.bottom > 0,
  open: dialog.open,
};
"""


def stop(screen: Screen) -> dict[str, Any]:
    found = screen.js(STOP)
    assert isinstance(found, dict)
    return found


def test_the_tour_goes_from_part_to_part_and_back(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=static&b=vllm&i=3")
    assert not stop(screen)["open"], "it is not shown by itself"
    assert not screen.find("#overview").get_attribute("open")
    screen.press("g")
    found = [stop(screen)]
    assert screen.find("#overview").get_attribute("open"), "what is told of is there to be seen"
    for _ in range(7):
        screen.press("enter")
        found.append(stop(screen))
    assert [one["count"] for one in found] == [f"{k} of 8" for k in range(1, 9)]
    assert len({one["title"] for one in found}) == len({one["words"] for one in found}) == 8
    assert all(one["inside"] and one["focused"] and one["seen"] for one in found)
    assert [one["marked"] for one in found] == [
        *(["overview"], ["side-a", "side-b"], ["bar transport"], ["memory-area"], ["now-part", "why-part"]),
        *(["differences"], ["predict"], ["help"]),
    ]
    screen.click("#tour-back")
    assert stop(screen) == found[6]
    screen.press("left", "left", "right")
    assert stop(screen)["title"] == found[5]["title"]
    assert screen.state()["position"] == 3, "keys are the tour's"
    screen.press("escape")
    assert (stop(screen)["open"], stop(screen)["marked"]) == (False, [])
    screen.press("right")
    assert screen.state()["position"] == 4
    screen.click("#tour")
    assert stop(screen)["count"] == "1 of 8"
    screen.click("#tour-close")
    assert (stop(screen)["open"], stop(screen)["marked"]) == (False, [])


def test_the_tour_of_one_run_leaves_out_what_is_not_there(screen: Screen) -> None:
    screen.open(crowd_page("orca"))
    screen.press("g")
    found = [stop(screen)]
    for _ in range(8):
        screen.press("right")
        found.append(stop(screen))
    assert [one["count"] for one in found][-4:] == ["6 of 6"] * 4
    marked = {name for one in found for name in one["marked"]}
    assert not {"overview", "side-b", "differences"} & marked
    assert all(one["inside"] for one in found)
    screen.press("escape")

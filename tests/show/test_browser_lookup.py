"""What the page looks up in long runs is what it would find by going through the whole run."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Pages, Screen
from .crowd import FEW_SLOTS, SWAP, TIERS, Run, crowd_album, crowd_page

# Columns in which the requests that are under way, or those that have ended, are others than their states tell.
PRESENCE = """
const {main} = window.app, {presence} = main, wrong = [], ended = ["finished", "refused"];
let seen = 0;
for (let i = 0; i < main.length; i++) {
  const states = main.requests.map((_, r) => main.stateAt(i, r));
  const here = [...states.keys()].filter((r) => states[r] !== "absent" && !ended.includes(states[r]));
  const gone = [...states.keys()].filter((r) => ended.includes(states[r]));
  const of = (rs) => rs.toSorted((a, b) => a - b).join();
  const last = presence.lastEnded(i, 3), all = presence.lastEnded(i, states.length);
  const since = (r) => (states[r] === "refused" ? -1 : main.stateSince(i, r));
  const begun = states.every((state, r) => state === "absent" || main.spans(r).some(
    ({from, to}) => from === main.stateSince(i, r) && from <= i && i < to));
  const right = of(presence.underWay(i)) === of(here) && presence.numEnded(i) === gone.length && of(all) === of(gone)
    && all.every((r, k) => !k || since(r) <= since(all[k - 1])) && last.join() === all.slice(0, 3).join() && begun;
  if (!right) wrong.push(i);
  seen = Math.max(seen, here.length && gone.length);
}
return [wrong, seen];
"""
# Labels by going through all columns that are seen.
TICKS = """
const {axis} = window.app.a, {model} = axis, seen = arguments[0], labels = axis.ticks(seen);
const [first, last] = axis.visible(seen), steps = [1, 2, 5, 10, 20, 50, 100, 200];
const step = steps.find((one) => one * axis.width >= 80 * 0.999);
const found = [];
for (let i = first; i < last; i++) {
  const {wait, n} = model.run.steps[i];
  if (wait || n % step) continue;
  if (!found.length || axis.x(i) - found.at(-1).x > 40) found.push({x: axis.x(i), label: String(n)});
}
return [labels, found];
"""


RUNS: list[Run] = [("vllm", SWAP), ("static",), ("instances",), ("pensieve", TIERS)]


@pytest.mark.parametrize("run", RUNS)
def test_requests_are_found_in_each_column(screen: Screen, run: Run) -> None:
    wrong, seen = screen.show(*crowd_album(run, RUNS)).js(PRESENCE)
    assert wrong == []
    assert seen, "requests must have ended while others are under way for the test to mean something"


def test_refused_requests_come_last(screen: Screen) -> None:
    """One that was refused is no answer; those that finished come first, however early."""
    screen.open(crowd_page("orca"))
    last = screen.js(
        "const {main} = app; const spans = main.spans(3); main.spans = (r) => (r === 3 ? [{...spans.at(-1),"
        " state: 'refused'}] : Object.getPrototypeOf(main).spans.call(main, r));"
        "return new main.presence.constructor(main).lastEnded(main.length, 99)"
    )
    assert last[-1] == 3
    assert len(last) > 3


@pytest.mark.parametrize(
    ("kind", "widths"), [("long", (30, 5, 0.5)), ("fusion", (100, 20)), ("dynamic", (10,)), ("pensieve", (10,))]
)
def test_labels_are_those_of_the_columns_that_are_seen(
    screen: Screen, long_page: Path, kind: str, widths: tuple[float, ...]
) -> None:
    """Also where iterations end in another order than that of their numbers, or waits or moves alone lie between."""
    options = {"fusion": FEW_SLOTS, "pensieve": TIERS}.get(kind, ())
    screen.open(long_page if kind == "long" else crowd_page(kind, options), f"#run={kind}&i=0&mode=iterations")
    for width in widths:
        found: list[int] = []
        for share in (0, 0.3, 0.9):
            screen.js(
                "const {axis} = app.a; axis.width = arguments[0]; axis.left = axis.total * arguments[1]", width, share
            )
            labels, expected = screen.js(TICKS, 900)
            assert labels == expected
            found += [int(one["label"]) for one in labels]
        assert len(found) > 3
    numbers = screen.js("return app.main.run.steps.filter(({wait}) => !wait).map(({n}) => n)")
    assert (numbers == sorted(numbers)) == (kind not in ("fusion", "pensieve"))
    alone = screen.js("return app.main.run.steps.filter(({w, wait}) => !w && !wait).map(({n}) => n)")
    assert bool({*alone} & {*found}) == (kind == "pensieve"), "a label stands at moves alone as well"


def test_a_frame_asks_only_for_requests_that_are_there(screen: Screen, long_page: Path) -> None:
    """Not for the hundreds that have finished, or are yet to come."""
    screen.open(long_page, "#i=2000")
    requests, asked, shown = screen.js(
        "const {main} = app; let count = 0; const {stateAt} = main;"
        "main.stateAt = function (i, r) { count++; return Object.getPrototypeOf(main).stateAt.call(main, i, r); };"
        "app.select(2001); const rows = document.querySelectorAll('#answers-a li').length;"
        "return [main.requests.length, count, rows]"
    )
    assert requests > 3 * shown
    assert asked < 3 * shown
    arrived = screen.js("return app.main.requests.filter((_, r) => app.main.stateAt(2001, r) !== 'absent').length")
    assert f"and {arrived - shown} requests more" in screen.text("answers-a")


@pytest.mark.parametrize("mode", ["iterations", "time"])
def test_where_the_lanes_are_scrolled_to_is_known_without_asking(screen: Screen, pages: Pages, mode: str) -> None:
    screen.open(pages("static", "vllm"), f"#run=static&i=0&mode={mode}")
    screen.press("+", "+", "+")
    lefts = set()
    for i in (0, 30, 10, 45, 2):
        screen.js("app.select(Math.min(arguments[0], app.positions - 1))", i)
        known, there = screen.js("return [app.a.axis.left, app.a.lanes.host.scrollLeft]")
        assert known == there
        screen.settle()
        assert screen.js("return app.a.axis.left") == known, "nothing is moved once more"
        lefts.add(known)
    assert len(lefts) > 2
    screen.js("app.a.lanes._quietly(1e9)")
    assert screen.js("const {host} = app.a.lanes; return [host.scrollLeft, host.scrollWidth - host.clientWidth]") == [
        *[screen.js("return app.a.axis.left")] * 2
    ]

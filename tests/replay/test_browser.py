"""The page in a real browser: clicked, typed into and read as a person would."""

import json
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from replay_runs import long_run

from minifuse.replay.page import assemble
from minifuse.replay.record import TracedRun, read_run, record
from minifuse.trace import read_trace

if TYPE_CHECKING:
    from conftest import Screen

Pages = Callable[..., Path]
Traces = Callable[..., list[Path]]
KINDS: dict[str, tuple[tuple[str, ...], str]] = {
    "rectangle": (("static", "baton", "baton-pd"), "tiny"),
    "blocks": (("vllm", "pensieve", "fluid"), "tiny"),
    "region": (("fusion", "orca-slots", "instances-slots"), "tiny"),
    "cells": (("cellular", "graph-padded", "graph-merged"), "lstm"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_three_techniques_of_a_kind_are_shown_from_beginning_to_end(screen: "Screen", pages: Pages, kind: str) -> None:
    names, model = KINDS[kind]
    screen.open(pages(*names, model=model))
    for name, title in zip(names, screen.js("return app.runs.map((model) => model.run.title)"), strict=True):
        screen.choose("run-a", title)
        screen.press("home", "right")
        shown = screen.js(
            "const told = (id) => document.getElementById(id).textContent; const found = [];"
            "for (const i of app.main.starts.keys()) {"
            "  app.select(i); found.push([told('now'), told('memory-a'), told('charts-a')]); }"
            "return found;"
        )
        assert len(shown) == screen.js("return app.main.length")
        assert all(all(texts) for texts in shown), f"an iteration of {name} is not told of"
        assert len({memory for _, memory, _ in shown}) >= min(2, len(shown)), f"the memory of {name} does not change"
        screen.press("end")
        assert (screen.state()["a"], screen.state()["position"]) == (title, len(shown) - 1)
        drawn = screen.js(
            "return ['#lanes-a', '#charts-a', '#memory-a'].map((css) => {"
            "  const canvas = document.querySelector(`${css} canvas`);"
            "  const copy = new OffscreenCanvas(canvas.width, canvas.height)"
            "    .getContext('2d', {willReadFrequently: true});"
            "  copy.drawImage(canvas, 0, 0);"
            "  const pixels = copy.getImageData(0, 0, canvas.width, canvas.height).data;"
            "  return new Set(new Uint32Array(pixels.buffer)).size; })"
        )
        assert min(drawn) > 4, f"a picture of {name} is empty: {drawn} colours"


def test_keys(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"))
    last = screen.js("return app.main.length - 1")
    screen.press("right", "right", "right", "left")
    assert screen.state()["position"] == 2
    screen.press("right", shift=True)
    assert screen.state()["position"] == 12
    screen.press("left", shift=True)
    assert screen.state()["position"] == 2
    screen.press("end")
    assert screen.state()["position"] == last
    screen.press("right")
    assert screen.state()["position"] == last
    screen.press("home")
    assert screen.state()["position"] == 0
    screen.press("down", "down")
    assert screen.state()["request"] == 1
    screen.press("up")
    assert screen.state()["request"] == 0
    screen.press("escape")
    assert screen.state()["request"] is None
    screen.press("d")
    assert screen.state()["theme"] == "dark"
    screen.press("t")
    assert screen.state()["mode"] == "time"
    screen.press("?")
    assert screen.find("#keys").is_displayed()
    screen.press("right")
    assert screen.state()["position"] == 0, "keys are not the page's while a dialog is open"
    screen.press("escape")
    assert not screen.find("#keys").is_displayed()


def test_space_plays_and_pauses(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"))
    screen.choose("speed", "5 a second")
    screen.press(" ")
    assert screen.find("#play").text == "Pause"
    screen.until("return app.position > 0")
    screen.press(" ")
    assert not screen.state()["playing"]
    assert screen.find("#play").text == "Play"
    screen.choose("speed", "60 a second")
    screen.click("#play")
    screen.until("return !app.playing && app.position === app.main.length - 1")


def test_the_scrubber_follows_the_mouse(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"))
    width = screen.find("#scrubber").size["width"]
    screen.click_at("#scrubber", width / 2, 14)
    last = screen.js("return app.main.length - 1")
    assert abs(screen.state()["position"] - last / 2) <= 2
    assert f"Iteration {screen.state()['position']} of {last}" in screen.text("position")


def test_an_address_names_a_step_and_follows_the_reader(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=vllm&b=static&i=7&request=r3&by=token&mode=time&theme=dark")
    state = screen.state()
    assert (state["a"], state["b"], state["position"], state["request"]) == ("vllm", "static", 7, 3)
    assert (state["by"], state["mode"], state["theme"]) == ("token", "time", "dark")
    screen.press("right")
    screen.until("return location.hash.includes('i=8')")
    assert "run=vllm&b=static&i=8&request=r3&by=token&mode=time&theme=dark" in screen.js("return location.hash")
    screen.js("location.hash = '#run=static&i=3'")
    screen.until("return app.main.run.title === 'static' && app.position === 3")


@pytest.mark.parametrize(
    ("address", "notice"),
    [
        ("#run=nothing", 'names the run "nothing", and this page has static, vllm'),
        ("#i=9999", 'names iteration "9999": give a whole number from 0 to'),
        ("#i=abc", 'names iteration "abc"'),
        ("#request=r99", 'names the request "r99"'),
        ("#mode=sideways", "mode=sideways: give iterations or time"),
        ("#run=static&b=static", "names static as A and as B"),
        ("#colour=red", "colour, which means nothing here"),
    ],
)
def test_what_an_address_names_in_vain_is_told(screen: "Screen", pages: Pages, address: str, notice: str) -> None:
    screen.open(pages("static", "vllm"), address)
    assert notice in screen.text("notices")


def test_lanes_are_clicked_and_tell_of_what_is_under_the_mouse(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"))
    x, y = screen.js("const axis = app.a.axis; return [76 + axis.x(9) + axis.width / 2, 18 + 20 * 2.5]")
    screen.click_at("#lanes-a canvas", x, y)
    state = screen.state()
    assert (state["position"], state["request"]) == (9, 2)
    assert screen.js("return document.querySelector('#lanes-a .tip').textContent").startswith("r2: ")
    assert "r2" in screen.text("story-a")


def test_lanes_tell_every_state_and_idle_computation(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "fusion", "baton-pd"))
    states = screen.js(
        "return app.runs.map((model) => [...new Set(model.requests.flatMap((_, r) =>"
        " model.spans(r).map((span) => span.state)))].sort())"
    )
    assert states[0] == ["finished", "running", "waiting"]
    assert set(states[1]) | set(states[2]) >= {"finished", "preprocessing", "ready", "running"}
    assert screen.js("return app.main.requests.some((_, r) => app.main.idleColumns(r).length > 0)")
    assert "idle computation" in screen.text("legend")


def test_columns_are_as_wide_as_they_took(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"))
    screen.choose("mode", "in time")
    widths, times = screen.js(
        "const {axis} = app.a, m = app.main, all = [...m.starts.keys()];"
        "return [all.map((i) => axis.right(i) - axis.x(i)), all.map((i) => m.ends[i] - m.starts[i])]"
    )
    longest = max(range(len(times)), key=times.__getitem__)
    assert max(times) > 1.2 * min(times)
    assert widths[longest] == max(widths)
    before = screen.js("return app.a.axis.width")
    screen.click("#wider")
    assert screen.js("return app.a.axis.width") > before
    screen.click("#fit")
    assert screen.js("return app.a.axis.total <= app.a.lanes.seen + 1")


def test_charts_tell_what_the_trace_does(screen: "Screen", pages: Pages, traces: Traces) -> None:
    screen.open(pages("static", "vllm"), "#run=static&request=r1&i=4")
    steps = [event for event in read_trace(traces("static")[0]) if event["event"] in ("step", "wait")]
    assert f"{steps[4]['computed']} computed, {steps[4]['idle']} idle" in screen.text("charts-a")
    assert f"{steps[4]['kv'][1]} set aside, {steps[4]['kv'][0]} in use" in screen.text("charts-a")
    assert "r1: TTFT" in screen.text("charts-a")


def test_why_story_and_answers(screen: "Screen", pages: Pages, traces: Traces) -> None:
    screen.open(pages("static", "vllm"), "#run=static&i=5")
    steps = [event for event in read_trace(traces("static")[0]) if event["event"] in ("step", "wait")]
    waiting = {name: text for _, name, text in steps[5]["reasons"]}
    assert waiting, "somebody must wait for the test to mean something"
    told = screen.text("why-a")
    assert all(name in told for name in waiting)
    screen.choose("request", "r1")
    assert "arrives" in screen.text("story-a")
    assert "add 17 and 25" in screen.text("answers-a")
    lengths = []
    screen.press("home")
    for _ in range(screen.js("return app.main.workColumns(1).at(-1) + 2")):
        lengths.append(len(screen.js("return app.main.textAt(app.index, 1)")))
        screen.press("right")
    assert lengths == sorted(lengths)
    assert lengths[0] == 0 < lengths[-1]
    assert "42" in screen.text("answers-a")


def test_two_runs_with_one_scrubber(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=static&i=0")
    assert not screen.find("#side-b").is_displayed()
    screen.choose("run-b", "vllm")
    assert screen.find("#side-b").is_displayed()
    for _ in range(6):
        screen.press("right")
        times = screen.js(
            "return [app.main.ends[app.index], app.other.starts[app.indexOther], app.other.ends[app.indexOther]]"
        )
        assert times[1] <= times[0] + 1e-9 or screen.state()["indexOther"] == 0
    screen.choose("by", "by token")
    tokens = screen.js(
        "return [app.main.totalTokens[app.index], app.other.totalTokens[app.indexOther],"
        " app.indexOther ? app.other.totalTokens[app.indexOther - 1] : -1]"
    )
    assert tokens[2] < tokens[0] <= tokens[1]
    screen.press("end")
    state = screen.state()
    lengths = screen.js("return [app.main.length, app.other.length]")
    assert [state["index"], state["indexOther"]] == [lengths[0] - 1, lengths[1] - 1]


def test_the_first_decision_that_differs_is_one_key_away(screen: "Screen", pages: Pages, traces: Traces) -> None:
    paths = traces("static", "vllm")
    mine, theirs = ([e for e in read_trace(path) if e["event"] == "step"] for path in paths)
    keys = ("work", "admitted", "evicted", "phase")
    differs = next(k for k, (a, b) in enumerate(zip(mine, theirs, strict=False)) if any(a[n] != b[n] for n in keys))
    screen.open(pages("static", "vllm"), "#run=static&b=vllm&i=0")
    screen.press("f")
    shown = screen.js("return app.main.step(app.index).number")
    assert shown == differs
    assert "first decision that differs" in screen.text("difference")
    before = screen.state()["position"]
    screen.press("n")
    assert screen.state()["position"] > before
    assert " is " in screen.text("difference")
    screen.press("p")
    assert screen.state()["position"] == before
    screen.click("#next-difference")
    assert screen.state()["position"] > before


def test_a_run_and_itself_decide_alike(screen: "Screen", traces: Traces, tmp_path: Path) -> None:
    run = read_run(traces("vllm")[0])
    page = tmp_path / "page.html"
    page.write_text(assemble(record([run, run])))
    screen.open(page, "#run=vllm 1&b=vllm 2&i=0")
    assert "decide alike" in screen.text("difference")
    assert screen.js("return document.getElementById('first-difference').disabled")


def test_cards_choose_a_and_b(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"))
    screen.click("button[aria-label='Show vllm as A']")
    screen.click("button[aria-label='Show static as B']")
    state = screen.state()
    assert (state["a"], state["b"]) == ("vllm", "static")


def test_the_page_stops_and_asks(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=vllm&i=0&stops=2,5")
    screen.press("end")
    state = screen.state()
    assert state["position"] < 5, "the page stops before what it asks about"
    assert screen.find("#predict").is_displayed()
    assert screen.js("return document.querySelectorAll('#predict input, #predict button').length") > 1


def test_pictures_are_saved_as_svg(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=vllm&i=4&request=r1")
    screen.click("#save")
    screen.until("return document.getElementById('pictures').open")
    labels = screen.js("return [...document.querySelectorAll('#picture-list button')].map((one) => one.textContent)")
    assert labels == ["Lanes of vllm", "Charts of vllm", "Memory of vllm"]
    for button in screen.driver.find_elements("css selector", "#picture-list button"):
        button.click()
    names = {f"vllm-{what}-4.svg" for what in ("lanes", "charts", "memory")}
    deadline = time.monotonic() + 20
    while not names <= {path.name for path in screen.downloads.iterdir()}:
        assert time.monotonic() < deadline, f"only {[*screen.downloads.iterdir()]} were saved"
        time.sleep(0.02)
    for name in names:
        root = ElementTree.fromstring((screen.downloads / name).read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert len([*root.iter()]) > 20
    texts = [one.text for one in ElementTree.parse(screen.downloads / "vllm-lanes-4.svg").getroot().iter() if one.text]
    assert {"r0", "r1", "r5"} <= set(texts)
    screen.press("escape")


def test_printing_puts_pictures_in_the_place_of_canvases(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"))
    screen.js(
        "addEventListener('afterprint', () => { window.printed = window.during; });"
        "addEventListener('beforeprint', () => { window.during = document.querySelectorAll('.printed svg').length; })"
    )
    assert len(screen.driver.print_page()) > 1000
    assert screen.js("return window.printed") == 3
    assert screen.js("return document.querySelectorAll('.printed').length") == 0


def test_light_and_dark_follow_the_reader_and_the_system(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"))
    back = "return getComputedStyle(document.body).backgroundColor"
    first = screen.js(back)
    screen.click("#theme")
    assert screen.js(back) != first
    feature = {"name": "prefers-color-scheme", "value": "dark"}
    screen.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        screen.open(pages("static", "vllm"))
        assert screen.state()["theme"] == "dark"
        screen.open(pages("static", "vllm"), "#theme=light")
        assert screen.state()["theme"] == "light"
    finally:
        screen.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize(("width", "height"), [(800, 900), (1280, 720), (1600, 1000)])
def test_nothing_is_cut_off_sideways(screen: "Screen", pages: Pages, width: int, height: int) -> None:
    screen.resize(width, height)
    screen.open(pages("static", "vllm"), "#run=static&b=vllm&i=5&request=r1")
    assert screen.js("return [document.documentElement.scrollWidth - innerWidth, innerWidth]") in (
        [0, width],
        [-15, width],
    )
    lanes = screen.find("#lanes-a").rect
    assert lanes["x"] >= 0
    assert lanes["x"] + lanes["width"] <= width
    assert lanes["width"] > 400


def test_everything_has_a_name_for_those_who_do_not_see_it(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=static&b=vllm&i=5&request=r1")
    nameless = screen.js(
        "return [...document.querySelectorAll('button, select, input, canvas:not([aria-hidden]), dialog')]"
        ".filter((one) => !(one.getAttribute('aria-label') || one.labels?.length || one.textContent.trim()"
        " || one.getAttribute('aria-labelledby'))"
        " || (one.tagName === 'CANVAS' && one.getAttribute('role') !== 'img'))"
        ".map((one) => one.outerHTML.slice(0, 100))"
    )
    assert nameless == []
    screen.press("right")
    screen.until("return document.getElementById('live').textContent.includes('Iteration 6 of static')")
    assert screen.find("#live").get_attribute("aria-live") == "polite"
    assert "Iteration" in screen.find("#scrubber").get_attribute("aria-valuetext") or "A 6" in screen.find(
        "#scrubber"
    ).get_attribute("aria-valuetext")


def test_the_tab_key_reaches_every_control_in_order(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#i=3")
    reached = []
    for _ in range(14):
        screen.press("tab")
        reached.append(screen.js("return document.activeElement.id"))
    shown = screen.js(
        "return [...document.querySelectorAll('header select, header button, header input')]"
        ".filter((one) => !one.disabled && one.offsetParent).map((one) => one.id).slice(0, 14)"
    )
    assert reached == shown


def test_markup_in_a_prompt_is_shown_and_never_executed(screen: "Screen", traces: Traces, tmp_path: Path) -> None:
    evil = "<img src=x onerror='window.hit=1'></script><script>window.hit=1</script>&amp;"
    events = [json.loads(json.dumps(event)) for event in read_trace(traces("vllm")[0])]
    for event in events:
        if event["event"] in ("request", "answer"):
            event["text"] = evil
        if event["event"] == "answer":
            event["ends"] = [len(evil)] * len(event["ends"])
        if event["event"] in ("step", "wait"):
            event["reasons"] = [[code, name, evil] for code, name, _ in event["reasons"]]
    events[0]["technique"] = evil
    text = json.dumps(events).replace('"r1"', json.dumps(f"r1 {evil}"))
    page = tmp_path / "page.html"
    page.write_text(assemble(record([TracedRun("evil", json.loads(text))])))
    screen.open(page, "#i=6")
    screen.press("down", "down", "end")
    assert screen.js("return window.hit") is None
    assert evil in screen.js("return document.body.textContent")
    screen.click("#save")
    screen.press("escape")
    assert len(screen.driver.print_page()) > 1000
    assert screen.js("return window.hit") is None


def test_a_trace_that_was_cut_off_is_shown_with_a_notice(screen: "Screen", traces: Traces, tmp_path: Path) -> None:
    whole = traces("vllm")[0].read_text()
    cut = tmp_path / "cut.jsonl"
    cut.write_text(whole[: int(len(whole) * 0.6)])
    page = tmp_path / "page.html"
    page.write_text(assemble(record([read_run(cut)])))
    screen.open(page)
    assert "was cut off in line" in screen.text("notices")
    screen.press("end")
    assert screen.state()["position"] > 2


def test_a_run_that_ends_earlier_has_decided_nothing_else(screen: "Screen", traces: Traces, tmp_path: Path) -> None:
    whole = traces("vllm")[0]
    cut = tmp_path / "cut.jsonl"
    cut.write_text(whole.read_text()[: int(len(whole.read_text()) * 0.6)])
    page = tmp_path / "page.html"
    page.write_text(assemble(record([read_run(cut), read_run(whole)])))
    screen.open(page, "#run=vllm 1&b=vllm 2")
    screen.press("f")
    assert "All decisions are alike up to here, where vllm 1 ends." in screen.text("difference")
    assert "The first decision that differs" not in screen.text("difference")


def test_a_page_of_10_000_iterations_draws_what_is_seen_alone(screen: "Screen", tmp_path: Path) -> None:
    page = tmp_path / "long.html"
    page.write_text(assemble(long_run(10_000)))
    assert page.stat().st_size < 10_000_000
    screen.open(page, "#i=5000&request=r700")
    screen.press("end")
    assert screen.state()["position"] == 9999
    screen.press("home", "right")
    assert screen.state()["position"] == 1
    drawn = screen.js(
        "let count = 0; const proto = CanvasRenderingContext2D.prototype, kept = {};"
        "for (const name of ['fillRect', 'strokeRect', 'fill', 'stroke', 'fillText']) {"
        "  kept[name] = proto[name];"
        "  proto[name] = function (...all) { count++; return kept[name].apply(this, all); }; }"
        "const counts = [];"
        "for (const i of [9999, 0, 5000, 5001, 7500]) { count = 0; app.select(i); counts.push(count); }"
        "count = 0; app.zoom(0); counts.push(count); Object.assign(proto, kept); return counts;"
    )
    assert max(drawn) < 20_000, drawn
    assert screen.js("return app.a.axis.width") < 1, "the whole run is seen at once"


def test_charts_in_time_never_run_backwards(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "fusion"), "#run=fusion&mode=time&i=0")
    lapped = screen.js("const {starts, passed} = app.main; return starts.some((one, i) => i && one < passed[i - 1])")
    assert lapped, "workers must overlap for the test to mean something"
    paths = screen.js(
        "const proto = CanvasRenderingContext2D.prototype, {moveTo, lineTo} = proto; let all = [];"
        "proto.moveTo = function (x, y) { all.push([x]); return moveTo.call(this, x, y); };"
        "proto.lineTo = function (x, y) { all.at(-1)?.push(x); return lineTo.call(this, x, y); };"
        "app.a.charts.draw(); const charts = all; all = [];"
        "app.overview.layout(); Object.assign(proto, {moveTo, lineTo}); return [charts, all];"
    )
    for drawn in paths:
        areas = [xs for xs in drawn if len(xs) > 6]
        assert len(areas) >= 2
        for xs in areas:
            assert all(before <= after + 1e-6 for before, after in pairwise(xs))


def test_charts_in_time_sum_over_workers(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "fusion"), "#run=fusion&mode=time&i=0")
    wrong = screen.js(
        "const m = app.main, {steps} = app.a.charts.charts[1].series[0];"
        "return [...steps.values].filter((value, k) => {"
        "  const at = (steps.edges[k] + steps.edges[k + 1]) / 2; let sum = 0;"
        "  m.starts.forEach((from, i) => { if (from <= at && at < m.ends[i]) sum += m.computed[i]; });"
        "  return Math.abs(sum - value) > 1e-6; })"
    )
    assert wrong == []
    top = screen.js("return app.a.charts.charts[1].top")
    assert top == screen.js("return Math.max(...app.a.charts.charts[1].series[0].steps.values)")


def test_printing_is_light_and_whole_and_shows_each_picture_once(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#theme=dark&i=5&run=static&b=vllm&request=r1")
    screen.js(
        "const look = () => ({fills: [...document.querySelectorAll('.printed svg > rect:first-of-type')]"
        "    .map((one) => one.getAttribute('fill')),"
        "  ids: [...document.querySelectorAll('.printed [id]')].map((one) => one.id)});"
        "addEventListener('beforeprint', () => { window.during = look(); });"
    )
    assert len(screen.driver.print_page()) > 1000
    during = screen.js("return window.during")
    assert len(during["fills"]) == 6
    assert set(during["fills"]) == {"#ffffff"}
    assert len(during["ids"]) == len(set(during["ids"]))
    assert screen.js("return document.documentElement.dataset.theme") == "dark"
    assert screen.state()["theme"] == "dark"
    screen.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        shown = screen.js(
            "const of = (css, name) => [...document.querySelectorAll(css)].map((one) => getComputedStyle(one)[name]);"
            "return {back: of('body', 'backgroundColor'), panel: of('section', 'backgroundColor'),"
            "  pictures: of('.lanes .pin, .charts .pin, .memory-stage', 'display'),"
            "  most: of('.why, .story, .answers', 'maxHeight'), over: of('.why, .story, .answers', 'overflowY')}"
        )
    finally:
        screen.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown["back"] == ["rgb(255, 255, 255)"]
    assert set(shown["panel"]) == {"rgb(255, 255, 255)"}
    assert set(shown["pictures"]) == {"none"}
    assert len(shown["pictures"]) == 6
    assert (set(shown["most"]), set(shown["over"])) == ({"none"}, {"visible"})


def test_who_runs_beside_another_worker_is_not_left_out(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "fusion"), "#run=fusion&i=0")
    # Columns of pre-processing that end while the main stream computes for a request: r, and the column in between.
    beside = screen.js(
        "const m = app.main, found = [];"
        "m.requests.forEach((_, r) => m.workColumns(r).forEach((j, k, own) => {"
        "  for (let i = (own[k - 1] ?? j) + 1; k && i < j; i++) {"
        "    const {k: worker = 0} = m.run.steps[i];"
        "    if (worker && !(m.run.steps[j].k ?? 0) && m.starts[j] < m.ends[i]) found.push([r, i, j]); } }));"
        "return found"
    )
    assert beside, "pre-processing must run beside the main stream for the test to mean something"
    for r, i, j in beside[:5]:
        drawn = screen.js(
            "const {from, to} = app.a.lanes.rows.beside[arguments[0]];"
            "return from.some((one, k) => one <= arguments[1] && to[k] > arguments[2])",
            *(r, i, j),
        )
        assert drawn, f"request {r} looks left out of iteration {i}, though iteration {j} computes for it then"
    r, i, j = beside[0]
    screen.js(f"app.select({i})")
    x, y = screen.js(
        f"const axis = app.a.axis; return [76 + axis.x({i}) + axis.width / 2 - axis.left, 18 + 20 * ({r} + 0.5)]"
    )
    screen.click_at("#lanes-a canvas", x, y)
    assert f"in iteration {j} on the main stream" in screen.js(
        "return document.querySelector('#lanes-a .tip').textContent"
    )


@pytest.mark.parametrize("names", [("cellular", "graph-padded"), ("graph-padded", "cellular")])
def test_the_longer_of_two_runs_fills_the_width(screen: "Screen", pages: Pages, names: tuple[str, str]) -> None:
    a, b = names
    screen.open(pages("cellular", "graph-padded", "graph-merged", model="lstm"), f"#run={a}&b={b}&mode=time&i=0")
    filled = "return app.sides().map(({axis, lanes}) => axis.total / (lanes.host.clientWidth - 76))"
    for _ in range(2):
        assert max(screen.js(filled)) == pytest.approx(1, abs=0.01)
        scales = screen.js("return app.sides().map(({axis}) => [axis.scale, axis.origin, axis.left])")
        assert scales[0] == pytest.approx(scales[1])
        screen.press("+", "0")
    screen.resize(1000, 720)
    assert max(screen.js(filled)) == pytest.approx(1, abs=0.01)


def test_the_whole_run_stays_seen_when_the_page_changes_its_size(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=static&i=0")
    screen.press("0")
    beyond = "const {host} = app.a.lanes; return host.scrollWidth - host.clientWidth"
    assert screen.js(beyond) == 0
    screen.resize(800, 720)
    assert screen.js(beyond) == 0
    narrow = screen.js("return app.a.axis.width")
    screen.resize(1280, 720)
    assert screen.js("return app.a.axis.width") > narrow
    screen.press("+", "+", "+", "+")
    wide = screen.js("return app.a.axis.width")
    screen.resize(800, 720)
    assert screen.js("return app.a.axis.width") == wide


def test_an_address_without_an_iteration_begins_at_the_first(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "fusion"), "#run=fusion")
    assert screen.state()["position"] == 0
    screen.press("right", "right")
    screen.js("location.hash = '#run=static'")
    screen.until("return app.main.run.title === 'static' && app.position === 0")


def test_the_sentence_of_a_difference_says_where_b_is_shown(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "fusion"), "#run=static&b=fusion&i=0")
    screen.press("f")
    named, shown = screen.js("return [app.pair.first.b, app.indexOther]")
    assert f"{named} of fusion" in screen.text("difference")
    assert named != shown, "B must be elsewhere at that time for the test to mean something"
    assert f"fusion is shown in iteration {shown}, which it runs at that time" in screen.text("difference")
    assert f"fusion, iteration {shown}" in screen.text("now")


@pytest.mark.parametrize("width", [1280, 1600, 1800])
def test_lanes_have_at_least_half_of_the_width(screen: "Screen", pages: Pages, width: int) -> None:
    screen.resize(width, 900)
    screen.open(pages("static", "vllm"), "#run=static&i=5")
    assert screen.find("#lanes-a").rect["width"] >= width / 2


def cards(screen: "Screen") -> dict[str, str]:
    """What the card of each run says, by its title."""
    found = screen.js(
        "return Object.fromEntries(app.overview.cards.map(({root, model}) =>"
        " [model.run.title, [...root.querySelectorAll('p:not([hidden])')].map((one) => one.textContent).join(' | ')]))"
    )
    assert isinstance(found, dict)
    return found


def test_cards_say_when_an_idea_has_nothing_to_do(screen: "Screen", traces: Traces, tmp_path: Path) -> None:
    names = ("static", "fusion", "vllm", "pensieve", "fluid")
    ideas = ("no shuffle was needed", "nothing was evicted", "no conversations here", "all KV fits the device")
    told = record([read_run(trace) for trace in traces(*names)])
    page = tmp_path / "page.html"
    for run in told["runs"]:
        for step in run["steps"]:
            for key in ("m", "e", "wv"):
                step.pop(key, None)
    page.write_text(assemble(told))
    said = cards(screen.open(page))
    for name, idea in zip(names[1:], ideas, strict=True):
        assert idea in said[name]
    assert not any(idea in said["static"] for idea in ideas)
    for run in told["runs"]:
        last = run["steps"][-1]
        last["m"], last["e"] = [["shuffle", 0, 1, 1, "device", "device", "first", 0]], [0]
        last["wv"] = [[0, 0], [0, len(last.get("w", []))]]
        run["requests"][1]["after"] = run["requests"][0]["id"]
    page.write_text(assemble(told))
    said = cards(screen.open(page))
    assert not any(idea in text for idea in ideas for text in said.values())


def test_cards_mark_a_run_that_was_cut_off_and_count_one_iteration(
    screen: "Screen", traces: Traces, tmp_path: Path
) -> None:
    told = record([read_run(trace) for trace in traces("static", "vllm")])
    told["runs"][0]["notice"] = "It was cut off."
    told["runs"][1]["steps"] = told["runs"][1]["steps"][:1]
    page = tmp_path / "page.html"
    page.write_text(assemble(told))
    said = cards(screen.open(page))
    assert "cut off" in said["static"]
    assert "cut off" not in said["vllm"]
    assert "1 iteration in " in said["vllm"]


def test_cards_have_scales_of_their_own_where_one_run_sets_aside_far_more(
    screen: "Screen", traces: Traces, tmp_path: Path
) -> None:
    told = record([read_run(trace) for trace in traces("static", "vllm", "orca")])
    page = tmp_path / "page.html"
    page.write_text(assemble(told))
    screen.open(page)
    assert "on one scale" in screen.text("overview")
    for step in told["runs"][0]["steps"]:
        if "kv" in step:
            step["kv"][1] *= 100
    page.write_text(assemble(told))
    screen.open(page)
    assert "on a scale of each card" in screen.text("overview")
    highest = screen.js(
        "const proto = CanvasRenderingContext2D.prototype, {lineTo} = proto, found = []; let least;"
        "proto.lineTo = function (x, y) { least = Math.min(least, y); return lineTo.call(this, x, y); };"
        "for (const card of app.overview.cards) { least = 1e9;"
        "  app.overview.drawCard(card, card.surface, 300); found.push(card.canvas.clientHeight - least); }"
        "Object.assign(proto, {lineTo}); return found"
    )
    assert min(highest) > 20, "the memory of every run is seen"


def test_iterations_are_called_by_one_number_and_workers_by_their_names(
    screen: "Screen", traces: Traces, tmp_path: Path
) -> None:
    told = record([read_run(trace) for trace in traces("fusion")])
    steps = [step for step in told["runs"][0]["steps"] if "n" in step]
    steps[4]["n"], steps[5]["n"] = steps[5]["n"], steps[4]["n"]  # the one that began later ended first
    page = tmp_path / "page.html"
    page.write_text(assemble(told))
    screen.open(page, "#i=0")
    steps = screen.js("return app.main.run.steps.map(({n, k, w}) => [n, k ?? 0, Boolean(w)])")
    assert any(number != i for i, (number, _, works) in enumerate(steps) if works)
    for i, (number, worker, works) in enumerate(steps):
        if not works:
            continue
        screen.js(f"app.select({i})")
        told = screen.text("now")
        assert f"Iteration {i} on {f'pre-processing worker {worker}' if worker else 'the main stream'}" in told
        assert "Plan" not in told
        assert (f"The trace calls it step {number}" in told) == (number != i)


def test_cells_have_states_and_charts_a_key(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("cellular", "graph-padded", "graph-merged", model="lstm"))
    assert "states in use" in screen.text("overview")
    assert "KV" not in screen.js("return document.querySelector('#overview summary').textContent")
    screen.open(pages("static", "vllm"), "#run=static&i=0")
    key = "return [...document.querySelectorAll('#charts-a .chart-key li')].map((one) => one.textContent)"
    assert screen.js(key) == ["Tokens computed: computed", "Tokens computed: idle", "KV: set aside", "KV: in use"]
    screen.js("app.main.host[3] = 5; app.main.kept[3] = 2; app.a.charts.model = null; app.layout()")
    assert screen.js(key)[-2:] == ["KV: kept", "KV: on the host"]


def test_the_dialog_of_keys_lists_what_an_address_takes(screen: "Screen", pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#nothing=1")
    known = screen.text("notices").split("give ")[-1].rstrip(".").split(", ")
    assert len(known) > 5
    told = screen.text("keys")
    assert [key for key in known if f"{key}=" not in told] == []
    for value in ("mode=time", "mode=iterations", "theme=dark", "theme=light", "by=time", "by=token"):
        assert value in told
    assert "esc" in told

"""The page in a real browser: clicked, typed into and read as a person would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import TracedRun, read_run
from minifuse.trace.log import read_trace

from .conftest import Pages, Screen, Traces

KINDS: dict[str, tuple[tuple[str, ...], str]] = {
    "rectangle": (("static", "baton", "baton-pd"), "tiny"),
    "blocks": (("vllm", "pensieve", "fluid"), "tiny"),
    "region": (("fusion", "orca-slots", "instances-slots"), "tiny"),
    "cells": (("cellular", "graph-padded", "graph-merged"), "lstm"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_three_techniques_of_a_kind_are_shown_from_beginning_to_end(screen: Screen, pages: Pages, kind: str) -> None:
    names, model = KINDS[kind]
    screen.open(pages(*names, model=model), "#i=0")
    for k, (name, title) in enumerate(
        zip(names, screen.js("return app.runs.map((model) => model.run.title)"), strict=True)
    ):
        screen.js("app.setMain(app.runs[arguments[0]])", k)
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


def test_keys(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#i=0")
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


def test_dialogs_close_and_nothing_may_be_sent(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"))
    policy = screen.find("meta[http-equiv='Content-Security-Policy']").get_attribute("content")
    assert {"default-src 'none'", "base-uri 'none'", "form-action 'none'"} <= {one.strip() for one in policy.split(";")}
    for button, dialog in (("#help", "#keys"), ("#save", "#pictures")):
        screen.click(button)
        assert screen.find(dialog).is_displayed()
        screen.click(f"{dialog} form button")
        assert not screen.find(dialog).is_displayed()


def test_space_plays_and_pauses(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#i=0")
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


def test_the_scrubber_follows_the_mouse(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#i=0")
    width = screen.find("#scrubber").size["width"]
    screen.click_at("#scrubber", width / 2, 14)
    last = screen.js("return app.main.length - 1")
    assert abs(screen.state()["position"] - last / 2) <= 2
    assert f"(column {screen.state()['position']} of {last})" in screen.text("position")


def test_why_story_and_answers(screen: Screen, pages: Pages, traces: Traces) -> None:
    screen.open(pages("static", "vllm"), "#run=static&i=5")
    steps = [event for event in read_trace(traces("static")[0]) if event["event"] in ("step", "wait")]
    waiting = {name: text for _, name, text in steps[5]["reasons"]}
    assert waiting, "a request must wait for the test to mean something"
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


def test_the_page_stops_and_asks(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=vllm&i=0&stops=2,5")
    screen.press("end")
    state = screen.state()
    assert state["position"] < 5, "the page stops before what it asks about"
    assert screen.find("#predict").is_displayed()
    assert screen.js("return document.querySelectorAll('#predict input, #predict button').length") > 1


def test_light_and_dark_follow_the_reader_and_the_system(screen: Screen, pages: Pages) -> None:
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
def test_nothing_is_cut_off_sideways(screen: Screen, pages: Pages, width: int, height: int) -> None:
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


def test_everything_has_a_name_for_those_who_do_not_see_it(screen: Screen, pages: Pages) -> None:
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
    screen.until("return document.getElementById('live').textContent.startsWith('static. Iteration 6: ')")
    assert screen.find("#live").get_attribute("aria-live") == "polite"
    assert screen.find("#scrubber").get_attribute("aria-valuetext").startswith("A: iteration 6, B: iteration ")


def test_the_tab_key_reaches_every_control_in_order(screen: Screen, pages: Pages) -> None:
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


def test_markup_in_a_prompt_is_shown_and_never_executed(screen: Screen, traces: Traces, tmp_path: Path) -> None:
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


def test_a_trace_that_was_cut_off_is_shown_with_a_notice(screen: Screen, traces: Traces, tmp_path: Path) -> None:
    whole = traces("vllm")[0].read_text()
    cut = tmp_path / "cut.jsonl"
    cut.write_text(whole[: int(len(whole) * 0.6)])
    page = tmp_path / "page.html"
    page.write_text(assemble(record([read_run(cut)])))
    screen.open(page)
    assert "was cut off in line" in screen.text("notices")
    screen.press("end")
    assert screen.state()["position"] > 2


def test_a_page_of_thousands_of_iterations_draws_what_is_seen_alone(screen: Screen, long_page: Path) -> None:
    screen.open(long_page, "#i=1500&request=r200")
    screen.press("end")
    assert screen.state()["position"] == 2999
    screen.press("home", "right")
    assert screen.state()["position"] == 1
    drawn = screen.js(
        "let count = 0; const proto = CanvasRenderingContext2D.prototype, kept = {};"
        "for (const name of ['fillRect', 'strokeRect', 'fill', 'stroke', 'fillText']) {"
        "  kept[name] = proto[name];"
        "  proto[name] = function (...all) { count++; return kept[name].apply(this, all); }; }"
        "const counts = [];"
        "for (const i of [2999, 0, 1500, 1501, 2200]) { count = 0; app.select(i); counts.push(count); }"
        "count = 0; app.zoom(0); counts.push(count); Object.assign(proto, kept); return counts;"
    )
    assert max(drawn) < 2500, drawn
    assert screen.js("return app.a.axis.width") < 1, "the whole run is seen at once"

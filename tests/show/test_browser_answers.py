"""Prompts and answers as they grow, in a browser; what of them is markup; and whether texts can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from minifuse.core.request import Request
from minifuse.model.source import resolve
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run
from minifuse.techniques import technique
from minifuse.trace.log import read_trace

from .conftest import Screen
from .crowd import BLOCKS, TIERS, crowd_page, crowd_trace
from .memory_map import columns

# Texts of less contrast than 4.5 to what they stand on.
WEAK = r"""
const linear = (part) => (part / 255 <= 0.04 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
const light = (colour) => {
  const [r, g, b] = colour.match(/[\d.]+/g).map(Number).map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const back = getComputedStyle(at).backgroundColor;
    if (!/, 0\)$|transparent/.test(back)) return back;
  }
  return "rgb(255, 255, 255)";
};
const parts = ["#why-a *", "#story-a *", "#answers-a *", "#memory-a p", "#memory-a li", "#predict *"];
const told = [...document.querySelectorAll(parts.join())];
return told
  .filter((one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((one) => [one.className, [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => b - a)])
  .filter(([, [high, low]]) => (high + 0.05) / (low + 0.05) < 4.5);
"""
MARKUP = "<img src=x onerror=\"document.title='run'\"> & <script>document.title='run'</script>"


def answer(screen: Screen, name: str) -> tuple[str, str]:
    """What is shown of an answer: all of it, and what is new."""
    found = screen.js(
        "const row = [...document.querySelectorAll('#answers-a li')].find((one) =>"
        " one.querySelector('.to-request').textContent === arguments[0]);"
        "return [row.querySelector('.answer-text').textContent, row.querySelector('.newest').textContent]",
        name,
    )
    return str(found[0]), str(found[1])


def test_answers_grow_token_by_token_with_the_newest_marked(screen: Screen) -> None:
    events = read_trace(crowd_trace("orca", texts=True))
    told = next(event for event in events if event["event"] == "answer" and event["id"] == "r1")
    text, ends = told["text"], told["ends"]
    steps = columns("orca")
    screen.open(crowd_page("orca", texts=True))
    count = 0
    for i, step in enumerate(steps):
        new = len(step.get("tokens", {}).get("r1", ()))
        before, count = count, count + new
        if not new:
            continue
        screen.js("window.app.select(arguments[0])", i)
        whole, newest = answer(screen, "r1")
        assert whole == text[: ends[count - 1]]
        assert newest == text[ends[before - 1] if before else 0 : ends[count - 1]]
    assert count == len(ends) == 22
    assert "22 of at most 22 tokens" in screen.text("answers-a")


def test_where_a_trace_has_no_texts_numbers_of_tokens_grow(screen: Screen) -> None:
    screen.open(crowd_page("orca"), "#i=6")
    screen.js(
        "const {main} = window.app; for (const one of main.requests) { one.text = one.answer = null; }"
        "window.app.a.answers._model = null; window.app.select(8); window.app.select(7);"
    )
    tokens = screen.js("return window.app.main.tokensBy(7, 0)")
    assert f"{tokens} of at most 14 tokens" in screen.text("answers-a")
    assert answer(screen, "r0") == ("+1 token", "+1 token")


ROWS = """
const rows = [...document.querySelectorAll("#answers-a li")];
const {main, index} = window.app;
const right = (row) => row.querySelector(".quiet").textContent.startsWith(
  `${main.stateAt(index, Number(row.querySelector("button").dataset.request))}, `);
const box = document.querySelector("#answers-a").getBoundingClientRect();
const seen = (row) => row.getBoundingClientRect().bottom > box.top && row.getBoundingClientRect().top < box.bottom;
return [rows.length, rows.filter(seen).length, rows.filter(seen).every(right), rows.every(right)];
"""


def test_rows_that_are_seen_are_filled_at_once_and_the_others_soon(screen: Screen) -> None:
    screen.open(crowd_page("pensieve", TIERS))
    for top in (0, 10_000, 300):
        screen.js("document.querySelector('#answers-a').scrollTop = arguments[0]", top)
        screen.settle()
        for i in (3, 250, 120, 265):
            screen.js("window.app.select(arguments[0])", i)
            count, seen, seen_right, _ = screen.js(ROWS)
            assert 0 < seen <= count
            assert seen_right, f"column {i}, scrolled by {top}"
    assert count > 12
    screen.until(f"return (() => {{ {ROWS} }})()[3]")


def test_markup_in_a_prompt_and_in_a_name_is_shown_and_never_executed(screen: Screen, tmp_path: Path) -> None:
    source = resolve("tiny")
    path = tmp_path / "markup.jsonl"
    settings = Settings(clock="virtual", why=True)
    requests = [Request(MARKUP, source.tokenizer().encode(MARKUP), 4), Request("r1", source.tokenizer().encode("a"), 4)]
    serve(
        build_engine(resolve_run(technique("orca"), source, settings), source.load("float32", "cpu", 0), path), requests
    )
    page = tmp_path / "markup.html"
    page.write_text(assemble(record([read_run(path)])), encoding="utf-8")
    screen.open(page, "#i=2")
    screen.js("window.app.selectRequest(0); document.querySelector('#memory-a summary').click()")
    for part in ("answers-a", "story-a", "memory-a"):
        assert MARKUP in screen.text(part), part
    assert screen.js("return document.querySelectorAll('main img, main script').length") == 0
    assert "run" not in screen.driver.title


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_are_readable_on_their_ground(theme: str, screen: Screen) -> None:
    """A contrast of 4.5 at least, for what is told in words."""
    screen.open(crowd_page("vllm", BLOCKS, texts=True), f"#i=12&request=r1&theme={theme}")
    assert screen.js(WEAK) == []

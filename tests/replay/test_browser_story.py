"""Why they wait, the story of a request, and the answers as they grow, in a browser."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from minifuse.model.source import resolve
from minifuse.replay.page import assemble
from minifuse.replay.record import read_run, record
from minifuse.request import Request
from minifuse.serve.build import build_engine
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.techniques import technique
from minifuse.trace import Event, read_trace

from .conftest import Screen
from .crowd import BLOCKS, FEW_SLOTS, SWAP, TIERS, WAVES, Options, crowd_page, crowd_trace

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


def columns(name: str, options: Options = ()) -> list[Event]:
    """Steps and waits, as the page counts them."""
    return [event for event in read_trace(crowd_trace(name, options)) if event["event"] in ("step", "wait")]


def groups(screen: Screen) -> list[tuple[str, list[str]]]:
    """The reasons that the page shows, and who waits for each."""
    found = screen.js(
        "return [...document.querySelectorAll('#why-a .why-list li')].map((item) =>"
        " [item.querySelector('p').textContent,"
        " [...item.querySelectorAll('.to-request')].map((one) => one.textContent)])"
    )
    return [(str(text), list(names)) for text, names in found]


def story(screen: Screen) -> list[dict[str, Any]]:
    """The entries of the story that is shown."""
    found: list[dict[str, Any]] = screen.js(
        "return [...document.querySelectorAll('#story-a li')].map((item) => ({"
        " kind: item.className.split(' ')[0].slice(6),"
        " at: Number(item.querySelector('button').dataset.iteration),"
        " text: item.querySelector('.story-text').textContent,"
        " later: item.classList.contains('is-later'), now: item.getAttribute('aria-current')}))"
    )
    return found


def at(entries: list[dict[str, Any]], kind: str) -> list[int]:
    return [entry["at"] for entry in entries if entry["kind"] == kind]


# --- why


def test_everyone_who_waits_has_the_reason_of_the_trace(screen: Screen) -> None:
    steps = columns("fusion", FEW_SLOTS)
    # The column in which the most different reasons are told of those that wait.
    waiting = [[(name, text) for _, name, text in s["reasons"] if name not in s.get("evicted", ())] for s in steps]
    i = max(range(len(steps)), key=lambda i: len({text for _, text in waiting[i]}))
    told = waiting[i]
    assert len({text for _, text in told}) > 1
    screen.open(crowd_page("fusion", FEW_SLOTS), f"#i={i}")
    shown = {name: text for text, names in groups(screen) for name in names}
    for name, text in told:
        assert text.removeprefix("not admitted: ") in shown[name]


def test_who_waits_for_the_same_is_named_together(screen: Screen) -> None:
    steps = columns("orca")
    i, reasons = next(
        (i, [(text, [one[1] for one in same]) for text, same in groupby(step["reasons"], key=lambda one: str(one[2]))])
        for i, step in enumerate(steps)
        if len({one[2] for one in step["reasons"]}) < len(step["reasons"])
    )
    screen.open(crowd_page("orca"), f"#i={i}")
    found = groups(screen)
    for text, names in reasons:
        (own,) = [group for group in found if text.removeprefix("not admitted: ") in group[0]]
        assert set(names) <= set(own[1])


def test_since_when_one_waits_and_that_nobody_does(screen: Screen) -> None:
    steps = columns("orca")
    last = len(steps) - 1
    screen.open(crowd_page("orca"), f"#i={last}")
    assert "Nobody waits" in screen.text("why-a")
    admitted = next(i for i, step in enumerate(steps) if "r8" in step.get("admitted", ()))
    screen.js("window.app.select(arguments[0])", admitted - 1)
    since = screen.js("return window.app.main.spans(8).find(({state}) => state === 'waiting').from")
    assert f"r8waits since {since}" in screen.text("why-a")


def test_an_eviction_is_told_with_its_reason(screen: Screen) -> None:
    steps = columns("vllm", SWAP)
    i = next(i for i, step in enumerate(steps) if step.get("evicted"))
    name = steps[i]["evicted"][0]
    text = next(text for _, one, text in steps[i]["reasons"] if one == name)
    screen.open(crowd_page("vllm", SWAP), f"#i={i}")
    told = screen.js("return document.querySelector('#why-a .why-evicted').textContent")
    assert told == f"{name} is evicted: {text.removeprefix('evicted: ')}"


def test_a_name_selects_the_request_and_its_story_follows(screen: Screen) -> None:
    steps = columns("orca")
    i = next(i for i, step in enumerate(steps) if step["reasons"])
    screen.open(crowd_page("orca"), f"#i={i}")
    assert "Select a request" in screen.text("story-a")
    name = groups(screen)[0][1][0]
    screen.click("#why-a .to-request")
    assert screen.state()["request"] == int(name[1:])
    assert story(screen)[0]["kind"] == "arrived"
    # The focus is where it was, though the list has been made anew.
    assert screen.js("return document.activeElement.className") == "to-request"


# --- a story


def test_a_story_has_every_admission_eviction_swap_and_end_of_the_trace(screen: Screen) -> None:
    steps = columns("vllm", SWAP)
    for r, name in enumerate({work[0] for step in steps for work in step.get("work", ())}):
        screen.open(crowd_page("vllm", SWAP), f"#request={name}")
        entries = story(screen)
        assert [entry["at"] for entry in entries] == sorted(entry["at"] for entry in entries)
        for kind in ("admitted", "evicted"):
            assert at(entries, kind) == [i for i, step in enumerate(steps) if name in step.get(kind, ())], (name, kind)
        assert at(entries, "first") == [next(i for i, step in enumerate(steps) if name in step.get("tokens", {}))]
        assert at(entries, "finished") == [next(i for i, step in enumerate(steps) if name in step.get("finished", {}))]
        moved = [i for i, step in enumerate(steps) if name in step.get("evicted", ())]
        moved += [i for i, step in enumerate(steps) if any(one[0] == name for one in step.get("reused", ()))]
        assert at(entries, "moved") == sorted(moved), name
        assert r < 9


def test_a_story_tells_the_time_to_the_first_token(screen: Screen) -> None:
    steps = columns("orca")
    events = read_trace(crowd_trace("orca"))
    arrival = next(event["arrival_s"] for event in events if event["event"] == "request" and event["id"] == "r3")
    first = next(step for step in steps if "r3" in step.get("tokens", {}))
    screen.open(crowd_page("orca"), "#request=r3")
    told = screen.js("return document.querySelector('#story-a .story-first .story-text').textContent")
    milliseconds = (first["wall"]["end_s"] - arrival) * 1000
    assert f"{milliseconds:.3g}" in told or f"{milliseconds:.2f}" in told


def test_the_reasons_of_a_wait_are_told_from_when_to_when(screen: Screen) -> None:
    steps = columns("orca")
    mine = [(i, text) for i, step in enumerate(steps) for _, name, text in step["reasons"] if name == "r8"]
    spans = [(text, [i for i, _ in same]) for text, same in groupby(mine, key=lambda one: one[1])]
    screen.open(crowd_page("orca"), "#request=r8")
    waits = screen.js(
        "return [...document.querySelectorAll('#story-a .story-waited > button, #story-a .story-part > button')].map("
        "(one) => [one.dataset.iteration, one.nextElementSibling.textContent])"
    )
    for text, whole in spans:
        own = [told for at, told in waits if at == str(whole[0])]
        assert any(text.removeprefix("not admitted: ") in one for one in own)
    labels = screen.js(
        "return [...document.querySelectorAll('#story-a .story-waited button')].map((one) => one.textContent)"
    )
    assert f"{spans[-1][1][0]} to {spans[-1][1][-1]}" in labels or str(spans[-1][1][0]) in labels


@pytest.mark.parametrize(("name", "options"), [("fusion", FEW_SLOTS), ("static", ())])
def test_waits_behind_others_are_one_entry_with_the_single_ones_folded(
    name: str, options: Options, screen: Screen
) -> None:
    steps = columns(name, options)
    told = [(i, *one) for i, step in enumerate(steps) for one in step["reasons"] if one[1] == "r8"]
    first = [one for one in told if one[1] in ("behind", "not-in-batch")]
    assert len({text for *_, text in first}) > 1
    screen.open(crowd_page(name, options), "#request=r8")
    waits = [entry["text"] for entry in story(screen) if entry["kind"] == "waited"]
    assert any(text.startswith(("waits behind others (r", "waits behind another (r")) for text in waits)
    kinds = [("behind" if code in ("behind", "not-in-batch") else code) for _, code, *_ in told]
    assert len(waits) <= len([*groupby(kinds)]) + 2
    parts = "return [...document.querySelectorAll('#story-a .story-part')].map((one) => one.textContent)"
    assert len(screen.js(parts)) > 1
    if name == "fusion":
        assert "stream of prompts apart" in screen.text("story-a")
        assert "worker" not in screen.text("story-a")
        assert "the main stream" in screen.text("story-a")
    assert not screen.js("return document.querySelector('#story-a .story-parts').open")
    screen.click("#story-a .story-parts summary")
    screen.click("#story-a .story-part button")
    at = screen.js("return document.querySelector('.story-part button').dataset.iteration")
    assert screen.state()["position"] == int(at)


def test_an_entry_selects_its_iteration_by_click_and_by_key(screen: Screen) -> None:
    screen.open(crowd_page("vllm", SWAP), "#request=r2")
    entries = story(screen)
    finished = next(entry for entry in entries if entry["kind"] == "finished")
    screen.click("#story-a .story-finished button")
    assert screen.state()["position"] == finished["at"]
    assert story(screen)[-1]["now"] == "step"
    screen.js("document.querySelector('#story-a .story-arrived button').focus()")
    screen.press("enter")
    assert screen.state()["position"] == entries[0]["at"]
    after = story(screen)
    assert after[-1]["later"]
    assert not after[0]["later"]


def test_idle_rows_and_uploads_are_part_of_a_story(screen: Screen) -> None:
    screen.open(crowd_page("static"), "#request=r2")
    told = [entry["text"] for entry in story(screen) if entry["kind"] == "idle"]
    idle = screen.js("return window.app.main.idleColumns(2).length")
    assert told == [f"its place goes on being computed, for nobody, in {idle} iteration{'s' * (idle != 1)}"]
    wave, step = next(
        (move[7], step) for step in columns("fluid", WAVES) for move in step.get("moves", ()) if move[0] == "upload"
    )
    name = step["work"][step["waves"][wave][0]][0]
    screen.open(crowd_page("fluid", WAVES), f"#request={name}")
    moved = [entry["text"] for entry in story(screen) if entry["kind"] == "moved"]
    assert any("upload" in text for text in moved)
    assert len(moved) < 8  # one for many iterations


def test_a_conversations_turn_tells_what_it_found(screen: Screen) -> None:
    steps = columns("pensieve", TIERS)
    name, on_device, on_host = next(one for step in steps for one in step.get("reused", ()) if one[2])
    screen.open(crowd_page("pensieve", TIERS), f"#request={name}")
    admitted = next(entry["text"] for entry in story(screen) if entry["kind"] == "admitted")
    assert f"{on_host} tokens on the host" in admitted
    assert not on_device or f"{on_device} token" in admitted


# --- answers


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
    events = read_trace(crowd_trace("orca"))
    told = next(event for event in events if event["event"] == "answer" and event["id"] == "r1")
    text, ends = told["text"], told["ends"]
    steps = columns("orca")
    screen.open(crowd_page("orca"))
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


def test_markup_in_a_prompt_and_in_a_name_is_shown_and_never_executed(screen: Screen, tmp_path: Path) -> None:
    source = resolve("tiny")
    path = tmp_path / "markup.jsonl"
    settings = Settings(clock="virtual", why=True)
    requests = [Request(MARKUP, source.tokenizer().encode(MARKUP), 4), Request("r1", source.tokenizer().encode("a"), 4)]
    serve(build_engine(technique("orca"), source, settings, source.load("float32", "cpu", 0), path), requests)
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
    screen.open(crowd_page("vllm", BLOCKS), f"#i=12&request=r1&theme={theme}")
    assert screen.js(WEAK) == []


def test_what_came_during_an_iteration_is_not_said_to_lack_a_reason(screen: Screen) -> None:
    """Nothing can have been decided of it, and the run tells every reason."""
    screen.open(crowd_page("baton-pd"))
    found = screen.js(
        "const model = app.main; for (let i = 0; i < model.length; i++) for (let r = 0; r < model.requests.length; r++)"
        " if (model.stateAt(i, r) === 'waiting' && !model.reasonAt(i, r)"
        " && model.requests[r].arrival > model.step(i).start)"
        " return i; return -1"
    )
    assert found >= 0
    screen.js("app.select(arguments[0])", found)
    screen.settle()
    assert "arrived while this iteration ran" in screen.text("why-a")
    assert "--why" not in screen.text("why-a")

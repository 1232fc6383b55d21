"""Why they wait, and the story of a request, in a browser."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from minifuse.trace.log import read_trace

from .conftest import Screen
from .crowd import FEW_SLOTS, SWAP, TIERS, WAVES, Run, crowd_album, crowd_page, crowd_trace
from .memory_map import columns


def groups(screen: Screen) -> list[tuple[str, list[str]]]:
    """The reasons that the page shows, and the requests that wait for each."""
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


@pytest.mark.parametrize("name", ["orca", "vllm"])
def test_everyone_who_waits_has_the_reason_of_the_trace(name: str, screen: Screen) -> None:
    steps = columns(name)
    # The column in which the most different reasons are told of those that wait.
    waiting = [[(name, text) for _, name, text in s["reasons"] if name not in s.get("evicted", ())] for s in steps]
    i = max(range(len(steps)), key=lambda i: len({text for _, text in waiting[i]}))
    told = waiting[i]
    assert len({text for _, text in told}) > 1
    screen.open(crowd_page(name), f"#i={i}")
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


def test_since_when_one_waits_and_that_none_does(screen: Screen) -> None:
    steps = columns("orca")
    last = len(steps) - 1
    screen.open(crowd_page("orca"), f"#i={last}")
    assert "No request waits" in screen.text("why-a")
    admitted = next(i for i, step in enumerate(steps) if "r8" in step.get("admitted", ()))
    screen.js("window.app.select(arguments[0])", admitted - 1)
    since = screen.js("return window.app.main.spans(8).find(({state}) => state === 'waiting').from")
    assert f"r8waits since iteration {since}" in screen.text("why-a")


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
    page = crowd_page("vllm", SWAP)
    for r, name in enumerate({work[0] for step in steps for work in step.get("work", ())}):
        screen.show(page, 0, request=name)
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


def test_a_request_that_runs_beside_moves_alone_has_been_admitted(screen: Screen) -> None:
    """Its iteration ends later: the story does not say until then that it waits."""
    page = crowd_page("pensieve", TIERS)
    screen.show(page, 0)
    found = screen.js(
        "const m = app.main; return m.run.steps.flatMap((step, i) => (step.a ?? []).flatMap((r) =>"
        " i && m.stateAt(i - 1, r) === 'running' ? [[i, m.requests[r].id]] : []))"
    )
    assert found, "none is admitted while moves alone end"
    for i, name in found:
        screen.show(page, 0, i - 1, name)
        assert " running" in screen.text("story-a")
        (now,) = (entry for entry in story(screen) if entry["now"])
        assert (now["kind"], now["at"]) == ("admitted", i)


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


def test_waits_behind_others_are_one_entry_with_the_single_ones_folded(screen: Screen) -> None:
    steps = columns("static")
    told = [(code, text) for step in steps for code, name, text in step["reasons"] if name == "r8"]
    assert len({text for code, text in told if code == "behind"}) > 1
    screen.open(crowd_page("static"), "#request=r8")
    waits = [entry["text"] for entry in story(screen) if entry["kind"] == "waited"]
    assert any(text.startswith("waits behind others (r") for text in waits)
    assert len(waits) <= len([*groupby(code for code, _ in told)]) + 1  # and that it came while an iteration ran
    parts = "return [...document.querySelectorAll('#story-a .story-part')].map((one) => one.textContent)"
    assert len(screen.js(parts)) > 1
    assert not screen.js("return document.querySelector('#story-a .story-parts').open")
    screen.click("#story-a .story-parts summary")
    screen.click("#story-a .story-part button")
    at = screen.js("return document.querySelector('.story-part button').dataset.iteration")
    assert screen.state()["position"] == int(at)


def test_workers_are_called_by_what_they_do(screen: Screen) -> None:
    """Where prompts are computed apart there is a stream of them and a main one."""
    steps = columns("fusion", FEW_SLOTS)
    told = {name for step in steps for _, name, text in step["reasons"] if "worker" in text}
    said = ""
    page = crowd_page("fusion", FEW_SLOTS)
    for name in sorted(told):
        screen.show(page, 0, request=name)
        said += screen.text("story-a")
    assert "the main stream" in said
    assert "worker" not in said
    i = next(i for i, step in enumerate(steps) if any("worker 0" in text for _, _, text in step["reasons"]))
    screen.show(page, 0, i)
    assert "the main stream" in screen.text("why-a")
    assert "worker" not in screen.text("why-a")


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
    assert told == [
        f"its place goes on being computed, though no request needs it, in {idle} iteration{'s' * (idle != 1)}"
    ]
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


def test_what_came_during_an_iteration_waits_for_its_end(screen: Screen) -> None:
    """Nothing can have been decided of it, and no reason is missing."""
    screen.open(crowd_page("baton-pd"))
    i, r = screen.js(
        "const model = app.main; for (let i = 0; i < model.length; i++) for (let r = 0; r < model.requests.length; r++)"
        " if (model.stateAt(i, r) === 'waiting' && model.requests[r].arrival > model.steps[i].start) return [i, r];"
    )
    screen.js("app.select(arguments[0]); app.selectRequest(arguments[1])", i, r)
    screen.settle()
    assert "nothing is decided before that has ended" in screen.text("why-a")
    assert "waits until the iteration under way has ended" in screen.text("story-a")
    assert "no reason" not in screen.text("why-a") + screen.text("story-a")


def test_of_every_wait_there_is_a_reason(screen: Screen) -> None:
    """In every column, of every request that waits then, is ready or is suspended."""
    states = set()
    runs: list[Run] = [("fusion", FEW_SLOTS), ("vllm", SWAP), ("baton-pd",)]
    for run in runs:
        screen.show(*crowd_album(run, runs))
        found = screen.js(
            "const model = app.main; const found = [];"
            "for (let i = 0; i < model.length; i++) for (let r = 0; r < model.requests.length; r++) {"
            "  const state = model.stateAt(i, r);"
            "  const waits = ['waiting', 'ready', 'suspended'].includes(state);"
            "  if (waits) found.push([state, Boolean(model.reasonAt(i, r))]);"
            "} return found;"
        )
        assert all(told for _, told in found)
        states |= {state for state, _ in found}
    assert states == {"waiting", "ready", "suspended"}

"""Two runs side by side in a browser: one scrubber, and the decisions in which they differ."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run
from minifuse.trace.log import read_trace

from .conftest import Pages, Screen, Traces
from .crowd import BLOCKS, TIERS, WAVES, Options, crowd_trace


def test_two_runs_with_one_scrubber(screen: Screen, pages: Pages) -> None:
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


def test_the_first_decision_that_differs_is_one_key_away(screen: Screen, pages: Pages, traces: Traces) -> None:
    paths = traces("static", "vllm")
    mine, theirs = ([e for e in read_trace(path) if e["event"] == "step"] for path in paths)
    keys = ("work", "admitted", "evicted", "phase")
    differs = next(k for k, (a, b) in enumerate(zip(mine, theirs, strict=False)) if any(a[n] != b[n] for n in keys))
    screen.open(pages("static", "vllm"), "#run=static&b=vllm&i=0")
    screen.press("f")
    shown = screen.js("return app.main.steps[app.index].number")
    assert shown == differs
    assert "first decision that differs" in screen.text("difference")
    before = screen.state()["position"]
    screen.press("n")
    assert screen.state()["position"] > before
    assert re.search(rf"{GROUP} in static and ", screen.text("difference"))
    screen.press("p")
    assert screen.state()["position"] == before
    screen.click("#next-difference")
    assert screen.state()["position"] > before


def test_a_run_and_itself_decide_alike(screen: Screen, traces: Traces, tmp_path: Path) -> None:
    run = read_run(traces("vllm")[0])
    page = tmp_path / "page.html"
    page.write_text(assemble(record([run, run])))
    screen.open(page, "#run=vllm 1&b=vllm 2&i=0")
    assert "admit, evict, compute, move KV and form waves alike, in every iteration." in screen.text("difference")
    assert screen.js("return document.getElementById('first-difference').disabled")


def test_a_run_that_ends_earlier_has_decided_nothing_else(screen: Screen, traces: Traces, tmp_path: Path) -> None:
    whole = traces("vllm")[0]
    cut = tmp_path / "cut.jsonl"
    cut.write_text(whole.read_text()[: int(len(whole.read_text()) * 0.6)])
    page = tmp_path / "page.html"
    page.write_text(assemble(record([read_run(cut), read_run(whole)])))
    screen.open(page, "#run=vllm 1&b=vllm 2")
    screen.press("f")
    words = "admit, evict, compute, move KV and form waves alike"
    assert f"Both {words} up to here, where vllm 1 ends." in screen.text("difference")
    assert "The first decision that differs" not in screen.text("difference")


@pytest.mark.parametrize("names", [("cellular", "graph-padded"), ("graph-padded", "cellular")])
def test_the_longer_of_two_runs_fills_the_width(screen: Screen, pages: Pages, names: tuple[str, str]) -> None:
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


def test_b_is_shown_where_the_sentence_says_until_one_moves_on(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "fusion"), "#run=static&b=fusion&i=0")
    screen.press("f")
    at, named, there = screen.js("const {pair} = app; return [pair.first.a, pair.first.b, pair.at(pair.first.a).b]")
    assert named != there, "B must run another iteration at that time for the test to mean something"
    numbers = screen.js("return [app.main.run.steps[arguments[0]].n, app.other.run.steps[arguments[1]].n]", at, named)
    state = screen.state()
    assert (state["index"], state["indexOther"]) == (at, named)
    told = f"The first decision that differs: iteration {numbers[0]} of static computes "
    assert screen.text("difference").startswith(told)
    assert f"; iteration {numbers[1]} of fusion computes " in screen.text("difference")
    assert f"fusion, iteration {numbers[1]}" in screen.text("now")
    assert f"B: iteration {numbers[1]}, " in screen.text("position")
    screen.until("return location.hash.includes(arguments[0])", f"&i={at}&j={named}")
    screen.press("right", "left")
    assert screen.state()["indexOther"] == there, "time rules again"
    screen.until("return !location.hash.includes('j=')")
    assert f"in its iteration {numbers[1]}: press f to see both" in screen.text("difference")


def test_a_link_shows_a_difference_again(screen: Screen, pages: Pages) -> None:
    page = pages("static", "fusion")
    screen.open(page, "#run=static&b=fusion&i=0&by=token")
    screen.press("f")
    shown, told = screen.state(), screen.text("difference")
    address = screen.until("return location.hash.includes('&j=') && location.hash")
    assert shown["indexOther"] != screen.js("return app.pair.at(app.position).b")
    screen.open(page, address)
    assert screen.state() == shown
    assert screen.text("difference") == told


GROUP = r"(r[0-9]+(?:, r[0-9]+)*) (?:is|are) ([a-z]+)"  # requests that are in the same state


@pytest.mark.parametrize("by", ["time", "token"])
def test_every_decision_that_differs_is_shown_in_both_runs(screen: Screen, pages: Pages, by: str) -> None:
    screen.open(pages("static", "fusion"), f"#run=static&b=fusion&i=0&by={by}")
    seen, checked = [], 0
    while not screen.js("return document.getElementById('next-difference').disabled"):
        screen.press("n")
        state = screen.state()
        assert (state["position"], state["indexOther"]) not in seen, "each key goes on"
        seen.append((state["position"], state["indexOther"]))
        told = screen.text("difference")
        numbers = screen.js("return [app.main.run.steps[app.index].n, app.other.run.steps[app.indexOther].n]")
        assert told, "what differs is told"
        if "decides otherwise" not in told:
            assert f"teration {numbers[0]} of static" in told
            assert f"teration {numbers[1]} of fusion" in told
        for names, mine, theirs in re.findall(rf"{GROUP} in static and ([a-z]+) in fusion", told):
            assert {mine, theirs} != {"absent", "waiting"}, "nothing is decided about one that has not arrived"
            for name in names.split(", "):
                request = int(name.removeprefix("r"))
                states = "return [app.main.stateAt(app.index, {0}), app.other.stateAt(app.indexOther, {0})]"
                assert screen.js(states.format(request)) == [mine, theirs]
                checked += 1
    assert len(seen) > 3
    assert checked > 3
    assert seen == sorted(set(seen))
    back = []
    while not screen.js("return document.getElementById('previous-difference').disabled"):
        screen.press("p")
        state = screen.state()
        assert (state["position"], state["indexOther"]) not in back, "each key goes on"
        back.append((state["position"], state["indexOther"]))
    assert back[: len(seen) - 1] == seen[-2::-1]
    assert all((0, 0) <= one < seen[0] for one in back[len(seen) - 1 :]), "B had decided these as the page was opened"


def test_requests_in_the_same_states_are_told_of_together(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm", "orca"), "#run=orca&b=static&i=0&by=token")
    found = screen.js(
        "const {pair, main, other} = app; return pair.differences.map(({position, b}) => [pair.sentences(position, b),"
        " main.requests.map((_, r) => [main.stateAt(pair.at(position).a, r), other.stateAt(b, r)])])"
    )
    told = [re.findall(rf"{GROUP} in orca and ([a-z]+) in static", text) for text, _ in found]
    for groups, (_, states) in zip(told, found, strict=True):
        assert len({tuple(group[1:]) for group in groups}) == len(groups)
        for names, *own in groups:
            assert [states[int(name.removeprefix("r"))] for name in names.split(", ")] == [own] * len(names.split(", "))
    assert max(map(len, told)) > 1
    assert any("," in names for groups in told for names, *_ in groups)


def test_playing_pauses_at_a_decision_that_differs(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "fusion"), "#run=static&b=fusion&i=0")
    screen.choose("speed", "60 a second")
    screen.press(" ", "f")
    first = screen.js("return [app.pair.first.a, app.pair.first.b]")
    state = screen.state()
    assert ([state["position"], state["indexOther"]], state["playing"]) == (first, False)


def test_a_click_on_b_shows_what_was_clicked(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=static&b=vllm&i=0&by=token")
    clicked = screen.js(
        "return [...app.other.starts.keys()].find((j) => app.pair.at(app.pair.positionOfB(j)).b !== j) ?? -1"
    )
    assert clicked >= 0, "A must have longer iterations for the test to mean something"
    x = screen.js("const {axis} = app.b; return 76 + axis.x(arguments[0]) + axis.width / 2 - axis.left", clicked)
    screen.click_at("#lanes-b canvas", x, 30)
    assert screen.state()["indexOther"] == clicked


SIZES: Options = (("memory.host", 300),)


@pytest.mark.parametrize(("name", "options"), [("pensieve", (TIERS, SIZES))])
def test_of_one_technique_moves_are_compared_too(
    screen: Screen, tmp_path: Path, name: str, options: tuple[Options, Options]
) -> None:
    """These runs move otherwise before anything else of them differs: other amounts, or only other slots."""
    paths = [crowd_trace(name, one) for one in options]
    pairs = [*zip(*([e for e in read_trace(path) if e["event"] == "step"] for path in paths), strict=False)]
    steps = next(pair for pair in pairs if pair[0]["moves"] != pair[1]["moves"])
    for pair in pairs[: pairs.index(steps) + 1]:
        for key in ("work", "admitted", "evicted", "phase"):
            assert pair[0][key] == pair[1][key]
    page = tmp_path / "page.html"
    page.write_text(assemble(record([read_run(path) for path in paths])))
    screen.open(page, f"#run={name} 1&b={name} 2")
    screen.press("f")
    expected = []
    for number, step in enumerate(steps, 1):
        called = f"{'iteration' if step['work'] else 'moves alone, step'} {step['step']} of {name} {number}"
        (one,) = step["moves"] or [None]
        said = "moves nothing"
        if one:
            said = f"moves {one[3]} tokens ({one[0].replace('_', ' ')})"
        if one and all(step["moves"] for step in steps):
            said += f" from slot {one[1]} of the {one[4]} to slot {one[2]} of the {one[5]}, {one[6]}"
        expected.append(f"{called} {said}")
    assert f"The first decision that differs: {'; '.join(expected)}." in screen.text("difference")


def test_waves_are_compared_where_the_stages_are_the_same_and_nothing_of_memory_otherwise(
    screen: Screen, tmp_path: Path
) -> None:
    trace = crowd_trace("fluid", WAVES)
    told = record([read_run(trace), read_run(trace)])
    steps = told["runs"][1]["steps"]
    k = next(k for k, step in enumerate(steps) if "wv" in step)
    sizes = " and ".join(str(stop - start) for start, stop in steps[k].pop("wv"))
    page = tmp_path / "page.html"
    page.write_text(assemble(told))
    screen.open(page, "#run=fluid 1&b=fluid 2&i=0")
    screen.press("f")
    n, waves = steps[k]["n"], sizes.count("and") + 1
    assert screen.text("difference") == (
        f"The first decision that differs: iteration {n} of fluid 1 attends in {waves} waves, of {sizes} rows; "
        f"iteration {n} of fluid 2 attends in one wave."
    )
    del next(step for step in steps if "m" in step)["m"]
    told["runs"][1]["stages"]["memory"] = "another"
    page.write_text(assemble(told))
    screen.open(page, "#run=fluid 1&b=fluid 2&i=0")
    assert screen.text("difference") == (
        "fluid 1 and fluid 2 admit, evict and compute alike, in every iteration. "
        "Moves and waves are not compared, as their stages differ."
    )


def test_evictions_alone_are_a_difference(screen: Screen, tmp_path: Path) -> None:
    trace = crowd_trace("vllm", BLOCKS)
    told = record([read_run(trace), read_run(trace)])
    k, step = next((k, step) for k, step in enumerate(told["runs"][1]["steps"]) if "e" in step)
    evicted = [told["runs"][1]["requests"][r]["id"] for r in step.pop("e")]
    page = tmp_path / "page.html"
    page.write_text(assemble(told))
    screen.open(page, "#run=vllm 1&b=vllm 2&i=0")
    screen.press("f")
    assert screen.state()["index"] == k
    mine, theirs = screen.text("difference").split("; ")[:2]
    assert f", evicts {', '.join(evicted)}" in mine
    assert "evicts" not in theirs


def test_how_b_follows_changes_nothing_about_where_the_runs_first_differ(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=static&b=vllm&i=0")
    screen.js("window.first = app.pair.first")
    screen.choose("by", "by token")
    assert screen.js("return app.pair.by === 'token' && app.pair.first === window.first")
    screen.js("app.setRuns(app.other, app.main)")
    assert screen.js("return app.pair.first !== window.first && app.pair.first.a === window.first.b")

"""The sentence above the cards: what was served, on what, which run was done first, and why."""

from __future__ import annotations

import re
from typing import Any

import pytest

from minifuse.show.page import PAGE, bundle
from minifuse.trace.log import Event, read_trace

from .conftest import Pages, Screen, Traces
from .crowd import crowd_page

# The module and those that it imports, run on records without a page around them.
SCRIPT = (
    bundle({path.name: path.read_text(encoding="utf-8") for path in PAGE.glob("*.js")}, "verdictline.js")
    + "\nreturn verdictLine(arguments[0].map((run) => new RunModel(run)));"
)
SERVED = "2 requests, answered by tiny with KV for 128 tokens in virtual time: "


def run(title: str, count: int, took: float, /, **changes: Any) -> dict[str, Any]:
    """The record of a run of so many iterations of so many milliseconds.

    Args:
        changes: keys of the run; `idle`: of ten tokens, and `waited`: milliseconds, in each iteration; `apart`: how
            many of the iterations only pre-process prompts; `outcomes`: of its two requests; `conversation`: of both.
    """
    idle, waited, apart = (changes.pop(key, 0) for key in ("idle", "waited", "apart"))
    outcomes, conversation = changes.pop("outcomes", ["stop", "length"]), changes.pop("conversation", None)
    requests = [
        {"id": f"r{r}", "arrival": 1.0, "outcome": outcome, "conversation": conversation}
        | ({"refused": "too long"} if outcome == "refused" else {})
        for r, outcome in enumerate(outcomes)
    ]
    steps = [
        {"n": i, "k": 0, "t": [1 + i * took / 1000, 1 + (i + 1) * took / 1000], "w": [[0, i, i + 1]], "c": 10}
        | {"i": idle, "x": waited / 1000, "ph": "preprocessing" if i < apart else None}
        for i in range(count)
    ]
    told = {"title": title, "facts": [["model", "tiny"], ["clock", "virtual"]], "capacity": 128, "unit": "token"}
    told |= {"workers": 1, "cells": ["transformer"], "reasons": [], "passed": [], "slots": {}, "notice": None}
    return told | {"requests": requests, "steps": [{k: v for k, v in one.items() if v} for one in steps]} | changes


SENTENCES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "one": ([run("a", 20, 2)], "a was done after 40.0 ms, in 20 iterations."),
    "one, cut off": ([run("a", 1, 2, notice="It ends.")], "a ran for 2.00 ms, in 1 iteration, and was cut off."),
    "iterations and idle tokens": (
        [run("b", 30, 2), run("a", 60, 2, idle=4), run("c", 20, 2)],
        "c was done first, after 40.0 ms, 3.0 times as fast as a, which took 60 iterations instead of 20 and computed "
        "40% idle tokens.",
    ),
    "idle tokens instead of others": (
        [run("a", 20, 2, idle=1), run("b", 21, 2, idle=8)],
        "a was done first, after 40.0 ms, 1.05 times as fast as b, which computed 80% idle tokens instead of 10%.",
    ),
    "the time of an iteration": (
        [run("a", 20, 2), run("b", 10, 8)],
        "a was done first, after 40.0 ms, 2.0 times as fast as b, which needed 8.00 ms for an iteration instead of "
        "2.00 ms.",
    ),
    "the largest two of three": (
        [run("a", 20, 2), run("b", 22, 8, waited=4)],
        "a was done first, after 40.0 ms, 4.4 times as fast as b, which needed 8.00 ms for an iteration instead of "
        "2.00 ms and waited 50% of its time for transfers.",
    ),
    "prompts apart": (
        [run("a", 20, 2), run("b", 30, 2, apart=10)],
        "a was done first, after 40.0 ms, 1.50 times as fast as b, which computed prompts apart in 10 plans.",
    ),
    "nothing that is measured": (
        [run("a", 100, 1), run("b", 103, 1)],
        "a was done first, after 100 ms, 1.03 times as fast as b.",
    ),
    "alike": ([run("a", 20, 2), run("b", 20, 2)], "both were done after 40.0 ms."),
    "flaws": (
        [run("a", 20, 2), run("b", 40, 2), run("c", 2, 1, outcomes=["stop", "refused"]), run("d", 1, 1, notice="x")],
        "a was done first, after 40.0 ms, 2.0 times as fast as b, which took 40 iterations instead of 20; "
        "c refused 1 request and d was cut off, so they are not compared.",
    ),
    "one without flaws": (
        [run("a", 20, 2), run("b", 2, 1, outcomes=["stop", "aborted"])],
        "a was done after 40.0 ms; b did not finish 1 request, so it is not compared.",
    ),
    "only flaws": (
        [run("a", 20, 2, outcomes=["refused", "refused"]), run("b", 2, 1, outcomes=["stop", "interrupted"])],
        "no run answered all of them; a refused 2 requests and b did not finish 1 request.",
    ),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_sentence_tells_who_won_and_what_differs_most(screen: Screen, name: str) -> None:
    runs, sentence = SENTENCES[name]
    assert screen.js(SCRIPT, runs) == SERVED + sentence


def test_the_sentence_tells_what_was_served_on_what(screen: Screen) -> None:
    a, b = run("a", 2, 1, conversation="c0", capacity=96), run("b", 2, 1, conversation="c0")
    told = screen.js(SCRIPT, [a, b])
    c = run("a", 2, 1, conversation="c0")
    c["requests"][1]["conversation"] = None
    assert screen.js(SCRIPT, [c]).startswith("2 requests, 1 of them in 1 conversation, answered by tiny")
    assert told.startswith("2 requests in 1 conversation, answered by tiny with KV for 96 to 128 tokens in virtual")
    cells = {"unit": "state", "facts": [["model", "lstm"], ["clock", "real"]], "cells": ["lstm"]}
    told = screen.js(SCRIPT, [run("a", 2, 1, **cells)])
    assert told.startswith("2 requests, computed by lstm with memory for 128 states in real time: ")
    told = screen.js(SCRIPT, [run("a", 2, 1), run("b", 2, 1, facts=[["model", "tiny"], ["clock", "real"]])])
    assert told.endswith(" in virtual and real time: times of different clocks are not compared.")


def totals(path: Any) -> tuple[float, list[Event]]:
    """How long a run lasted, and its iterations."""
    events = read_trace(path)
    begin = min(event["arrival_s"] for event in events if event["event"] == "request")
    steps = [event for event in events if event["event"] == "step" and event["work"]]
    return max(step["wall"]["end_s"] for step in steps) - begin, steps


def test_every_number_is_from_the_trace(screen: Screen, pages: Pages, traces: Traces) -> None:
    runs = dict(zip(names := ("static", "vllm", "orca"), map(totals, traces(*names)), strict=True))
    first, *_, last = sorted(names, key=lambda name: runs[name][0])
    screen.open(pages(*names))
    said = re.fullmatch(
        r"6 requests, answered by tiny with KV for [0-9]+ tokens in virtual time: "
        r"([a-z]+) was done first, after ([0-9.]+) ms, ([0-9.]+) times as fast as ([a-z]+)(, which .+)?\.",
        screen.text("verdict"),
    )
    assert said
    assert (said[1], said[4]) == (first, last)
    assert float(said[2]) == pytest.approx(runs[first][0] * 1000, rel=0.01)
    assert float(said[3]) == pytest.approx(runs[last][0] / runs[first][0], rel=0.05)
    if found := re.search(r"took ([0-9]+) iterations instead of ([0-9]+)", said[5] or ""):
        assert [int(one) for one in found.groups()] == [len(runs[last][1]), len(runs[first][1])]
    if found := re.search(r"computed ([0-9.]+)% idle tokens", said[5] or ""):
        idle, computed = (sum(step[key] for step in runs[last][1]) for key in ("idle", "computed"))
        assert float(found[1]) == pytest.approx(100 * idle / computed, abs=0.5)
    assert said[5], "something must differ for the test to mean something"
    assert screen.find("#verdict").rect["y"] < screen.find("#overview").rect["y"]


def test_the_sentence_is_not_read_before_the_last_question(screen: Screen) -> None:
    screen.open(crowd_page("orca"), "#predict=admitted")
    assert not screen.find("#verdict").is_displayed()
    screen.click(".predict-on")
    assert screen.find("#verdict").is_displayed()
    assert "orca was done after " in screen.text("verdict")

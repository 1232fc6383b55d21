"""What the page says that requests wait for is what `minifuse trace` says."""

from __future__ import annotations

from typing import Any

import pytest

from minifuse.show.record import record
from minifuse.show.traced_runs import read_run
from minifuse.trace.waits import reasons_of_waits

from .conftest import Screen
from .crowd import FEW_SLOTS, SWAP, crowd_album, crowd_page, crowd_trace

CROWDS: dict[str, Any] = {
    "vllm": ("vllm", SWAP),
    "static": ("static",),
    "baton-pd": ("baton-pd",),
    "fusion": ("fusion", FEW_SLOTS),
    "instances": ("instances",),
    "cells": ("graph-padded", (), "lstm"),
}
WAITING = ("waiting", "suspended", "ready")
# Of every request: its name; in each column its state, and the reason that the page gives; and what its story tells.
TOLD = """
const model = window.app.main;
return model.requests.map(({id}, r) => [
  id,
  Array.from({length: model.length}, (_, i) => [model.stateAt(i, r), model.reasonAt(i, r)]),
  model.reasonsOf(r),
]);
"""


@pytest.mark.parametrize("name", CROWDS)
def test_the_page_says_what_the_trace_says(screen: Screen, name: str) -> None:
    run = read_run(crowd_trace(*CROWDS[name]))
    (told,) = record([run])["runs"]
    waits = reasons_of_waits(run.history)
    found = screen.show(*crowd_album(CROWDS[name], CROWDS.values())).js(TOLD)
    ends = [step["t"][1] for step in told["steps"]]
    passed = [max(ends[: i + 1]) for i in range(len(ends))]
    waited = 0
    assert len(found) == len(told["requests"])
    for request, columns, story in found:
        segments = [*waits.of(request)]
        starts = []
        for end, (state, reason) in zip(passed, columns, strict=True):
            if state not in WAITING:
                assert reason is None
                continue
            waited += 1
            (holds,) = [one for one in segments if round(one.start_s, 9) < end <= round(one.end_s, 9)]
            assert (reason["code"], reason["text"]) == (holds.code, holds.text)
            at = reason["at"]
            assert round(holds.start_s, 9) < passed[at] <= end
            assert at == 0 or passed[at - 1] <= round(holds.start_s, 9)
            if not starts or starts[-1] != reason:
                starts.append(reason)
        assert story == starts
    assert waited


# Of each reason that requests have had since different columns: a later column, its text, and the last of these.
SINCE = """
const model = window.app.main, found = [];
for (let i = 0; i < model.length; i++) {
  const groups = Map.groupBy(model.requests.keys().map((r) => model.reasonAt(i, r)).filter(Boolean), ({text}) => text);
  for (const [text, told] of groups) {
    const since = told.map(({at}) => at);
    if (new Set(since).size > 1 && Math.max(...since) < i) found.push([i, text, Math.max(...since)]);
  }
}
return found;
"""


def test_a_reason_is_told_since_it_holds_for_all_of_its_requests(screen: Screen) -> None:
    (i, text, since), *_ = screen.open(crowd_page("static")).js(SINCE)
    screen.js("app.select(arguments[0])", i)
    told = screen.js(
        "return [...document.querySelectorAll('#why-a .why-reason')].map((one) =>"
        " [one.textContent, Number(one.querySelector('button')?.dataset.iteration ?? -1)])"
    )
    assert [column for words, column in told if text in words] == [since]

"""What the page opens with, in a browser: what its address says, or else what differs or happens first."""

from __future__ import annotations

from pathlib import Path

import pytest

from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run
from minifuse.trace.log import read_trace

from .conftest import Pages, Screen, Traces
from .crowd import BLOCKS, crowd_page
from .memory_map import columns


@pytest.mark.parametrize("address", ["", "#theme=dark&by=token"])
def test_two_runs_that_differ_are_shown_where_they_do(
    screen: Screen, traces: Traces, tmp_path: Path, address: str
) -> None:
    """The second run decides as the first one does, so B is the third."""
    vllm, static = (read_run(path) for path in traces("vllm", "static"))
    page = tmp_path / "page.html"
    page.write_text(assemble(record([vllm, vllm, static])), encoding="utf-8")
    steps = [[event for event in run.events if event["event"] == "step"] for run in (vllm, static)]
    keys = ("work", "admitted", "evicted", "phase")
    differs = next(k for k, (a, b) in enumerate(zip(*steps, strict=False)) if any(a[n] != b[n] for n in keys))
    assert differs, "the first iteration must be alike for the test to mean something"
    state = screen.open(page, address).state()
    assert (state["a"], state["b"]) == ("vllm 1", "static")
    numbers = screen.js("return [app.main.steps[app.index].number, app.other.steps[app.indexOther].number]")
    assert numbers == [steps[0][differs]["step"], steps[1][differs]["step"]]
    assert "first decision that differs" in screen.text("difference")
    assert screen.find("#overview").get_attribute("open")


@pytest.mark.parametrize("address", ["run=static", "i=0", "b=", "request=r1", "stops=5", "predict=any"])
@pytest.mark.parametrize("behind", [True, False])
def test_an_address_keeps_its_meaning(
    screen: Screen, traces: Traces, pages: Pages, tmp_path: Path, address: str, behind: bool
) -> None:
    """Behind # in its URL, or as a notebook gives it."""
    if behind:
        state = screen.open(pages("static", "vllm"), f"#{address}").state()
    else:
        page = tmp_path / "page.html"
        runs = [read_run(path) for path in traces("static", "vllm")]
        page.write_text(assemble(record(runs), address), encoding="utf-8")
        state = screen.open(page).state()
    assert (state["a"], state["b"], state["position"]) == ("static", None, 0)
    assert state["request"] == (1 if "request" in address else None)


def test_one_run_is_shown_where_its_technique_first_does_what_it_is_about(screen: Screen) -> None:
    evicted = next(i for i, step in enumerate(columns("vllm", BLOCKS)) if step.get("evicted"))
    assert evicted > 1
    assert screen.open(crowd_page("vllm", BLOCKS)).state()["position"] == evicted


def test_one_run_without_actions_is_shown_where_something_waits_or_is_idle(screen: Screen, traces: Traces) -> None:
    arrivals = [e["arrival_s"] for e in read_trace(traces("static")[0]) if e["event"] == "request"]
    assert arrivals[1] > arrivals[0]
    screen.open(crowd_page("orca"))
    assert screen.js("return app.overview === null")
    waits = screen.js(
        "const {main} = app; return main.steps.map(({idle}, i) => idle > 0 ||"
        " main.requests.some((_, r) => ['waiting', 'suspended'].includes(main.stateAt(i, r))))"
    )
    assert screen.state()["position"] == waits.index(True)

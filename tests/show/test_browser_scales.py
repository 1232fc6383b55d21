"""A and B are drawn on common scales, and on one screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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

from .conftest import PROMPTS, Pages, Screen
from .pictures import drawn


def test_charts_of_a_and_b_have_the_same_upper_edges(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=static&b=vllm&i=5&request=r1")
    own, shown = screen.js(
        "const most = (values) => values.reduce((a, b) => Math.max(a, b), 0);"
        "const tops = ({charts: {charts}}) =>"
        " charts.map(({series}) => Math.max(...series.map(({values}) => most(values))));"
        "return [app.sides().map(tops), app.sides().map(({charts: {charts}}) => charts.map(({top}) => top))]"
    )
    assert own[0] != own[1], "they must differ for the test to mean something"
    assert shown[0] == shown[1] == [max(pair) for pair in zip(*own, strict=True)]
    labels = [
        [one.text for one in drawn(screen, f"charts-{side}") if one.kind == "text" and one.x == 4] for side in "ab"
    ]
    assert labels[0] == labels[1]
    gaps = screen.js(
        "return app.sides().map(({charts: {gaps, longest}}) =>"
        " [Math.max(...gaps.map(({seconds}) => seconds)), longest])"
    )
    assert gaps[0][0] != gaps[1][0]
    assert [longest for _, longest in gaps] == [max(own for own, _ in gaps)] * 2
    screen.js("app.setOther(null)")
    assert screen.js("return app.a.charts.charts.map(({top}) => top)") == own[0]


def test_equal_columns_of_a_and_b_are_equally_wide(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm", "orca"), "#run=static&b=vllm&i=0&mode=iterations")
    widths = "return app.sides().map(({axis}) => axis.width)"
    lengths = screen.js("return app.sides().map(({model}) => model.length)")
    assert lengths[0] != lengths[1]
    assert screen.js("return Math.max(...app.sides().map(({axis, lanes}) => axis.total / lanes.seen)) <= 1.001")
    seen = set()
    for act in ("0", "+", "+", "t", "t", "0"):
        screen.press(act)
        if screen.state()["mode"] == "iterations":
            a, b = screen.js(widths)
            assert a == b
            seen.add(a)
    assert len(seen) > 2
    screen.press("+", "+")
    screen.js("app.setOther(app.runs[2])")  # which was never zoomed
    a, b = screen.js(widths)
    assert a == b


@pytest.fixture(scope="module")
def twenty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs of twenty requests."""
    folder = tmp_path_factory.mktemp("twenty")
    source = resolve("tiny")
    encode, model = source.tokenizer().encode, source.load("float32", "cpu", 0)
    settings = Settings(clock="virtual", kv_memory=192 * 2**10, why=True)
    runs = []
    for name in ("static", "vllm"):
        requests = [Request(f"r{i}", encode(PROMPTS[i % 6]), 12, arrival_s=0.0002 * i) for i in range(20)]
        serve(build_engine(resolve_run(technique(name), source, settings), model, folder / name), requests)
        runs.append(read_run(folder / name))
    page = folder / "page.html"
    page.write_text(assemble(record(runs)), encoding="utf-8")
    return page


BOXES = """
const box = (one) => one.getBoundingClientRect();
const names = ["#side-a", "#side-b", "#memory-a canvas", "#now-part", "#why-a li"];
return [scrollY, ...names.map((css) => box(document.querySelector(css))).flatMap(({top, bottom}) => [top, bottom])];
"""


def test_lanes_memory_and_reasons_are_on_one_screen(screen: Screen, twenty: Path) -> None:
    screen.resize(1400, 900)
    screen.open(twenty)
    assert screen.state()["b"] == "vllm"
    assert screen.find("#overview").get_attribute("open")
    scrolled, *edges = screen.js(BOXES)
    assert scrolled == 0
    assert min(edges) > 0
    assert max(edges) <= 900
    scrolls = "return app.sides().map(({lanes: {host}}) => host.scrollHeight - host.clientHeight)"
    assert screen.js(scrolls) == [0, 0], "every request has a row that is seen"


def test_nothing_above_the_lanes_moves_them_when_one_goes_on(screen: Screen, twenty: Path) -> None:
    screen.resize(1400, 900)
    screen.open(twenty)
    tops: dict[Any, list[int]] = {}
    for i in range(40):
        screen.js("app.select(arguments[0])", i)
        tops.setdefault(screen.find("#side-a").rect["y"], []).append(i)
    assert len(tops) == 1, tops

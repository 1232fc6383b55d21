"""Charts in a browser: what they draw is what the trace tells."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from replay_runs import long_run

from minifuse.trace.log import read_trace

from .conftest import Pages, Screen, Traces
from .crowd import SWAP, TIERS, crowd_page
from .pictures import GUTTER, colours, drawn


def test_charts_tell_what_the_trace_does(screen: Screen, pages: Pages, traces: Traces) -> None:
    screen.open(pages("static", "vllm"), "#run=static&request=r1&i=4")
    steps = [event for event in read_trace(traces("static")[0]) if event["event"] in ("step", "wait")]
    assert f"{steps[4]['computed']} computed, {steps[4]['idle']} idle" in screen.text("charts-a")
    assert f"{steps[4]['kv'][1]} set aside, {steps[4]['kv'][0]} in use" in screen.text("charts-a")
    assert "r1: TTFT" in screen.text("charts-a")


def test_requests_that_were_evicted_are_in_the_queue(screen: Screen) -> None:
    screen.open(crowd_page("vllm", SWAP))
    queue, states = screen.js(
        "const {main} = app, {starts} = main;"
        "return [[...main.queue], [...starts.keys()].map((i) => main.requests.map((_, r) => main.stateAt(i, r)))]"
    )
    assert queue == [sum(state in ("waiting", "suspended") for state in column) for column in states]
    most = max(range(len(queue)), key=lambda i: states[i].count("suspended"))
    assert states[most].count("suspended")
    screen.js("app.select(arguments[0])", most)
    assert f"Queue: {queue[most]} request" in screen.text("charts-a")


def test_moves_beside_an_iteration_are_no_pause(screen: Screen) -> None:
    """But of an iteration that ends behind the next stop of Predict nothing is told."""
    page = crowd_page("pensieve", TIERS)
    values = "return app.a.charts.charts.slice(0, 2).map(({series}) => [...series[0].values])"
    screen.open(page, "#mode=iterations")
    beside = screen.js(
        "const m = app.main, {steps} = m.run, all = [...steps.keys()];"
        "return all.filter((i) => !steps[i].w && !steps[i].wait).map((i) => [i, all.find((j) => j > i && steps[j].w)])"
        ".filter(([i, j]) => j !== undefined && m.starts[j] < m.ends[i])"
    )
    assert beside
    for column, iteration in beside:
        for shown in screen.js(values):
            assert shown[column] == shown[iteration] > 0
    column, _ = beside[0]
    screen.js("app.limitOf = () => arguments[0]; app.a.charts.layout(app.main)", column)
    assert [[len(shown), shown[column]] for shown in screen.js(values)] == [[column + 1, 0]] * 2


def test_charts_in_time_never_run_backwards(screen: Screen, pages: Pages) -> None:
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
    for outlines in paths:
        areas = [xs for xs in outlines if len(xs) > 6]
        assert len(areas) >= 2
        for xs in areas:
            assert all(before <= after + 1e-6 for before, after in pairwise(xs))


def test_charts_in_time_sum_over_workers(screen: Screen, pages: Pages) -> None:
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


def test_cells_have_states_and_charts_a_key(screen: Screen, pages: Pages) -> None:
    screen.open(pages("cellular", "graph-padded", "graph-merged", model="lstm"))
    assert "states in use" in screen.text("overview")
    assert "KV" not in screen.js("return document.querySelector('#overview summary').textContent")
    screen.open(pages("static", "vllm"), "#run=static&i=0")
    key = "return [...document.querySelectorAll('#charts-a .chart-key li')].map((one) => one.textContent)"
    assert screen.js(key) == ["Tokens computed: computed", "Tokens computed: idle", "KV: set aside", "KV: in use"]
    screen.js("app.main.host[3] = 5; app.main.kept[3] = 2; app.a.charts.subject = null; app.layout()")
    assert screen.js(key)[-2:] == ["KV: kept", "KV: on the host"]


def test_of_columns_in_one_pixel_the_largest_value_is_drawn(screen: Screen, long_page: Path) -> None:
    computed = [step["c"] for step in long_run(3000)["runs"][0]["steps"]]
    screen.open(long_page, "#i=0&mode=iterations")
    screen.press("0")
    width = screen.js("return app.a.axis.width")
    assert width < 0.5, "several columns must lie in a pixel for the test to mean something"
    shade = colours(screen, "prompt")["prompt"]
    (area,) = [one.points for one in drawn(screen, "charts-a") if one.kind == "polyline" and one.fill == shade]
    base = 2 * (44 + 12)
    steps = [(area[k], area[k + 1]) for k in range(1, len(area) - 1, 2)]
    assert len(steps) > 300
    mixed = 0
    for (x, y), (end, also) in steps:
        first, stop = (round((one - GUTTER) / width) for one in (x, end))
        inside = computed[first:stop]
        assert y == also == pytest.approx(base - max(inside) / max(computed) * 42, abs=0.01)
        mixed += min(inside) < max(inside)
    assert mixed > 10, "values must differ within a pixel for the test to mean something"

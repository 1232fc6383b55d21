"""Lanes in a browser: what is drawn where, and what is told of what is under the mouse."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run
from minifuse.trace.log import read_trace

from .conftest import Pages, Screen, Traces
from .crowd import FEW_SLOTS, TIERS, Options, crowd_page, crowd_trace
from .pictures import GUTTER, HEAD, ROW, colours, drawn, in_row


def test_lanes_are_clicked_and_tell_of_what_is_under_the_mouse(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#i=0")
    x, y = screen.js("const axis = app.a.axis; return [76 + axis.x(9) + axis.width / 2, 18 + 20 * 2.5]")
    screen.click_at("#lanes-a canvas", x, y)
    state = screen.state()
    assert (state["position"], state["request"]) == (9, 2)
    assert screen.js("return document.querySelector('#lanes-a .tip').textContent").startswith("r2: ")
    assert "r2" in screen.text("story-a")


def test_lanes_tell_every_state_and_idle_computation(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "fusion", "baton-pd"))
    states = screen.js(
        "return app.runs.map((model) => [...new Set(model.requests.flatMap((_, r) =>"
        " model.spans(r).map((span) => span.state)))].sort())"
    )
    assert states[0] == ["finished", "running", "waiting"]
    assert set(states[1]) | set(states[2]) >= {"finished", "preprocessing", "ready", "running"}
    assert screen.js("return app.main.requests.some((_, r) => app.main.idleColumns(r).length > 0)")
    assert "idle computation" in screen.text("legend")


def test_columns_are_as_wide_as_they_took(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"))
    screen.choose("mode", "in time")
    widths, times = screen.js(
        "const {axis} = app.a, m = app.main, all = [...m.starts.keys()];"
        "return [all.map((i) => axis.right(i) - axis.x(i)), all.map((i) => m.ends[i] - m.starts[i])]"
    )
    longest = max(range(len(times)), key=times.__getitem__)
    assert max(times) > 1.2 * min(times)
    assert widths[longest] == max(widths)
    before = screen.js("return app.a.axis.width")
    screen.click("#wider")
    assert screen.js("return app.a.axis.width") > before
    screen.click("#fit")
    assert screen.js("return app.a.axis.total <= app.a.lanes.seen + 1")


def test_who_runs_beside_another_worker_is_not_left_out(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "fusion"), "#run=fusion&i=0")
    # Columns of pre-processing that end while the main stream computes for a request: r, and the column in between.
    beside = screen.js(
        "const m = app.main, found = [];"
        "m.requests.forEach((_, r) => m.workColumns(r).forEach((j, k, own) => {"
        "  for (let i = (own[k - 1] ?? j) + 1; k && i < j; i++) {"
        "    const {k: worker = 0} = m.run.steps[i];"
        "    if (worker && !(m.run.steps[j].k ?? 0) && m.starts[j] < m.ends[i]) found.push([r, i, j]); } }));"
        "return found"
    )
    assert beside, "pre-processing must run beside the main stream for the test to mean something"
    for r, i, j in beside[:5]:
        drawn = screen.js(
            "const {from, to} = app.a.lanes.rows.beside[arguments[0]];"
            "return from.some((one, k) => one <= arguments[1] && to[k] > arguments[2])",
            *(r, i, j),
        )
        assert drawn, f"request {r} looks left out of iteration {i}, though iteration {j} computes for it then"
    r, i, j = beside[0]
    screen.js(f"app.select({i})")
    x, y = screen.js(
        f"const axis = app.a.axis; return [76 + axis.x({i}) + axis.width / 2 - axis.left, 18 + 20 * ({r} + 0.5)]"
    )
    screen.click_at("#lanes-a canvas", x, y)
    assert f"in iteration {j} on the main stream" in screen.js(
        "return document.querySelector('#lanes-a .tip').textContent"
    )


def test_the_whole_run_stays_seen_when_the_page_changes_its_size(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=static&i=0")
    screen.press("0")
    beyond = "const {host} = app.a.lanes; return host.scrollWidth - host.clientWidth"
    assert screen.js(beyond) == 0
    screen.resize(800, 720)
    assert screen.js(beyond) == 0
    narrow = screen.js("return app.a.axis.width")
    screen.resize(1280, 720)
    assert screen.js("return app.a.axis.width") > narrow
    screen.press("+", "+", "+", "+")
    wide = screen.js("return app.a.axis.width")
    screen.resize(800, 720)
    assert screen.js("return app.a.axis.width") == wide


@pytest.mark.parametrize("width", [1280, 1600, 1800])
def test_lanes_have_at_least_half_of_the_width(screen: Screen, pages: Pages, width: int) -> None:
    screen.resize(width, 900)
    screen.open(pages("static", "vllm"), "#run=static&i=5")
    assert screen.find("#lanes-a").rect["width"] >= width / 2


@pytest.mark.parametrize(("name", "options"), [("dynamic", ()), ("pensieve", TIERS), ("fusion", FEW_SLOTS)])
def test_columns_are_called_as_the_trace_calls_them(screen: Screen, name: str, options: Options) -> None:
    steps = [e for e in read_trace(crowd_trace(name, options)) if e["event"] in ("step", "wait")]
    kinds = {step["event"] if step["event"] == "wait" or step["work"] else "moves" for step in steps}
    numbers = [step.get("step") for step in steps]
    assert numbers != [*range(len(steps))], "columns must be others than iterations for the test to mean something"
    assert kinds == {"step", *({"dynamic": ["wait"], "pensieve": ["moves"]}.get(name, []))}
    screen.open(crowd_page(name, options), "#i=0")
    told = screen.js(
        "const found = []; const text = (id) => document.getElementById(id).textContent;"
        "for (const i of app.main.starts.keys()) {"
        "  app.select(i); found.push([text('now'), text('position'), app.a.charts.canvas.ariaLabel]); }"
        "return found"
    )
    for i, (step, (now, position, label)) in enumerate(zip(steps, told, strict=True)):
        if step["event"] == "wait":
            called, begins = "a wait", "Nothing ran"
        elif step["work"]:
            called = f"iteration {step['step']}"
            begins = called.capitalize()
        else:
            called = f"moves alone, step {step['step']}"
            begins = called.capitalize()
        assert now.startswith((f"{begins}:", f"{begins} on ", f"{begins}, "))
        assert position.startswith(f"{called.capitalize()}, from ")
        assert f"(column {i} of {len(steps) - 1})" in position
        assert f" In {called}: " in label


def test_labels_of_columns_are_numbers_of_iterations(screen: Screen) -> None:
    steps = [e for e in read_trace(crowd_trace("dynamic")) if e["event"] in ("step", "wait")]
    screen.open(crowd_page("dynamic"), "#i=60&mode=iterations")
    screen.press("0")
    left, width = screen.js("return [app.a.axis.left, app.a.axis.width]")
    marks = [one for one in drawn(screen, "lanes-a") if one.kind == "text" and one.text.isdigit() and one.y < HEAD]
    assert len(marks) > 3
    for mark in marks:
        column = round((mark.x - 3 - GUTTER + left) / width)
        assert steps[column]["event"] == "step"
        assert steps[column]["step"] == int(mark.text)
    assert any(steps[round((mark.x - 3 - GUTTER + left) / width)]["step"] * width != mark.x for mark in marks)


def test_names_end_where_lanes_begin(screen: Screen, tmp_path: Path) -> None:
    """However wide their letters are; a name that fits is whole."""
    lines = [json.loads(line) for line in crowd_trace("vllm").read_text(encoding="utf-8").splitlines()]
    named = {"r0": "WWWWWWWW", "r1": "conversation 12, turn 3", "r2": "iiiiiiiii", "r3": "x" * 2000}
    trace = tmp_path / "run.jsonl"
    text = "\n".join(json.dumps(line) for line in lines)
    for old, new in named.items():
        text = re.sub(rf'"{old}"', json.dumps(new), text)
    trace.write_text(text + "\n", encoding="utf-8")
    page = tmp_path / "page.html"
    page.write_text(assemble(record([read_run(trace)])), encoding="utf-8")
    for chosen in ("WWWWWWWW", "conversation 12, turn 3"):
        screen.open(page, f"#i=9&request={quote(chosen)}")
        names, ends = screen.js(
            "dispatchEvent(new Event('beforeprint')); const beside = ['lanes-a', 'charts-a'].flatMap((host) =>"
            " [...document.querySelectorAll(`#${host} .printed text`)].filter((one) => one.getAttribute('x') < 76));"
            "const found = [beside.map((one) => one.textContent),"
            " beside.map((one) => Number(one.getAttribute('x')) + one.getComputedTextLength())];"
            "dispatchEvent(new Event('afterprint')); return found"
        )
        assert max(ends) <= GUTTER
        assert {"iiiiiiiii", "r4"} <= {*names}
        assert sum(name.endswith("\u2026") for name in names) == 4  # of three requests, and of one the gaps


def test_workers_are_called_by_their_names(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "fusion"), "#run=fusion&i=0")
    for i, worker in enumerate(screen.js("return app.main.run.steps.map(({k, w}) => (w ? k ?? 0 : null))")):
        if worker is not None:
            screen.js("app.select(arguments[0])", i)
            assert f" on the {'pre-processing' if worker else 'main'} stream" in screen.text("now")


def shares(work: list[list[Any]], idle: int) -> dict[str, float]:
    """The share of each type of cells in what is computed, in the order of the waves, and of what is idle."""
    counts = {cell: sum(one[3] == cell for one in work) for cell in dict.fromkeys(one[3] for one in work)}
    total = len(work) + idle
    return {cell: count / total for cell, count in [*counts.items(), ("idle", idle)] if count}


@pytest.mark.parametrize("mode", ["iterations", "time"])
@pytest.mark.parametrize("name", ["graph-padded", "graph-merged"])
def test_a_column_of_several_types_is_divided_among_them(screen: Screen, name: str, mode: str) -> None:
    """In the rows of workers and of requests, in the order of the waves, in shares of the nodes that are computed."""
    step = next(e for e in read_trace(crowd_trace(name, (), "seq2seq")) if e["event"] == "step")
    assert {one[3] for one in step["work"]} == {"encoder", "decoder"}
    assert bool(step["idle"]) == (name == "graph-padded")
    screen.open(crowd_page(name, (), "seq2seq"), f"#i=0&mode={mode}")
    screen.press("+", "+")
    names = ["encoder", "decoder", "idle"]
    fills = dict(zip(names, colours(screen, "task-0", "task-1", "idle-soft").values(), strict=True))
    begin, end, left = screen.js("const {axis} = app.a; return [axis.x(0), axis.right(0), axis.left]")
    begin, end = (GUTTER + one - left for one in (begin, end))
    shapes = drawn(screen, "lanes-a")
    rows = [(0, shares(step["work"], step["idle"]))]
    for r, request in enumerate(screen.js("return app.main.requests.map(({id}) => id)")):
        own = [one for one in step["work"] if one[0] == request]
        if own:
            rows.append((1 + r, shares(own, step["shape"]["steps"] - len(own) if step["shape"] else 0)))
    assert len(rows) > 3
    for row, wanted in rows:
        found = [one for one in in_row(shapes, row, fills) if one[1] < end - 1]
        assert [cell for cell, *_ in found] == [*wanted], f"row {row}"
        x = begin
        for (_, from_x, to_x), share in zip(found, wanted.values(), strict=True):
            assert from_x == pytest.approx(x, abs=0.1)
            x += share * (end - begin)
            assert to_x == pytest.approx(x, abs=0.1)


def test_what_is_under_the_mouse_names_the_types(screen: Screen) -> None:
    step = next(e for e in read_trace(crowd_trace("graph-padded", (), "seq2seq")) if e["event"] == "step")
    screen.open(crowd_page("graph-padded", (), "seq2seq"), "#i=0")
    tip = "return document.querySelector('#lanes-a .tip').textContent"
    counts = [sum(one[3] == cell for one in step["work"]) for cell in ("encoder", "decoder")]
    screen.click_at("#lanes-a canvas", GUTTER + 20, HEAD + ROW / 2)
    told = f"{counts[0]} encoder nodes and {counts[1]} decoder nodes, and {step['idle']} nodes idle; iteration 0"
    assert screen.js(tip).startswith(f"worker 0: {told}")
    name = step["work"][0][0]
    own = [one[3] for one in step["work"] if one[0] == name]
    row = screen.js("return app.main.requests.findIndex(({id}) => id === arguments[0])", name)
    screen.click_at("#lanes-a canvas", GUTTER + 20, HEAD + ROW * (row + 1.5))
    padding = step["shape"]["steps"] - len(own)
    told = f"{own.count('encoder')} encoder nodes and {own.count('decoder')} decoder nodes computed"
    assert screen.js(tip).startswith(f"{name}: running, {told}, and {padding} nodes of padding; iteration 0")


def test_padding_is_drawn_above_what_is_computed(screen: Screen, pages: Pages, traces: Traces) -> None:
    steps = [e for e in read_trace(traces("static")[0]) if e["event"] in ("step", "wait")]
    column, step = next((i, s) for i, s in enumerate(steps) if s.get("idle") and len({w[2] for w in s["work"]}) > 1)
    width = step["shape"]["stop"] - step["shape"]["start"]
    assert width > 1
    screen.open(pages("static", "vllm"), f"#run=static&mode=iterations&i={column}")
    shapes, idle = drawn(screen, "lanes-a"), colours(screen, "idle-soft")["idle-soft"]
    x, right = screen.js(
        "const {axis} = app.a; return [axis.x(arguments[0]), axis.right(arguments[0])].map((one) => one - axis.left)",
        column,
    )
    padded = 0
    for name, start, stop in step["work"]:
        top = HEAD + ROW * int(name.removeprefix("r")) + 2
        share = 1 - (stop - start) / width
        found = [
            (one.h, one.w)
            for one in shapes
            if one.fill == idle and abs(one.x - GUTTER - x) < 0.1 and abs(one.y - top) < 0.1
        ]
        assert found == ([pytest.approx((16 * share, right - x), abs=0.1)] if share else [])
        padded += bool(share)
    assert padded


def test_waiting_begins_with_the_arrival(screen: Screen, pages: Pages) -> None:
    screen.open(pages("static", "vllm"), "#run=static&mode=time&i=0")
    screen.press("0")
    fills = colours(screen, "waiting-soft")
    shapes = drawn(screen, "lanes-a")
    begins = screen.js(
        "const {axis} = app.a, m = app.main; return m.requests.map(({arrival}, r) => ["
        "  (arrival - axis.origin) * axis.scale, axis.x(m.spans(r)[0].from), m.spans(r)[0].state])"
    )
    inside = [r for r, (at, column, state) in enumerate(begins) if state == "waiting" and at - column > 3]
    assert len(inside) > 1, "requests must arrive while an iteration runs for the test to mean something"
    for r in inside:
        assert in_row(shapes, r, fills)[0][1] == pytest.approx(GUTTER + begins[r][0], abs=0.1)

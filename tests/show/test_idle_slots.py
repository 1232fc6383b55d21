"""Which slots the record tells as idle, against the shapes of the trace, slot by slot."""

from __future__ import annotations

from pathlib import Path

import pytest

from minifuse.core.request import Request
from minifuse.model.source import resolve
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run
from minifuse.techniques import technique
from minifuse.trace.log import Event, read_trace, whole_tables
from minifuse.trace.slot_books import Slots, books
from minifuse.trace.slots import slots_of

from .conftest import Screen
from .crowd import FEW_SLOTS, Run, crowd_page, crowd_trace
from .memory_map import LEGEND, columns, point_at, read


def idle_of(step: Event, held: Slots) -> tuple[set[int], set[int]]:
    """The same of a step with a shape, from its definition (`minifuse/core/shapes.py`)."""
    shape = step["shape"]
    fresh = {
        slots_of(place)[token]
        for (_, start, stop), place in zip(step["work"], step["places"], strict=True)
        for token in range(start, stop)
    }
    if shape["kind"] == "Region":
        buffers = range(shape["offset"], shape["offset"] + shape["size"])
        busy = {slot // shape["width"] for slot in fresh}
        own = [set(range(one * shape["width"], (one + 1) * shape["width"])) for one in buffers if one not in busy]
        return set().union(*own), set()
    stride, offset = shape["stride"], shape["offset"]

    def slots(start: int, stop: int) -> set[int]:
        rows = range(shape["rows"])
        return {offset + row * stride + column % stride for row in rows for column in range(start, stop)}

    lying = {slot for slot in slots(shape.get("begin", 0), shape["start"]) if ("device", slot) not in held}
    return slots(shape["start"], shape["stop"]) - fresh, lying


def slots_in(runs: list[int]) -> set[int]:
    """The slots of runs as the record has them."""
    return {slot for first, count in batched(runs) for slot in range(first, first + count)}


def batched(runs: list[int]) -> list[tuple[int, int]]:
    return [*zip(runs[::2], runs[1::2], strict=True)]


def compare(path: Path) -> list[tuple[set[int], set[int]]]:
    """Raise AssertionError unless the record has as idle what the shapes of the trace make so."""
    (run,) = record([read_run(path)])["runs"]
    right = []
    for frame, told in zip(books(read_trace(path)), run["steps"], strict=True):
        step, idle = frame.event, (slots_in(told.get("id", [])), slots_in(told.get("ly", [])))
        if step["event"] == "step" and step["shape"]:
            right.append(idle_of(step, frame.held))
            assert idle == right[-1], f"step {step['step']}"
            assert len(right[-1][0]) == step["idle"] or step["shape"]["kind"] == "Region"
        else:
            assert idle == (set(), set()), "nothing is computed"
    return right


RUNS: dict[str, Run] = {
    **{name: (name,) for name in ("static", "dynamic", "baton", "baton-pd")},
    "fusion": ("fusion", FEW_SLOTS),
}


@pytest.mark.parametrize("name", RUNS)
def test_idle_slots_are_those_of_the_shape_that_no_work_writes(name: str) -> None:
    found = compare(crowd_trace(*RUNS[name]))
    if name != "fusion":
        assert any(lying for _, lying in found)
    if name in ("static", "baton"):
        assert any(computed for computed, _ in found)


def test_columns_may_be_numbered_to_the_left_of_the_first(tmp_path: Path) -> None:
    """A long prompt that ends with a short one's token begins in the last slots of its row, which is a ring."""
    source = resolve("tiny")
    encode = source.tokenizer().encode
    path = tmp_path / "embedded.jsonl"
    requests = [
        Request("a", encode("a"), 60, ignore_eos=True),
        Request("b", encode("count from 3 to 8 and add 17"), 6, arrival_s=0.001, ignore_eos=True),
    ]
    settings = Settings(clock="virtual", kv_memory=800 * 2**10, stage_options={"memory.insert": "embed"})
    serve(
        build_engine(resolve_run(technique("baton"), source, settings), source.load("float32", "cpu", 0), path),
        requests,
    )
    compare(path)
    steps = [event for event in read_trace(path) if event["event"] == "step"]
    assert min(step["shape"].get("begin", 0) for step in steps) < 0, "the scenario is without what it is for"


def test_idle_computation_is_told_apart_from_what_is_free(screen: Screen) -> None:
    """A finished row of a padded batch goes on being computed, though no request needs it."""
    steps = columns("static")
    i = next(i for i, step in enumerate(steps) if step["event"] == "step" and step["idle"] and len(step["work"]) > 1)
    idle, _ = idle_of(next(step for step in whole_tables(steps[i : i + 1])), {})
    assert len(idle) == steps[i]["idle"]
    screen.open(crowd_page("static"), f"#i={i}")
    assert "computed, and needed by no request" in read(screen, LEGEND)
    drawn = screen.js(
        "const view = window.app.a.memory; const seen = [];"
        "const plain = new Proxy({width: 900, height: 900, measure: () => 20}, {get: (at, key) => at[key] ??"
        " ((...given) => { if (key === 'rect' && given[4]?.pattern === 'backstripes') seen.push(given); })});"
        "view.drawOn(plain, view.surface.width); const [{boxWidth, columns}] = view.layout.panels;"
        "return seen.reduce((sum, [, , w]) => sum + w, 0) / (boxWidth / columns)"
    )
    assert round(drawn, 3) == len(idle)
    assert "needed by no request" in point_at(screen, "device", min(idle))

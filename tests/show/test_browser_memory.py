"""The memory map in a browser: its forms, its moves, its words, by pointing, clicking and typing."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from minifuse.show.page import assemble
from minifuse.show.record import record
from minifuse.show.traced_runs import read_run
from minifuse.trace.log import read_trace, whole_tables
from minifuse.trace.slot_books import books

from .conftest import Screen
from .crowd import BLOCKS, FEW_SLOTS, SHARE, SWAP, TIERS, WAVES, Run, crowd_album, crowd_page, crowd_trace
from .memory_map import LEGEND, MAP, WORDS, centre, columns, moving, panels, point_at, read


def pixel(screen: Screen, tier: str, slot: int) -> list[int]:
    """The colour in the lower part of a slot, where no name is."""
    x, y = centre(screen, tier, slot)
    found: list[int] = screen.js(
        "const map = document.querySelector(arguments[0]); const ratio = map.width / map.getBoundingClientRect().width;"
        "const copy = document.createElement('canvas'); const dot = copy.getContext('2d', {willReadFrequently: true});"
        "dot.drawImage(map, -Math.floor(arguments[1] * ratio), -Math.floor(arguments[2] * ratio));"
        "return [...dot.getImageData(0, 0, 1, 1).data].slice(0, 3)",
        MAP,
        x,
        y,
    )
    return found


FORMS: dict[Run, list[str]] = {
    ("static",): ["rectangle"],
    ("orca",): ["line"],
    ("fusion", FEW_SLOTS): ["region"],
    ("vllm", BLOCKS): ["blocks"],
    ("vllm", SWAP): ["blocks", "blocks"],
    ("cellular", (), "lstm"): ["states"],
}


@pytest.mark.parametrize(("run", "kinds"), FORMS.items())
def test_a_memory_has_the_form_of_its_kind(run: Run, kinds: list[str], screen: Screen) -> None:
    screen.show(*crowd_album(run, FORMS), 4)
    assert [panel["kind"] for panel in panels(screen) if panel["kind"] != "rest"] == kinds


def test_a_rectangle_has_a_row_for_each_row_and_a_region_a_box_for_each_buffer(screen: Screen) -> None:
    (shape, i) = next((e["shape"], i) for i, e in enumerate(columns("static")) if e["event"] == "step" and e["shape"])
    screen.open(crowd_page("static"), f"#i={i}")
    panel = panels(screen)[0]
    assert (panel["unit"], panel["count"], panel["across"]) == (shape["stride"], shape["rows"] * shape["stride"], 1)
    width = next(e["shape"]["width"] for e in columns("fusion", FEW_SLOTS) if e.get("shape"))
    screen.open(crowd_page("fusion", FEW_SLOTS), "#i=4")
    panel = panels(screen)[0]
    assert (panel["unit"], panel["count"], panel["across"]) == (width, 3 * width, 3)


def test_pointing_at_a_slot_tells_its_owner_and_token_and_what_moves(screen: Screen) -> None:
    i = moving("fusion", FEW_SLOTS, "shuffle")
    step = columns("fusion", FEW_SLOTS)[i]
    _, source, target, count, *_ = next(move for move in step["moves"] if move[0] == "shuffle")
    owner = next(work[0] for work, place in zip(step["work"], step["places"], strict=True) if place[0] == target)
    screen.open(crowd_page("fusion", FEW_SLOTS), f"#i={i}")
    told = point_at(screen, "device", target + 1)
    assert f"slot {target + 1}," in told
    assert f"of {owner}; token 1; written" in told
    assert f"shuffle to here from slot {source + 1}" in told
    told = point_at(screen, "device", source + 1)
    assert "free" in told
    assert f"shuffle from here to slot {target + 1}" in told
    start = next(work[1] for work in step["work"] if work[0] == owner)
    assert "reserved and still empty" in point_at(screen, "device", target + start + 1)
    assert count == start


def test_slots_have_the_colours_of_their_owners(screen: Screen) -> None:
    """What is drawn, pixel by pixel: a written slot, a reserved one, a free one."""
    i = 3
    step = columns("orca")[i]
    screen.open(crowd_page("orca"), f"#i={i}&theme=light")
    found = set()
    for (name, start, _), (offset, size) in zip(step["work"], step["places"], strict=True):
        r = int(name[1:])
        colour = screen.js(
            "const told = window.app.colour(arguments[0]);"
            "return [1, 3, 5].map((k) => parseInt(told.slice(k, k + 2), 16))",
            r,
        )
        assert pixel(screen, "device", offset + 1) == colour
        if start + 2 < size:
            assert pixel(screen, "device", offset + size - 1) != colour
        found.add(tuple(colour))
    assert found


def test_a_click_on_a_slot_selects_its_owner(screen: Screen) -> None:
    screen.open(crowd_page("orca"), "#i=3")
    step = columns("orca")[3]
    (name, *_), (offset, _) = step["work"][-1], step["places"][-1]
    x, y = centre(screen, "device", offset)
    screen.click_at(MAP, x, y)
    assert screen.state()["request"] == int(name[1:])


def test_with_waves_the_device_is_drawn_for_each(screen: Screen) -> None:
    i = moving("fluid", WAVES, "upload")
    step = columns("fluid", WAVES)[i]
    waves = step["waves"]
    assert len(waves) > 1
    screen.open(crowd_page("fluid", WAVES), f"#i={i}")
    strips = [panel for panel in panels(screen) if panel["kind"] == "strip"]
    assert [strip["name"] for strip in strips] == [f"wave {k + 1}" for k in range(len(waves))]
    # What a wave attends to is on the device while it does.
    whole = list(whole_tables(columns("fluid", WAVES)))[i]
    for wave, (start, stop) in enumerate(waves):
        for work, (blocks, size) in zip(whole["work"][start:stop], whole["places"][start:stop], strict=True):
            told = point_at(screen, "device", blocks[0] * size, wave)
            assert f"while wave {wave + 1} is attended" in told
            assert f"of {work[0]}" in told


def test_shared_blocks_name_all_who_share_them(screen: Screen) -> None:
    steps = columns("vllm", SHARE)
    screen.open(crowd_page("vllm", SHARE), f"#i={moving('vllm', SHARE, 'copy')}")
    shared = screen.js(
        "const {frame, model} = window.app.a.memory; const run = frame.device.find(({owners}) => owners.length > 1);"
        "return [run.first, run.owners.map((r) => model.requests[r].id)]"
    )
    assert len(steps) > 1
    assert f"shared by {', '.join(shared[1])}" in point_at(screen, "device", shared[0])
    assert "shared by several" in read(screen, LEGEND)


def test_what_is_kept_is_told(screen: Screen) -> None:
    steps = columns("pensieve", TIERS)
    i = next(i for i, step in enumerate(steps) if any(step.get("kept", ())) and step["work"])
    screen.open(crowd_page("pensieve", TIERS), f"#i={i}")
    assert f"{steps[i]['kept'][0]} kept" in read(screen, WORDS)
    assert "kept until it is reclaimed" in read(screen, LEGEND)


def test_the_table_tells_the_same_and_is_used_with_the_keyboard(screen: Screen) -> None:
    i = 3
    step = columns("orca")[i]
    screen.open(crowd_page("orca"), f"#i={i}")
    screen.js("document.querySelector('#memory-a summary').focus()")
    screen.press("enter")
    rows = screen.js(
        "return [...document.querySelectorAll('#memory-a table tr')].slice(1).map((row) =>"
        " [...row.children].map((cell) => cell.textContent))"
    )
    right = [
        [name, str(stop), str(place[1] - stop), "0", "0", f"{place[0]} to {place[0] + place[1] - 1}"]
        for (name, _, stop), place in zip(step["work"], step["places"], strict=True)
    ]
    assert sorted(rows) == sorted(right)
    screen.press("tab")
    assert screen.js("return document.activeElement.dataset.request") == "0"
    screen.press("enter")
    assert screen.state()["request"] == 0


def test_a_picture_of_the_map_can_be_exported(screen: Screen) -> None:
    """The same drawing on another surface: it draws nothing that only a canvas can."""
    screen.open(crowd_page("fusion", FEW_SLOTS), f"#i={moving('fusion', FEW_SLOTS, 'shuffle')}")
    calls = screen.js(
        "const seen = {}; const plain = new Proxy({width: 900, height: 900, measure: () => 20}, {get: (at, key) =>"
        " at[key] ?? ((...given) => { seen[key] = (seen[key] ?? 0) + 1; })});"
        "return [window.app.a.memory.drawOn(plain, 900), seen]"
    )
    assert calls[0] > 0
    assert calls[1].keys() <= {"rect", "line", "path", "text", "arrow", "clip", "unclip"}
    assert calls[1]["arrow"] >= 2


@pytest.mark.parametrize("width", [800, 1600])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_drawn_outside_of_the_map(width: int, theme: str, screen: Screen) -> None:
    screen.resize(width, 720)
    screen.open(crowd_page("vllm", SWAP), f"#i={moving('vllm', SWAP, 'swap_out')}&theme={theme}")
    assert screen.js("return document.documentElement.scrollWidth <= innerWidth")
    right = screen.js("return document.querySelector(arguments[0]).getBoundingClientRect().width", MAP)
    for panel in panels(screen):
        assert panel["x"] + panel["across"] * panel["boxWidth"] <= right + 1


@pytest.mark.parametrize("damage", ["a block", "a buffer", "the device"])
def test_slots_beyond_any_device_do_not_stop_the_page(damage: str, screen: Screen, tmp_path: Path) -> None:
    """What can be shown is shown, at once, whatever slots a record names."""
    name, options = ("vllm", BLOCKS) if damage == "a block" else ("fusion", FEW_SLOTS)
    run = read_run(crowd_trace(name, options))
    steps = [event for event in run.events if event["event"] == "step"]
    for step in steps:
        step["kv"][2] = 2 * 10**9
    if damage == "a block":
        steps[0]["places"][0][1][0] = 10**8
    elif damage == "a buffer":
        next(step for step in steps if step["shape"])["shape"]["offset"] = 10**7
    else:
        run.events[0]["kv_capacity_tokens"] = 2 * 10**9
    told = record([run])
    page = tmp_path / "damaged.html"
    page.write_text(assemble(told), encoding="utf-8")
    screen.open(page, "#i=5&request=r1")
    if damage == "the device":
        assert "slots on the device in use" in read(screen, WORDS)
    else:
        assert "more than can be drawn: memory is left out" in read(screen, WORDS)
        assert screen.js("return window.app.a.memory.canvas.getAttribute('aria-label')") == read(screen, WORDS)
    screen.press("right")
    assert screen.state()["position"] == 6
    screen.js("dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('afterprint'))")
    assert len(screen.text("story-a")) > 20


def test_the_owner_of_a_slot_of_the_host_is_named(screen: Screen) -> None:
    i = moving("vllm", SWAP, "swap_out")
    held = next(islice(books(read_trace(crowd_trace("vllm", SWAP))), i, None)).held
    hosted = {slot: one.owners for (tier, slot), one in held.items() if tier == "host"}
    here = {slot: one.owners for (tier, slot), one in held.items() if tier == "device"}
    slot, (owner,) = next((slot, owners) for slot, owners in hosted.items() if here.get(slot) != owners)
    screen.open(crowd_page("vllm", SWAP), f"#i={i}")
    assert f"slot {slot} of the host; of {owner}; written" in point_at(screen, "host", slot)

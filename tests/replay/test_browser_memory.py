"""The memory map in a browser: its forms, its moves, its words, by pointing, clicking and typing."""

from __future__ import annotations

from typing import Any

import pytest

from minifuse.trace import Event, read_trace, whole_tables

from .conftest import Screen
from .crowd import BLOCKS, FEW_SLOTS, LAYERS, ROOMY, SHARE, SWAP, TIERS, WAVES, Options, crowd_page, crowd_trace

WORDS = "#memory-a .memory-words"
LEGEND = "#memory-a .memory-legend"
TIP = "#memory-a .memory-tip"
MAP = "#memory-a canvas"


def columns(name: str, options: Options = (), model: str = "tiny", kv: int = 0) -> list[Event]:
    """Steps and waits, as the page counts them."""
    return [event for event in read_trace(crowd_trace(name, options, model, kv)) if event["event"] in ("step", "wait")]


def moving(name: str, options: Options, kind: str, kv: int = 0) -> int:
    """The first column with such a move."""
    steps = columns(name, options, kv=kv)
    return next(i for i, step in enumerate(steps) if any(move[0] == kind for move in step.get("moves", ())))


def read(screen: Screen, css: str) -> str:
    return str(screen.js("return document.querySelector(arguments[0]).textContent", css))


def panels(screen: Screen) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = screen.js("return window.app.a.memory.layout.panels")
    return found


def point_at(screen: Screen, tier: str, slot: int, wave: int | None = None) -> str:
    """Move the pointer over a slot. Returns what is said of it."""
    from selenium.webdriver.common.action_chains import ActionChains

    canvas = screen.find(MAP)
    screen.js("arguments[0].scrollIntoView({block: 'center'})", canvas)
    x, y = centre(screen, tier, slot, wave)
    box = screen.js("const {width, height} = arguments[0].getBoundingClientRect(); return [width, height]", canvas)
    ActionChains(screen.driver, duration=0).move_to_element_with_offset(
        canvas, round(x - box[0] / 2), round(y - box[1] / 2)
    ).perform()
    return read(screen, TIP)


def centre(screen: Screen, tier: str, slot: int, wave: int | None = None) -> tuple[float, float]:
    """The middle of a slot, from the panels alone: boxes of `unit` slots, `across` in a row, in rows of `columns`."""
    for panel in panels(screen):
        inside = slot - panel["first"]
        if panel["tier"] != tier or not 0 <= inside < panel["count"] or wave not in (None, panel["wave"]):
            continue
        box, at = divmod(inside, panel["unit"])
        across, columns = panel["across"], panel["columns"]
        gap = panel["gap"] if across > 1 else 0
        down = panel["boxHeight"] + (panel["gap"] if across > 1 else 1)
        if at >= panel["seen"]:
            continue
        lines = -(-panel["seen"] // columns)
        x = panel["x"] + box % across * panel["boxWidth"] + (at % columns + 0.5) * (panel["boxWidth"] - gap) / columns
        y = panel["y"] + box // across * down + (at // columns + 0.5) * panel["boxHeight"] / lines
        return x, y
    raise AssertionError(f"slot {slot} of the {tier} is not drawn")


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


@pytest.mark.parametrize(
    ("name", "options", "model", "kinds"),
    [
        ("static", (), "tiny", ["rectangle"]),
        ("orca", (), "tiny", ["line"]),
        ("fusion", FEW_SLOTS, "tiny", ["region"]),
        ("vllm", BLOCKS, "tiny", ["blocks"]),
        ("vllm", SWAP, "tiny", ["blocks", "blocks"]),
        ("cellular", (), "lstm", ["states"]),
    ],
)
def test_a_memory_has_the_form_of_its_kind(
    name: str, options: Options, model: str, kinds: list[str], screen: Screen
) -> None:
    screen.open(crowd_page(name, options, model), "#i=4")
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


@pytest.mark.parametrize(
    ("name", "options", "kind", "words"),
    [
        ("fusion", FEW_SLOTS, "shuffle", "shuffle"),
        ("vllm", SHARE, "copy", "copy on write"),
        ("vllm", SWAP, "swap_out", "swap out"),
        ("vllm", SWAP, "swap_in", "swap in"),
        ("fluid", WAVES, "upload", "upload"),
        ("fluid", WAVES, "offload", "offload"),
        ("baton-pd", (), "embed", "embed"),
    ],
)
def test_each_kind_of_move_is_drawn_named_and_counted(
    name: str, options: Options, kind: str, words: str, screen: Screen
) -> None:
    i = moving(name, options, kind)
    moves = [move for move in columns(name, options)[i]["moves"] if move[0] == kind]
    tokens = sum(move[3] for move in moves)
    screen.open(crowd_page(name, options), f"#i={i}")
    assert f"{words}: {tokens} token" in read(screen, LEGEND)
    assert f"{words}: {tokens} token" in read(screen, WORDS)
    assert f"{words}: {tokens} token" in str(screen.find(MAP).get_attribute("aria-label"))
    strokes = screen.js(
        "const view = window.app.a.memory; const seen = [];"
        "const plain = new Proxy({width: 900, height: 900, measure: () => 20}, {get: (at, key) => at[key] ??"
        " ((...given) => { if (key === 'arrow') seen.push(given[4].stroke); })});"
        "view.drawOn(plain, 900); const own = view._look()[arguments[0]];"
        "return seen.filter((one) => one === own).length",
        kind,
    )
    assert strokes >= min(len(moves), 1)


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


def test_idle_computation_is_told_apart_from_what_is_free(screen: Screen) -> None:
    """A finished row of a padded batch goes on being computed, for nobody."""
    steps = columns("static")
    i = next(i for i, step in enumerate(steps) if step["event"] == "step" and step["idle"] and len(step["work"]) > 1)
    shape = steps[i]["shape"]
    works = zip(steps[i]["work"], steps[i]["places"], strict=True)
    fresh = {place[0] + token for (_, *span), place in works for token in range(*span)}
    idle = [
        shape["offset"] + row * shape["stride"] + column
        for row in range(shape["rows"])
        for column in range(shape["start"], shape["stop"])
        if shape["offset"] + row * shape["stride"] + column not in fresh
    ]
    assert len(idle) == steps[i]["idle"]
    screen.open(crowd_page("static"), f"#i={i}")
    assert "computed, and needed by nobody" in read(screen, LEGEND)
    drawn = screen.js(
        "const {frame, model} = window.app.a.memory; const seen = [];"
        "const plain = new Proxy({width: 900, height: 900, measure: () => 20}, {get: (at, key) => at[key] ??"
        " ((...given) => { if (key === 'rect' && given[4]?.pattern === 'backstripes') seen.push(given); })});"
        "window.app.a.memory.drawOn(plain, 900); return seen.reduce((sum, [, , w]) => sum + w, 0) /"
        " (window.app.a.memory.layout.panels[0].boxWidth / window.app.a.memory.layout.panels[0].columns)"
    )
    assert drawn > 0
    assert "needed by nobody" in point_at(screen, "device", idle[0])


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


# What is drawn: arrows as points along them, titles as boxes.
DRAWN = """
const view = window.app.a.memory; const [arrows, titles] = [[], []];
const plain = new Proxy({width: 900, height: 900, measure: () => 20}, {get: (at, key) => at[key] ?? ((...given) => {
  if (key === 'arrow') {
    const [x1, y1, x2, y2, {bend = 0}] = given; const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const [mx, my] = [(x1 + x2) / 2 + bend * (y2 - y1) / length, (y1 + y2) / 2 - bend * (x2 - x1) / length];
    arrows.push([...Array(41).keys()].map((k) => k / 40).map((t) => [
      (1 - t) ** 2 * x1 + 2 * (1 - t) * t * mx + t * t * x2, (1 - t) ** 2 * y1 + 2 * (1 - t) * t * my + t * t * y2]));
  }
  const [x, y, told] = given;
  if (key === 'text' && told.length > 12) titles.push([x, y - 6, x + told.length * 5, y + 6]);
})});
view.layout && view.drawOn(plain, view._width - 2);
return [arrows, titles];
"""


@pytest.mark.parametrize(("name", "kind"), [("fusion", "shuffle"), ("baton-pd", "embed")])
def test_long_rows_and_slots_are_drawn_as_far_as_the_run_writes_them(name: str, kind: str, screen: Screen) -> None:
    """In a memory that is hardly used, what is written, moved and named must be seen all the same."""
    i = moving(name, (), kind, ROOMY)
    steps = columns(name, kv=ROOMY)
    screen.open(crowd_page(name, (), "tiny", ROOMY), f"#i={i}")
    panel = panels(screen)[0]
    longest = max(work[2] for step in steps for work in step.get("work", ()))
    assert longest <= panel["seen"] < 2 * longest < panel["unit"]
    wide = (panel["boxWidth"] - (panel["gap"] if panel["across"] > 1 else 0)) / panel["columns"]
    assert wide >= 5
    assert f"of {panel['unit']:,} " in read(screen, WORDS)
    assert f"the first {panel['seen']}" in read(screen, WORDS)
    move = next(move for move in steps[i]["moves"] if move[0] == kind)
    assert f"{kind} to here" in point_at(screen, "device", move[2])
    arrows, titles = screen.js(DRAWN)
    assert arrows
    assert len(titles) == 2  # of slots and what is computed together, or of rows and the prompts apart
    for points in arrows:
        for x, y in points:
            crossed = [box for box in titles if box[0] < x < box[2] and box[1] < y < box[3]]
            assert not crossed, f"an arrow crosses a title at {x:.0f}, {y:.0f}"
    box = (panel["x"], panel["y"], panel["x"] + panel["across"] * panel["boxWidth"], panel["y"] + 230)
    for *_, (x, y) in arrows:
        assert box[0] + 3 < x < box[2] - 3
        assert box[1] + 3 < y < box[3]


def test_where_layers_take_turns_each_slot_holds_one_layer_at_a_time(screen: Screen) -> None:
    steps = columns("fluid", LAYERS)
    i = next(i for i, step in enumerate(steps) if len(step.get("waves", ())) > 1)
    screen.open(crowd_page("fluid", LAYERS), f"#i={i}")
    told = read(screen, WORDS)
    assert "each of its slots holds the KV of one layer at a time, and all are empty between iterations" in told
    assert "-" not in told.replace("memory.turns=layers", "")
    top = max(
        (block + 1) * size
        for step in whole_tables(steps)
        for blocks, size in step.get("places", ())
        for block in blocks
    )
    assert top > read_trace(crowd_trace("fluid", LAYERS))[0]["kv_capacity_tokens"]
    assert f"the {top} slots that this run ever uses" in told
    tokens = sum(work[2] for work in steps[i]["work"])
    assert f"the KV of {tokens} tokens of {len(steps[i]['work'])} requests" in told
    assert [one["kind"] for one in panels(screen)][: len(steps[i]["waves"])] == ["strip"] * len(steps[i]["waves"])


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


# A run of 10,000 iterations, 32 at once in 100,000 slots of scattered blocks, made in the page: no trace is that long
# in a test. What is checked is every sum of written slots, in any order of columns.
BIG = """
const {forms, model} = window.app.a.memory;
const run = structuredClone(model.run);
const [steps, batch, size, blocks] = arguments;
let seed = 1;
const draw = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
const free = [...Array(blocks).keys()];
let live = [];
run.requests = [];
run.steps = [];
run.capacity = blocks * size;
run.reasons = [];
run.notice = null;
const written = [];
for (let i = 0; i < steps; i++) {
  const step = {n: i, t: [i, i + 1], w: [], p: [], a: [], f: [], o: []};
  while (live.length < batch) {
    const r = run.requests.length;
    run.requests.push({id: `q${r}`, arrival: i, prompt: 50 + draw(2000), maxNew: 900, priority: 0, conversation: null});
    live.push({r, length: 0, left: 50 + draw(500), blocks: []});
    step.a.push(r);
  }
  let sum = 0;
  for (const one of live) {
    const stop = one.length ? one.length + 1 : run.requests[one.r].prompt;
    const [kept, added] = [one.blocks.length, []];
    while (one.blocks.length < Math.ceil(stop / size)) {
      added.push(free.splice(draw(Math.min(free.length, 40)), 1)[0]);
      one.blocks.push(added.at(-1));
    }
    step.w.push([one.r, one.length, stop]);
    step.p.push([kept, added, size]);
    step.o.push([one.r, 1]);
    one.length = stop;
    sum += stop;
    if (!--one.left) step.f.push([one.r, "length"]);
  }
  step.kv = [sum, sum, run.capacity, 0];
  for (const one of live) if (!one.left) free.push(...one.blocks);
  live = live.filter((one) => one.left);
  run.steps.push(step);
  written.push(sum);
}
const big = new model.constructor(run);
const owners = new forms.owners.constructor(big);
const wrong = [];
const total = (i) => owners.during(i).device.reduce((sum, one) => sum + (one.state === "written" ? one.count : 0), 0);
for (const i of [steps - 1, 0, steps >> 1, (steps >> 1) - 1, (steps >> 1) - 2, 17, steps - 40, 4321 % steps]) {
  if (total(i) !== written[i]) wrong.push([i, total(i), written[i]]);
}
return [wrong, run.requests.length, owners._checkpoints.length];
"""


def test_ten_thousand_iterations_of_a_hundred_thousand_slots(screen: Screen) -> None:
    screen.open(crowd_page("vllm", BLOCKS))
    wrong, requests, checkpoints = screen.js(BIG, 10_000, 32, 16, 6250)
    assert wrong == []
    assert requests > 500
    assert checkpoints < 10_000 / 32  # runs of slots are stored for few moments, and replayed from there

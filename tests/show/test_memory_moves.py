"""The moves of an iteration in the memory map: each is named and counted, and an arrow goes from where it was read to
where it is written."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Screen
from .crowd import FEW_SLOTS, ROOMY, SHARE, SWAP, WAVES, Options, Run, crowd_album, crowd_page
from .memory_map import LEGEND, centre_in, columns, moving, panels, point_at, read

# The arrows of the picture that is printed, in the colour of a kind of moves: lines, each followed by its head, whose
# second point is the tip. And by how much the picture is wider than the map on the screen.
ARROWS = """
const own = getComputedStyle(document.querySelector("#memory-a")).getPropertyValue(`--move-${arguments[0]}`).trim();
dispatchEvent(new Event("beforeprint"));
const svg = document.querySelector("#memory-a .printed svg");
const points = (one) => one.getAttribute("points").split(" ").map((at) => at.split(",").map(Number));
const found = [];
for (const line of svg.querySelectorAll("polyline")) {
  const head = line.nextElementSibling;
  if (line.getAttribute("stroke") !== own || head?.getAttribute("fill") !== own) continue;
  found.push([points(line)[0], points(line).at(-1), points(head)[1]]);
}
dispatchEvent(new Event("afterprint"));
return found;
"""
NEAR = 4.0  # pixels: the picture is a little wider than the map on the screen, from which places are taken
KINDS: list[tuple[str, Options, str, str]] = [
    ("fusion", FEW_SLOTS, "shuffle", "shuffle"),
    ("vllm", SHARE, "copy", "copy on write"),
    ("vllm", SWAP, "swap_out", "swap out"),
    ("vllm", SWAP, "swap_in", "swap in"),
    ("fluid", WAVES, "upload", "upload"),
    ("fluid", WAVES, "offload", "offload"),
    ("baton-pd", (), "embed", "embed"),
]
RUNS: list[Run] = [*dict.fromkeys((name, options) for name, options, *_ in KINDS)]


def away(screen: Screen, point: list[float], tier: str, first: int, count: int, wave: int | None = None) -> float:
    """How far a point is from the nearest of slots [first, first + count), in pixels; 0: it is on one of them."""
    found = panels(screen)
    return min(_away(found, point, tier, slot, wave) for slot in range(first, first + count))


def _away(found: list[dict[str, Any]], point: list[float], tier: str, slot: int, wave: int | None) -> float:
    panel = next(
        one
        for one in found
        if one["tier"] == tier and 0 <= slot - one["first"] < one["count"] and wave in (None, one["wave"])
    )
    gap = panel["gap"] if panel["across"] > 1 else 0
    wide = (panel["boxWidth"] - gap) / panel["columns"]
    high = panel["boxHeight"] / -(-panel["seen"] // panel["columns"])
    x, y = centre_in(found, tier, slot, wave)
    beside = (max(0.0, abs(point[0] - x) - wide / 2), max(0.0, abs(point[1] - y) - high / 2))
    return float((beside[0] ** 2 + beside[1] ** 2) ** 0.5)


@pytest.mark.parametrize(("name", "options", "kind"), [one[:3] for one in KINDS if one[2] not in ("upload", "offload")])
def test_an_arrow_goes_from_the_source_to_the_target(name: str, options: Options, kind: str, screen: Screen) -> None:
    i = moving(name, options, kind)
    moves = [move for move in columns(name, options)[i]["moves"] if move[0] == kind]
    screen.show(*crowd_album((name, options), RUNS), i)
    arrows = screen.js(ARROWS, kind)
    assert len(arrows) == len(moves)
    for (_, source, target, count, tier, to_tier, *_), (start, end, tip) in zip(moves, arrows, strict=True):
        assert end == tip, "the head is at the wrong end"
        assert away(screen, start, tier, source, count) < NEAR, f"starts at {start}, and slot {source} is elsewhere"
        assert away(screen, end, to_tier, target, count) < NEAR, f"ends at {end}, and slot {target} is elsewhere"
        assert away(screen, end, tier, source, count) > 2 * NEAR, "the two ends are told apart"


@pytest.mark.parametrize("kind", ["upload", "offload"])
def test_with_waves_an_arrow_goes_into_the_strip_that_gets_kv_and_out_of_the_one_that_gives_it(
    kind: str, screen: Screen
) -> None:
    i = moving("fluid", WAVES, kind)
    moves = [move for move in columns("fluid", WAVES)[i]["moves"] if move[0] == kind]
    screen.show(*crowd_album(("fluid", WAVES), RUNS), i)
    arrows = screen.js(ARROWS, kind)
    assert len(arrows) >= len(moves)  # one for each run of boxes
    reached = set()
    for start, end, tip in arrows:
        assert end == tip
        (inside, outside) = (end, start) if kind == "upload" else (start, end)
        for k, (_, source, target, count, _, _, moment, wave) in enumerate(moves):
            slot = target if kind == "upload" else source
            strip = wave - 1 if kind == "offload" and moment == "before" and wave else wave
            if away(screen, inside, "device", slot, count, strip) < NEAR / 2:
                assert away(screen, outside, "device", slot, count, strip) > NEAR
                reached.add(k)
    assert reached == set(range(len(moves)))


@pytest.mark.parametrize(("name", "options", "kind", "words"), KINDS)
def test_each_kind_of_move_is_drawn_named_and_counted(
    name: str, options: Options, kind: str, words: str, screen: Screen
) -> None:
    i = moving(name, options, kind)
    moves = [move for move in columns(name, options)[i]["moves"] if move[0] == kind]
    tokens = sum(move[3] for move in moves)
    screen.show(*crowd_album((name, options), RUNS), i)
    assert f"{words}: {tokens} token" in read(screen, LEGEND)
    strokes = screen.js(
        "const view = window.app.a.memory; const seen = [];"
        "const plain = new Proxy({width: 900, height: 900, measure: () => 20}, {get: (at, key) => at[key] ??"
        " ((...given) => { if (key === 'arrow') seen.push(given[4].stroke); })});"
        "view.drawOn(plain, 900); const own = app.palette.moves[arguments[0]];"
        "return seen.filter((one) => one === own).length",
        kind,
    )
    assert strokes >= min(len(moves), 1)


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

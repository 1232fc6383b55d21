"""The owners of slots in the page (`owners.js`), against books kept slot by slot (`slot_books.py`) and the trace's own
counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minifuse.trace.log import read_trace
from minifuse.trace.slot_books import Slots, books

from .conftest import Screen
from .crowd import (
    BLOCKS,
    FEW_SLOTS,
    LAYERS,
    SHARE,
    SHARE_SWAP,
    SHORT,
    SWAP,
    TIERS,
    WAVES,
    Run,
    crowd_album,
    crowd_page,
    crowd_trace,
)

# The whole run, column by column, in the order in which a reader would hardly look at it.
FRAMES = """
const {forms, model} = window.app.a.memory;
const found = {};
for (let k = 0; k < model.length; k++) {
  const i = (k * arguments[0]) % model.length;
  const {device, host} = forms.owners[arguments[1]](i);
  const named = (owners) => owners.map((r) => model.requests[r].id);
  const plain = (runs) => runs.map(({first, count, owners, state}) => [first, count, named(owners), state]);
  found[i] = [plain(device), plain(host)];
}
return found;
"""

# Of each column the slots of the host whose KV is not on the device too, but for copies, which may be overwritten.
ALONE = """
const {forms, model} = window.app.a.memory;
const slots = (first, count) => Array.from({length: count}, (_, k) => first + k);
return slots(0, model.length).map((i) => {
  const {device, host} = forms.owners.during(i);
  const used = new Set(device.flatMap(({first, count, state}) => state === "copy" ? [] : slots(first, count)));
  const twins = host.flatMap(({count, twin}) => twin < 0 ? Array(count).fill(-1) : slots(twin, count));
  return twins.filter((twin) => !used.has(twin)).length;
});
"""

EVERY: dict[str, Run] = {
    "rectangle": ("static", (), "tiny"),
    "rows that change hands": ("baton", (), "tiny"),
    "prompts apart": ("baton-pd", (), "tiny"),
    "prompts make way": ("pd", (), "tiny", SHORT),
    "region": ("fusion", FEW_SLOTS, "tiny"),
    "extents": ("orca", (), "tiny"),
    "blocks": ("vllm", BLOCKS, "tiny"),
    "blocks swapped": ("vllm", SWAP, "tiny"),
    "blocks shared": ("vllm", SHARE, "tiny"),
    "shared blocks swapped": ("vllm", SHARE_SWAP, "tiny", SHORT),
    "waves": ("fluid", WAVES, "tiny"),
    "layers in turn": ("fluid", LAYERS, "tiny"),
    "tiers": ("pensieve", TIERS, "tiny"),
    "cells": ("cellular", (), "lstm"),
    "cells of several workers": ("cellular", (("batching.workers", 2), ("batching.max_batch", 2)), "seq2seq"),
    "padded cells": ("graph-padded", (), "lstm"),
}
# What must happen in a scenario for it to show what it is for: kinds of moves, and their moments.
HAPPENS = {
    "region": {("shuffle", "first")},
    "blocks swapped": {("swap_out", "first"), ("swap_in", "first")},
    "blocks shared": {("copy", "first")},
    "shared blocks swapped": {("copy", "first"), ("swap_out", "first"), ("swap_in", "first")},
    "waves": {("upload", "before"), ("offload", "after")},
    "layers in turn": {("upload", "before"), ("offload", "after")},
    "prompts apart": {("embed", "first"), ("swap_out", "first")},
    "prompts make way": {("embed", "first"), ("swap_out", "first"), ("swap_in", "first")},
    "tiers": {("swap_out", "behind"), ("swap_in", "before")},
}


def album(kind: str) -> tuple[Path, int]:
    return crowd_album(EVERY[kind], EVERY.values())


def shown(screen: Screen, stride: int, which: str = "during") -> dict[int, Slots]:
    """What the page says of every slot while each column runs."""
    frames = screen.js(FRAMES, stride, which)
    found: dict[int, Slots] = {}
    for i, tiers in frames.items():
        found[int(i)] = {
            (tier, slot): (frozenset(owners), state)  # type: ignore[misc]
            for tier, runs in zip(("device", "host"), tiers, strict=True)
            for first, count, owners, state in runs
            for slot in range(first, first + count)
        }
    return found


def stride_of(count: int) -> int:
    """A step through so many columns that meets each of them, and goes back more often than on."""
    return next(step for step in range(count - count // 3, 2 * count + 2) if not _common(step, count))


def _common(a: int, b: int) -> bool:
    while b:
        a, b = b, a % b
    return a > 1


@pytest.mark.parametrize("kind", EVERY)
def test_every_slot_has_the_owner_that_the_books_have(kind: str, screen: Screen) -> None:
    """In whatever order columns are visited."""
    path = crowd_trace(*EVERY[kind])
    right = [frame.held for frame in books(read_trace(path))]
    screen.show(*album(kind))
    for stride in (1, stride_of(len(right))):
        found = shown(screen, stride)
        assert len(found) == len(right)
        for i, slots in enumerate(right):
            differing = {slot for slot in found[i].keys() | slots.keys() if found[i].get(slot) != slots.get(slot)}
            told = {slot: (found[i].get(slot), slots.get(slot)) for slot in sorted(differing)[:4]}
            assert not differing, f"column {i}: shown and right {told}"
    moves = {(move[0], move[6]) for event in read_trace(path) for move in event.get("moves", ())}
    assert moves >= HAPPENS.get(kind, set()), "the scenario is without what it is for"
    assert len({held for slots in right for held in slots.values()}) > 1


def test_a_task_that_waits_in_the_queue_of_its_worker_has_no_slots_yet() -> None:
    events = read_trace(crowd_trace(*EVERY["cells of several workers"]))
    steps = [event for event in events if event["event"] == "step"]
    ends = [(step["step"], step["wall"]["end_s"]) for step in steps]
    queued = [(n, end) for step in steps for n, end in ends if n > step["step"] and end <= step["wall"]["start_s"]]
    assert queued, "no task with a later number ended before another began"
    for column, held, _ in books(events):
        if column["event"] != "step":
            continue
        started = [step for step in steps if step["wall"]["start_s"] < column["wall"]["end_s"]]
        written = {("device", slot) for step in started for _, slot in step["places"]}
        assert held.keys() <= written, f"step {column['step']}"


def counted(kind: str) -> list[tuple[int, int]]:
    """Of each iteration the slots of the device that are written, and those that the trace counts as used."""
    events = read_trace(crowd_trace(*EVERY[kind]))
    columns = [event for event in events if event["event"] in ("step", "wait")]
    found = []
    for event, (_, slots, _) in zip(columns, books(events), strict=True):
        if event["event"] == "step":
            written = sum(tier == "device" and held.state == "written" for (tier, _), held in slots.items())
            found.append((written, event["kv"][0]))
    assert found
    return found


@pytest.mark.parametrize(
    "kind", ["extents", "blocks", "blocks swapped", "blocks shared", "shared blocks swapped", "waves"]
)
def test_as_many_slots_are_written_as_the_trace_counts(kind: str) -> None:
    """Books that are wrong alike, here and in the page, would not show in a comparison of the two."""
    for step, (written, used) in enumerate(counted(kind)):
        assert written == used, f"step {step}"


@pytest.mark.parametrize("kind", ["rectangle", "rows that change hands", "prompts apart", "prompts make way"])
def test_in_rectangles_the_trace_counts_padding_too(kind: str) -> None:
    for step, (written, used) in enumerate(counted(kind)):
        assert written <= used, f"step {step}"


def test_kept_slots_are_as_many_as_the_trace_counts() -> None:
    events = read_trace(crowd_trace(*EVERY["tiers"]))
    columns = [event for event in events if event["event"] in ("step", "wait")]
    seen = []
    for event, (_, slots, _) in zip(columns, books(events), strict=True):
        if any(event.get("kept", ())) and event["work"]:
            seen.append(sum(tier == "device" and held.state == "kept" for (tier, _), held in slots.items()))
            assert seen[-1] == event["kept"][0], f"step {event['step']}"
    assert max(seen) > 0


@pytest.mark.parametrize("kind", ["prompts apart", "prompts make way", "blocks swapped", "waves", "tiers"])
def test_as_many_slots_are_on_the_host_alone_as_the_trace_counts(kind: str, screen: Screen) -> None:
    events = read_trace(crowd_trace(*EVERY[kind]))
    columns = [event for event in events if event["event"] in ("step", "wait")]
    screen.show(*album(kind))
    alone = screen.js(ALONE)
    steps = [(i, event) for i, event in enumerate(columns) if event["event"] == "step"]
    for i, event in steps:
        assert alone[i] == event["kv"][3] + event.get("kept", (0, 0))[1], f"column {i}"
    assert len({alone[i] for i, _ in steps}) > 2


# The columns in which a slot has a twin that has another.
TWINS = """
const {forms, model} = window.app.a.memory;
const of = (runs) => new Map(runs.flatMap(({first, count, twin}) =>
  twin < 0 ? [] : Array.from({length: count}, (_, k) => [first + k, twin + k])));
const frames = Array.from({length: model.length}, (_, i) => forms.owners.during(i));
const pairs = frames.map(({device, host}) => [of(device), of(host)]);
const wrong = ([here, there]) => here.size !== there.size || [...here].some(([slot, twin]) => there.get(twin) !== slot);
return [pairs.flatMap((pair, i) => wrong(pair) ? [i] : []), pairs.some(([here]) => here.size)];
"""


@pytest.mark.parametrize("kind", ["prompts make way", "shared blocks swapped", "waves", "tiers"])
def test_of_two_slots_with_the_same_kv_each_is_the_others_twin(kind: str, screen: Screen) -> None:
    screen.show(*album(kind))
    wrong, some = screen.js(TWINS)
    assert not wrong
    assert some


def test_before_a_column_begins(screen: Screen) -> None:
    """Nothing of what it decides has happened, and what the last one finished has left."""
    screen.show(*album("extents"))
    before, during = (shown(screen, 1, which) for which in ("before", "during"))
    finished = {i: [r["id"] for r in steps] for i, steps in _finished(screen).items()}
    assert any(finished.values())
    for i in range(1, len(during)):
        left = {name for slot, held in during[i - 1].items() if slot not in before[i] for name in held[0]}
        assert left == set(finished.get(i - 1, ()))
        assert not {slot for slot in before[i] if slot not in during[i - 1]}


def _finished(screen: Screen) -> dict[int, list[dict[str, Any]]]:
    found = screen.js(
        "const {main} = window.app; const found = {};"
        "main.run.steps.forEach((step, i) => { if (step.f) found[i] = step.f.map(([r]) => main.requests[r]); });"
        "return found;"
    )
    return {int(i): list(requests) for i, requests in found.items()}


def test_between_iterations_the_device_is_empty_where_layers_take_turns(screen: Screen) -> None:
    """What the trace counts when an iteration has ended: nothing on the device, all on the host."""
    path = crowd_trace(*EVERY["layers in turn"])
    columns = [event for event in read_trace(path) if event["event"] in ("step", "wait")]
    screen.show(*album("layers in turn"))
    before = shown(screen, 1, "before")
    for i, step in enumerate(columns[:-1]):
        if step["event"] == "step":
            assert step["kv"][0] == sum(tier == "device" for tier, _ in before[i + 1]) == 0, f"column {i}"
    assert any(before.values())


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

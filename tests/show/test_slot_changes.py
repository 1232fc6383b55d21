"""The owners of slots in the record, against the books that they are told from and the trace's own counts."""

from __future__ import annotations

from typing import Any

import pytest
from replay_runs import long_events, long_run

from minifuse.show.record import record
from minifuse.show.slot_changes import STATES
from minifuse.show.traced_runs import read_run
from minifuse.trace.log import Event, read_trace
from minifuse.trace.slot_books import OTHER_TIER, Held, Slot, Slots, books

from .conftest import Screen
from .crowd import (
    BLOCKS,
    FEW_SLOTS,
    LAYERS,
    ON_HOST,
    SHARE,
    SHARE_SWAP,
    SHORT,
    SWAP,
    TIERS,
    WAVES,
    Run,
    crowd_album,
    crowd_trace,
)

EVERY: dict[str, Run] = {
    "rectangle": ("static", (), "tiny"),
    "rows that change hands": ("baton", (), "tiny"),
    "prompts apart": ("baton-pd", (), "tiny"),
    "prompts make way": ("pd", (), "tiny", SHORT),
    "prompts fetched": ("pd", (("memory.prefetch", 0.15),), "tiny", SHORT),
    "region": ("fusion", FEW_SLOTS, "tiny"),
    "extents": ("orca", (), "tiny"),
    "blocks": ("vllm", BLOCKS, "tiny"),
    "blocks swapped": ("vllm", SWAP, "tiny"),
    "blocks shared": ("vllm", SHARE, "tiny"),
    "shared blocks swapped": ("vllm", SHARE_SWAP, "tiny", SHORT),
    "waves": ("fluid", WAVES, "tiny"),
    "paused": ("fluid", BLOCKS, "tiny"),
    "attended on the host": ("fluid", ON_HOST, "tiny"),
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
    "paused": {("upload", "before"), ("offload", "before")},
    "attended on the host": {("offload", "before")},
    "layers in turn": {("upload", "before"), ("offload", "after")},
    "prompts apart": {("embed", "first"), ("swap_out", "first")},
    "prompts make way": {("embed", "first"), ("swap_out", "first"), ("swap_in", "first")},
    "prompts fetched": {("embed", "first"), ("swap_out", "first"), ("swap_in", "behind")},
    "tiers": {("swap_out", "behind"), ("swap_in", "before")},
}


Told = dict[int, tuple[int, ...]]  # of a slot: the set of owners, the state, and twin and token from 1 on


def apply(slots: Told, changes: list[int]) -> Told:
    """The slots of a tier after changes, as the record tells them."""
    found = dict(slots)
    for first, count, owners, state, twin, token in zip(*[iter(changes)] * 6, strict=True):
        for i in range(count):
            found[first + i] = (owners, state, twin and twin + i, token and token + i)
    return {slot: one for slot, one in found.items() if one[1]}


def named(run: dict[str, Any], tier: str, slots: Told) -> Slots:
    """The same as books have it."""
    ids = [request["id"] for request in run["requests"]]

    def held(slot: int, owners: int, state: int, twin: int, token: int) -> Held:
        names = frozenset(ids[r] for r in run["slots"]["sets"][owners])
        return Held(names, STATES[state], token - 1 - slot if token else None, twin - 1 - slot if twin else None)

    return {(tier, slot): held(slot, *one) for slot, one in slots.items()}


def without_token(slots: Slots) -> Slots:
    """Tokens of what is on the host are not told."""
    return {slot: held if slot[0] == "device" else held._replace(token=None) for slot, held in slots.items()}


@pytest.mark.parametrize("kind", EVERY)
def test_changes_add_up_to_what_the_books_have(kind: str) -> None:
    """Of every slot in every column, and in every wave."""
    path = crowd_trace(*EVERY[kind])
    events = read_trace(path)
    (run,) = record([read_run(path)])["runs"]
    device: Told = {}
    host: Told = {}
    states = set()
    for step, frame in zip(run["steps"], books(events), strict=True):
        device, host = apply(device, step.get("s", [])), apply(host, step.get("h", []))
        assert named(run, "device", device) | named(run, "host", host) == without_token(frame.held)
        waves = range(len(frame.effects.waves))
        for changes, wave in zip(step.get("wd", [[]] * len(waves)), waves, strict=True):
            right = {slot: held for slot, held in frame.during(wave).items() if slot[0] == "device"}
            assert named(run, "device", apply(device, changes)) == right
        states |= {held.state for held in frame.held.values()}
    assert max([*device, 0]) < run["slots"]["device"]
    moves = {(move[0], move[6]) for event in events for move in event.get("moves", ())}
    assert moves >= HAPPENS.get(kind, set()), "the scenario is without what it is for"
    assert len(states) > 1 or kind in ("cells", "cells of several workers", "padded cells", "waves")


# Every column in an order in which a reader would hardly look at it.
FRAMES = """
const {forms, model} = window.app.a.memory;
const found = [];
for (let k = 0; k < model.length; k++) {
  const i = (k * arguments[0]) % model.length;
  const {device, host} = forms.slots.during(i);
  const plain = (runs) => runs.map(({first, count, owners, state}) =>
    [first, count, owners.map((r) => model.requests[r].id), state]);
  found.push([i, plain(device), plain(host)]);
}
return found;
"""


@pytest.mark.parametrize("kind", ["shared blocks swapped", "tiers"])
def test_the_page_shows_them_in_whatever_order_columns_are_visited(kind: str, screen: Screen) -> None:
    right = [dict(frame.held) for frame in books(read_trace(crowd_trace(*EVERY[kind])))]
    screen.show(*crowd_album(EVERY[kind], EVERY.values()))
    stride = next(step for step in range(len(right) // 2, len(right)) if len(right) % step and step % 2)
    for i, *tiers in screen.js(FRAMES, stride):
        shown = {
            (tier, slot): (frozenset(owners), state)
            for tier, runs in zip(("device", "host"), tiers, strict=True)
            for first, count, owners, state in runs
            for slot in range(first, first + count)
        }
        assert shown == {slot: held[:2] for slot, held in right[i].items()}, f"column {i}"


def test_a_task_that_waits_in_the_queue_of_its_worker_has_no_slots_yet() -> None:
    events = read_trace(crowd_trace(*EVERY["cells of several workers"]))
    steps = [event for event in events if event["event"] == "step"]
    ends = [(step["step"], step["wall"]["end_s"]) for step in steps]
    queued = [(n, end) for step in steps for n, end in ends if n > step["step"] and end <= step["wall"]["start_s"]]
    assert queued, "no task with a later number ended before another began"
    for frame in books(events):
        column, held = frame.event, frame.held
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
    for event, frame in zip(columns, books(events), strict=True):
        if event["event"] == "step":
            written = sum(tier == "device" and held.state == "written" for (tier, _), held in frame.held.items())
            found.append((written, event["kv"][0]))
    assert found
    return found


@pytest.mark.parametrize(
    "kind", ["extents", "blocks", "blocks swapped", "blocks shared", "shared blocks swapped", "waves"]
)
def test_as_many_slots_are_written_as_the_trace_counts(kind: str) -> None:
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
    for event, frame in zip(columns, books(events), strict=True):
        if any(event.get("kept", ())) and event["work"]:
            seen.append(sum(tier == "device" and held.state == "kept" for (tier, _), held in frame.held.items()))
            assert seen[-1] == event["kept"][0], f"step {event['step']}"
    assert max(seen) > 0


def twin_of(slot: Slot, held: Held) -> Slot | None:
    return None if held.twin is None else (OTHER_TIER[slot[0]], slot[1] + held.twin)


def steps_of(kind: str) -> list[tuple[Event, Slots]]:
    """The steps of a run, and the slots during each."""
    return [
        (frame.event, dict(frame.held))
        for frame in books(read_trace(crowd_trace(*EVERY[kind])))
        if frame.event["event"] == "step"
    ]


@pytest.mark.parametrize("kind", ["prompts apart", "prompts make way", "blocks swapped", "waves", "tiers"])
def test_as_many_slots_are_on_the_host_alone_as_the_trace_counts(kind: str) -> None:
    """Those without a twin on the device, and those whose twin there may be overwritten."""
    counts = set()
    for step, slots in steps_of(kind):
        twins = [twin_of(*one) for one in slots.items() if one[0][0] == "host"]
        alone = sum(twin is None or slots[twin].state == "copy" for twin in twins)
        assert alone == step["kv"][3] + step.get("kept", (0, 0))[1], f"step {step['step']}"
        counts.add(alone)
    assert len(counts) > 2


@pytest.mark.parametrize("kind", ["prompts make way", "shared blocks swapped", "waves", "tiers"])
def test_of_two_slots_with_the_same_kv_each_is_the_others_twin(kind: str) -> None:
    some = False
    for _, slots in steps_of(kind):
        pairs = {slot: twin for slot, held in slots.items() if (twin := twin_of(slot, held)) is not None}
        assert all(pairs.get(twin) == slot for slot, twin in pairs.items())
        some |= bool(pairs)
    assert some


def test_slots_that_layers_share_have_kv_only_while_a_wave_is_attended() -> None:
    """They follow the slots of the device, and what the trace counts as on the device lies in the latter."""
    shared = 0
    for frame in books(read_trace(crowd_trace(*EVERY["layers in turn"]))):
        if frame.event["event"] == "step":
            used, _, capacity, _ = frame.event["kv"]
            there = [slot for (tier, slot), held in frame.held.items() if tier == "device" and held.state == "written"]
            assert sum(slot < capacity for slot in there) == used
            for wave in range(len(frame.effects.waves)):
                held_then = frame.during(wave).items()
                shared += any(held.state == "written" and slot >= capacity for (_, slot), held in held_then)
    assert shared


def test_what_the_host_attends_lies_there() -> None:
    """The slots of a sequence that is attended on the host: those of its text, and none that is only set aside."""
    attended = 0
    for frame in books(read_trace(crowd_trace(*EVERY["attended on the host"]))):
        event = frame.event
        for (name, _, stop, *_), place in zip(event.get("work", ()), event.get("places", ()), strict=True):
            if len(place) == 3 and name not in event["finished"]:
                mine = [(tier, held.state) for (tier, _), held in frame.held.items() if name in held.owners]
                assert mine == [("host", "written")] * stop
                attended += 1
    assert attended


@pytest.mark.parametrize("kind", ["waves", "blocks swapped", "region", "prompts apart"])
def test_every_token_that_is_moved_is_some_requests(kind: str) -> None:
    for frame in books(read_trace(crowd_trace(*EVERY[kind]))):
        counts = [move[3] for move in frame.event.get("moves", ())]
        assert frame.effects.moved.total() == sum(counts)


def test_an_aborted_request_leaves_its_slots() -> None:
    events = long_events(20)
    columns = [event for event in events if event["event"] == "step"]
    name, at_s = columns[10]["work"][0][0], columns[10]["wall"]["end_s"]
    for step in columns[11:]:
        k = next((k for k, work in enumerate(step["work"]) if work[0] == name), None)
        if k is not None:
            step["work"].pop(k)
            step["places"].pop(k)
            step["waves"] = [[0, len(step["work"])]]
            step["tokens"].pop(name)
    events.append({"event": "aborted", "id": name, "wall": {"end_s": at_s}})
    owners = [{one for held in frame.held.values() for one in held.owners} for frame in books(events)]
    assert name in owners[10]
    assert all(name not in one for one in owners[11:])


def test_a_long_run_of_scattered_blocks_has_as_many_written_slots_as_are_counted() -> None:
    (run,) = long_run(3000)["runs"]
    device: Told = {}
    for i, step in enumerate(run["steps"]):
        for first, count, *one in zip(*[iter(step.get("s", []))] * 6, strict=True):
            device |= dict.fromkeys(range(first, first + count), tuple(one))
        if i % 97 == 0:
            assert sum(STATES[one[1]] == "written" for one in device.values()) == step["kv"][0], f"column {i}"

"""The document keeps the rules of the format, says what the trace says, and is the same each time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from runs_told import apart, cells, padded, preempted
from trace_format import broken_rules

from minifuse.core.request import Request
from minifuse.model.source import resolve
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.show.perfetto.document import document_lines
from minifuse.techniques import technique
from minifuse.trace.history import History
from minifuse.trace.log import Event

BY_HAND: dict[str, Callable[[], list[Event]]] = {
    "preempted": preempted,
    "padded": padded,
    "apart": apart,
    "cells": cells,
}


def document(events: list[Event]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads("\n".join(document_lines(History.of(events))))
    return found


def of_phase(events: list[Event], phase: str, **fields: Any) -> list[Event]:
    every = document(events)["traceEvents"]
    return [one for one in every if one["ph"] == phase and all(one[name] == value for name, value in fields.items())]


@pytest.mark.parametrize("name", BY_HAND)
def test_the_rules_of_the_format(name: str) -> None:
    assert broken_rules(document(BY_HAND[name]())) == []


@pytest.mark.parametrize("name", BY_HAND)
def test_a_trace_cut_off_anywhere_gives_a_document_that_keeps_them(name: str) -> None:
    events = BY_HAND[name]()
    for length in range(1, len(events)):
        assert broken_rules(document(events[:length])) == []


SERVED: dict[str, dict[str, object]] = {
    "static": {},
    "fusion": {"memory.slots": 4},
    "vllm": {"memory.preemption": "swap"},
    "pensieve": {},
    "baton-pd": {},
    "fluid": {"memory.overflow": "rotate"},
    "instances": {},
    "fastserve": {},
}


SLOTS = {"vllm": 64, "fluid": 64}


@pytest.mark.parametrize("name", SERVED)
def test_real_runs_keep_the_rules(name: str) -> None:
    """In virtual time, with memory so small that those that evict do so."""
    source = resolve("random:small")
    settings = Settings(
        clock="virtual", kv_memory=source.slot_bytes("float32") * SLOTS.get(name, 160), stage_options=SERVED[name]
    )
    engine = build_engine(resolve_run(technique(name), source, settings), source.outline("float32", 0))
    requests = [Request(f"r{i}", (1,) * (5 + i), 12, arrival_s=i * 1e-4, conversation=f"c{i % 3}") for i in range(6)]
    served = serve(engine, requests)
    assert all(answer.complete for answer in served.answers)
    events = [*served.trace.events()]
    assert broken_rules(document(events)) == []
    steps = [event for event in events if event["event"] == "step" and event["work"]]
    assert len(of_phase(events, "X", pid=1)) == len(steps)
    assert bool(of_phase(events, "s")) == any(event["evicted"] for event in steps)
    assert bool(of_phase(events, "s")) == (name in ("vllm", "pensieve", "fastserve"))
    assert bool(of_phase(events, "X", cat="slots")) == (name in ("static", "fusion", "baton-pd"))
    moved = any(event["moves"] for event in events if event["event"] == "step")
    assert bool(of_phase(events, "X", cat="transfer")) == moved


def test_what_the_rules_would_find() -> None:
    """Each event that is taken away or changed breaks one."""
    whole = document(preempted())
    assert broken_rules(whole) == []
    events = whole["traceEvents"]

    def broken(change: Callable[[list[Event]], Any]) -> bool:
        changed = [{**event} for event in events]
        change(changed)
        return bool(broken_rules({"traceEvents": changed}))

    for i, event in enumerate(events):
        if event["ph"] in "besfM":
            assert broken(lambda changed, i=i: changed.pop(i)), event
        if event["ph"] == "X":
            assert broken(lambda changed, i=i: changed[i].pop("dur"))
            assert broken(lambda changed, i=i: changed[i].update(dur=-1.0))
        if event["ph"] == "f":
            assert broken(lambda changed, i=i: changed[i].update(tid=9))
            assert broken(lambda changed, i=i: changed[i].update(bp="x"))
    first = next(i for i, event in enumerate(events) if event["ph"] == "X" and event["pid"] == 1)
    assert broken(lambda changed: changed[first].update(dur=changed[first]["dur"] + 5e5))  # into the next iteration
    assert broken(lambda changed: changed.reverse())
    assert broken_rules([]) != []


def test_the_same_run_gives_the_same_bytes() -> None:
    assert [*document_lines(History.of(preempted()))] == [*document_lines(History.of(preempted()))]


def test_an_iteration_tells_what_was_decided() -> None:
    slices = of_phase(preempted(), "X", pid=1)
    assert [(one["name"], one["ts"], one["dur"]) for one in slices] == [
        (f"iteration {i}", i * 1e6, 1e6) for i in range(6)
    ]
    assert slices[2]["args"] == {
        "batch": 1,
        "requests": "b",
        "tokens": 2,
        "idle": 0,
        "phase": "running",
        "admitted": "b",
        "evicted": "a",
        "reasons": ["a evicted: no room"],
    }


def test_a_request_is_a_span_with_its_phases_inside() -> None:
    spans = [(one["ph"], one["name"], one["ts"] / 1e6) for one in of_phase(preempted(), "b", id2={"local": "0x1"})]
    assert spans == [
        ("b", "a", 0.0),
        ("b", "prompt", 0.0),
        ("b", "decoding", 1.0),
        ("b", "suspended", 2.0),
        ("b", "prompt", 4.0),
        ("b", "decoding", 5.0),
    ]
    assert [one["name"] for one in of_phase(preempted(), "b", id2={"local": "0x3"})] == ["c", "waiting", "prompt"]
    assert [one["name"] for one in of_phase(apart(), "b", id2={"local": "0x2"})] == [
        "a",
        "pre-processing",
        "ready",
        "decoding",
    ]
    assert [one["name"] for one in of_phase(cells(), "b", id2={"local": "0x2"})] == ["b", "encoder", "decoder"]


def test_a_wait_tells_its_reasons() -> None:
    (waiting,) = of_phase(preempted(), "b", name="suspended")
    assert waiting["args"] == {
        "evicted": {"seconds": 1.0, "sentence": "evicted: no room"},
        "memory-full": {"seconds": 1.0, "sentence": "not admitted: needs 1 block"},
    }


def test_an_arrow_leads_from_the_eviction_to_the_return() -> None:
    (tail,) = of_phase(preempted(), "s")
    (head,) = of_phase(preempted(), "f")
    assert (tail["name"], tail["ts"], head["ts"]) == ("a suspended", 2.5e6, 4.5e6)


def test_counters() -> None:
    events = preempted()
    batch = [(one["ts"] / 1e6, one["args"]["requests"]) for one in of_phase(events, "C", name="batch")]
    assert batch == [(0.0, 1), (5.0, 2), (6.0, 0)]
    queue = [(one["ts"] / 1e6, one["args"]["requests"]) for one in of_phase(events, "C", name="queue")]
    assert queue == [(0.0, 1), (1.5, 2), (4.0, 1), (5.0, 0)]
    memory = of_phase(events, "C", name="KV in use")
    assert [(one["args"]["device"], one["args"]["host"]) for one in memory[:4]] == [(3, 0), (4, 0), (2, 4), (0, 0)]
    idle = of_phase(padded(), "C", name="tokens of an iteration")
    assert [(one["args"]["computed"], one["args"]["idle"]) for one in idle] == [(4, 0), (1, 1), (0, 0)]


def test_workers_are_tracks_in_order() -> None:
    named = {one["tid"]: one["args"]["name"] for one in of_phase(apart(), "M", name="thread_name", pid=1)}
    assert [named[tid] for tid in sorted(named)] == ["worker 0", "worker 1"]
    beside = [named[one["tid"]] for one in of_phase(apart(), "X", pid=1) if one["cat"] == "preprocessing"]
    assert beside == ["worker 1"]


def test_rows_of_a_rectangle_are_tracks_with_their_owners() -> None:
    named = {one["tid"]: one["args"]["name"] for one in of_phase(padded(), "M", name="thread_name", pid=3)}
    held = [
        (named[one["tid"]], one["name"], one["ts"] / 1e6, one["dur"] / 1e6) for one in of_phase(padded(), "X", pid=3)
    ]
    assert held == [
        ("row 0", "a", 1.0, 3.0),
        ("row 1", "b", 1.0, 1.0),
        ("row 1", "idle (b has ended)", 2.0, 2.0),
    ]


def test_a_row_that_is_left_out_for_an_iteration_is_held_twice() -> None:
    """b's row is not computed from 2 to 3 s."""
    events = padded()
    events[4]["finished"] = {}
    events[5]["shape"]["rows"] = 1
    events[6] |= {"work": [["a", 3, 4], ["b", 2, 3]], "places": [[0, 8], [8, 8]], "idle": 0}
    held = [(one["name"], one["ts"] / 1e6, one["dur"] / 1e6) for one in of_phase(events, "X", pid=3)]
    assert held == [("a", 1.0, 3.0), ("b", 1.0, 1.0), ("b", 3.0, 1.0)]


def test_a_shuffle_moves_a_request_to_another_buffer() -> None:
    region = {"kind": "Region", "offset": 0, "size": 2, "width": 8}
    events = padded()
    events[4] |= {"shape": region}
    events[5] |= {
        "shape": {**region, "size": 1, "offset": 1},
        "places": [[8, 8]],
        "moves": [["shuffle", 0, 8, 2, "device", "device", "first", 0]],
        "idle": 0,
    }
    events[5]["wall"]["moving_s"] = 0.25
    events[6] |= {"shape": {**region, "size": 1, "offset": 1}, "places": [[8, 8]], "idle": 0}
    assert broken_rules(document(events)) == []
    named = {one["tid"]: one["args"]["name"] for one in of_phase(events, "M", name="thread_name", pid=3)}
    held = [(named[one["tid"]], one["name"], one["ts"] / 1e6, one["dur"] / 1e6) for one in of_phase(events, "X", pid=3)]
    assert held == [
        ("buffer 0", "a", 1.0, 1.0),
        ("buffer 1", "b", 1.0, 1.0),
        ("within the device", "shuffle", 2.0, 0.25),
        ("buffer 1", "a", 2.0, 2.0),
    ]


def test_transfers_behind_everything_take_as_long_as_they_took() -> None:
    """Two at once, of one direction, lie on tracks of their own."""
    events = preempted()
    for number, (start_s, end_s) in enumerate([(0.5, 1.5), (1.0, 2.0)]):
        behind = {"moves": [["swap_out", 0, 0, 2, "device", "host", "behind", 0]], "computed": 0}
        move = {**events[3], "work": [], "places": [], "tokens": {}, "admitted": [], "reasons": [], **behind}
        wall = {"start_s": start_s, "end_s": end_s, "transfers": {"to_host": [64, 1.0], "to_device": [0, 0.0]}}
        events.insert(4, {**move, "step": 10 + number, "worker": 1, "wall": wall})
    assert broken_rules(document(events)) == []
    found = [one for one in of_phase(events, "X", pid=3) if one["cat"] == "transfer" and "behind" in one["args"]]
    assert [(one["ts"] / 1e6, one["dur"] / 1e6, one["args"]["bytes"]) for one in found] == [
        (0.5, 1.0, 64),
        (1.0, 1.0, 64),
    ]
    assert found[0]["tid"] != found[1]["tid"]

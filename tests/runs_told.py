"""Small runs, as a trace would tell them, made by hand: what they come to can be reckoned on paper."""

from __future__ import annotations

from typing import Any

from events import request, step

from minifuse.trace.log import SCHEMA, Event

HEADER: Event = {"event": "run", "schema": SCHEMA, "technique": "vllm", "model": "tiny", "clock": "virtual"}
NO_ROOM = "evicted: no room"
FULL = "not admitted: the batch has 1 request"
BLOCK = "not admitted: needs 1 block"


def told(number: int, work: list[list[Any]], tokens: dict[str, list[int]], **more: Any) -> Event:
    """Step `number` of worker 0, from `number` to `number` + 1 seconds."""
    start_s, end_s = more.pop("at", (float(number), number + 1.0))
    fields = {"step": number, "worker": 0, "reasons": [], "shape": None, "places": [[0, 8]] * len(work)}
    return step(start_s, end_s, work, tokens, **fields | more)


def preempted() -> list[Event]:
    """Three requests on memory for one: a is evicted for b, and comes back; c arrives at 1.5 s and waits for both.

    | seconds | 0-1 | 1-2 | 2-3 | 3-4 | 4-5 | 5-6 |
    |---|---|---|---|---|---|---|
    | a | prompt | token | evicted | waits | again | token, ends |
    | b | waits | waits | prompt | token, ends | | |
    | c | | arrives | waits | waits | waits | prompt, ends |
    """
    both = {"a": "stop", "c": "length"}
    return [
        HEADER,
        request("a", 0.0, 3),
        request("b", 0.0, 2),
        told(0, [["a", 0, 3]], {"a": [7]}, admitted=["a"], reasons=[["batch-full", "b", FULL]], kv=[3, 4, 8, 0]),
        request("c", 1.5, 1),
        told(1, [["a", 3, 4]], {"a": [7]}, reasons=[["batch-full", "b", FULL]], kv=[4, 4, 8, 0]),
        told(
            2,
            [["b", 0, 2]],
            {"b": [7]},
            admitted=["b"],
            evicted=["a"],
            reasons=[["evicted", "a", NO_ROOM]],
            moves=[["swap_out", 0, 0, 4, "device", "host", "first", 0]],
            kv=[2, 4, 8, 4],
        ),
        told(3, [["b", 2, 3]], {"b": [7]}, finished={"b": "length"}, reasons=[["memory-full", "a", BLOCK]]),
        told(4, [["a", 0, 5]], {"a": [7]}, admitted=["a"], reasons=[["batch-full", "c", FULL]]),
        told(5, [["a", 5, 6], ["c", 0, 1]], {"a": [7], "c": [7]}, admitted=["c"], finished=both),
        {"event": "end", "unfinished": [], "wall": {"end_s": 6.0}},
    ]


def padded() -> list[Event]:
    """A rectangle of two rows of 8 slots: b ends first, and its row is computed on for a. It is read beside a pause."""
    rows = {"kind": "Rectangle", "offset": 0, "rows": 2, "stride": 8}
    both = {"admitted": ["a", "b"], "places": [[0, 8], [8, 8]], "finished": {"b": "length"}}
    window = ["window-open", "a", "not admitted: 1 waits and the window closes at 1 s"]
    return [
        HEADER | {"technique": "static"},
        request("a", 0.0, 2),
        {"event": "wait", "reasons": [window], "wall": {"start_s": 0.0, "end_s": 1.0}},
        request("b", 0.5, 2),
        told(
            1, [["a", 0, 2], ["b", 0, 2]], {"a": [7], "b": [7]}, shape={**rows, "start": 0, "stop": 2}, **both, step=0
        ),
        told(2, [["a", 2, 3]], {"a": [7]}, shape={**rows, "start": 2, "stop": 3}, idle=1, step=1),
        told(
            3, [["a", 3, 4]], {"a": [7]}, shape={**rows, "start": 3, "stop": 4}, idle=1, step=2, finished={"a": "stop"}
        ),
        {"event": "end", "unfinished": [], "wall": {"end_s": 4.0}},
    ]


def apart() -> list[Event]:
    """a's prompt is computed by worker 1 and joins worker 0 a second later; b runs there all the time."""
    ready = ["rows-full", "a", "not admitted: each of 1 row has a sequence"]
    return [
        HEADER | {"technique": "pd"},
        request("b", 0.0, 1),
        request("a", 1.0, 4),
        told(0, [["b", 0, 1]], {"b": [7]}, admitted=["b"]),
        told(1, [["b", 1, 2]], {"b": [7]}),
        told(2, [["a", 0, 4]], {"a": [7]}, admitted=["a"], worker=1, phase="preprocessing", at=(1.0, 2.0)),
        told(3, [["b", 2, 3]], {"b": [7]}, at=(2.0, 3.0), reasons=[ready], finished={"b": "length"}),
        told(4, [["a", 4, 5]], {"a": [7]}, at=(3.0, 4.0), finished={"a": "length"}),
        {"event": "end", "unfinished": [], "wall": {"end_s": 4.0}},
    ]


def beside() -> list[Event]:
    """Two workers whose iterations overlap: worker 1 computes the prompts, worker 0 the tokens, as `fusion` does.

    | seconds | 0-1 | 1-2 | 2-3 | 3-4 | 4-5 | 5-6 |
    |---|---|---|---|---|---|---|
    | worker 0 | | a | a | a and b | a, ends, and b | b, ends |
    | worker 1 | a's prompt | b's prompt, from 1.5 | until 2.5 | c's prompt, from 3.5 | and | until 5.5 |
    """
    apart = {"worker": 1, "phase": "preprocessing"}
    return [
        HEADER | {"technique": "fusion"},
        *(request(name, 0.0, 4) for name in "abc"),
        told(0, [["a", 0, 4]], {}, admitted=["a"], at=(0.0, 1.0), **apart),
        told(1, [["a", 3, 4]], {"a": [7]}, at=(1.0, 2.0)),
        told(2, [["b", 0, 4]], {}, admitted=["b"], at=(1.5, 2.5), **apart),
        told(3, [["a", 4, 5]], {"a": [7]}, at=(2.0, 3.0)),
        told(4, [["a", 5, 6], ["b", 3, 4]], {"a": [7], "b": [7]}, at=(3.0, 4.0)),
        told(5, [["a", 6, 7], ["b", 4, 5]], {"a": [7], "b": [7]}, at=(4.0, 5.0), finished={"a": "length"}),
        told(6, [["c", 0, 4]], {}, admitted=["c"], at=(3.5, 5.5), **apart),
        told(7, [["b", 5, 6]], {"b": [7]}, at=(5.0, 6.0), finished={"b": "length"}),
        told(8, [["c", 3, 4]], {"c": [7]}, at=(6.0, 7.0), finished={"c": "length"}),
        {"event": "end", "unfinished": [], "wall": {"end_s": 7.0}},
    ]


def cells() -> list[Event]:
    """Two sequences through an encoder and a decoder; b waits between its nodes."""
    return [
        HEADER | {"technique": "cellular", "model": "seq2seq"},
        request("a", 0.0, 2),
        request("b", 0.0, 1),
        _task(0, "encoder", ["a", 0], ["b", 0], admitted=["a", "b"]),
        _task(1, "encoder", ["a", 1]),
        _task(2, "decoder", ["a", 2], finished={"a": "stop"}),
        _task(3, "decoder", ["b", 1], finished={"b": "stop"}),
        {"event": "end", "unfinished": [], "wall": {"end_s": 4.0}},
    ]


def _task(number: int, cell: str, *nodes: list[Any], **more: Any) -> Event:
    work = [[name, node, node + 1, cell] for name, node in nodes]
    return told(number, work, {}, places=[[[], i] for i in range(len(work))], **more)

"""Writes moves of KV as tracks of the memory: one for each direction."""

from __future__ import annotations

from typing import Any

from minifuse.show.perfetto.events import TraceEvent, Tracks, complete, nanoseconds
from minifuse.trace.history import History, Iteration

TO_HOST, TO_DEVICE, WITHIN = "to the host", "to the device", "within the device"
ORDER = {TO_DEVICE: 0, TO_HOST: 1, WITHIN: 2}  # above the slots
MEASURED = {TO_HOST: "to_host", TO_DEVICE: "to_device"}


def transfer_events(history: History, tracks: Tracks) -> list[TraceEvent]:
    """Return a slice for each direction in which a step moved KV.

    Moves that no iteration waits for form a step of their own, and are drawn at its times. For other moves the trace
    has only the duration: their slice begins with their iteration, and is at most as long as the iteration.
    """
    return [
        _slice(one, way, moves, tracks)
        for one in history.iterations
        for way, moves in sorted(_by_way(one).items(), key=lambda item: ORDER[item[0]])
    ]


def _by_way(one: Iteration) -> dict[str, list[list[Any]]]:
    found: dict[str, list[list[Any]]] = {}
    for move in one.event["moves"]:
        source, target = move[4], move[5]
        way = WITHIN if source == target else TO_HOST if target == "host" else TO_DEVICE
        found.setdefault(way, []).append(move)
    return found


def _slice(one: Iteration, way: str, moves: list[list[Any]], tracks: Tracks) -> TraceEvent:
    wall = one.event["wall"]
    num_bytes, seconds = wall.get("transfers", {}).get(MEASURED.get(way, ""), (0, 0.0))
    if way == WITHIN:
        seconds = wall.get("moving_s", 0.0)
    start_ns, end_ns = nanoseconds(one.start_s), nanoseconds(one.end_s)
    if one.work:
        end_ns = min(end_ns, start_ns + nanoseconds(seconds))
    kinds: dict[str, int] = {}
    for kind, _, _, num_tokens, *_ in moves:
        kinds[kind] = kinds.get(kind, 0) + num_tokens
    args: dict[str, Any] = {"step": one.step, "tokens": sum(kinds.values()), "moves": len(moves)}
    if num_bytes:
        args["bytes"] = num_bytes
    if not one.work:
        args["behind"] = "everything: no iteration waits for it"
    track = tracks.place(way, ORDER[way], start_ns, end_ns)
    return complete(", ".join(sorted(kinds)), "transfer", track, start_ns, end_ns, args)

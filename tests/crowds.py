"""Runs in which many requests wait, for each technique."""

from __future__ import annotations

from functools import cache

from helpers import asks, run_all

from minifuse.core.request import Request
from minifuse.model.source import resolve
from minifuse.serve.build import build_engine
from minifuse.serve.engine import ServingEngine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.settings import Settings
from minifuse.techniques import Technique, technique
from minifuse.trace.log import Event
from minifuse.workload.cells import cell_workload
from minifuse.workload.laws import parse_arrival

__all__ = ["crowded", "told_and_plain"]


def crowded(row: Technique, why: bool) -> tuple[ServingEngine, list[Request]]:
    """A crowd in little memory, of the model that the technique serves."""
    if "transformer" in row.serves:
        source, requests = resolve("random:small"), [asks(f"r{i}", 5 + i % 7, 3 + i % 5, i * 1e-4) for i in range(30)]
        kv_memory = 128 * source.slot_bytes("float32")
    else:
        source = resolve("lstm:hidden=16")
        requests = cell_workload("wmt15", "lstm", 12, 64, parse_arrival("constant:0.1ms"), 0)
        kv_memory = 12 * source.slot_bytes("float32")
    settings = Settings(clock="virtual", kv_memory=kv_memory, why=why)
    return build_engine(resolve_run(row, source, settings), source.outline("float32", 0)), requests


@cache
def told_and_plain(name: str) -> tuple[list[Event], list[Event]]:
    """The events of a run that tells of each request why it waits, and those of one that does not."""
    found = []
    for why in (True, False):
        engine, requests = crowded(technique(name), why)
        run_all(engine, requests)
        found.append([*engine.trace.events()])
    return found[0], found[1]

"""Runs that the tests of pictures draw, each made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from minifuse.core.request import Request
from minifuse.show.notebook.played import Played, play
from minifuse.show.notebook.prompts import asks, turns

__all__ = ["RUNS", "TEXTS", "few", "many", "run_of", "talks"]

TEXTS = (
    *("count from 3 to 9", "sort 7 2 5", "reverse cat moon tree owl", "add 17 and 25", "repeat owl 8 times"),
    "count from 40 to 52",
)


def few() -> list[Request]:
    """Requests that come while others run."""
    return asks(*TEXTS, every=0.001)


def many() -> list[Request]:
    """Requests whose answers are longer than a small memory has room for."""
    return asks(*(f"count from {i} to {i + 15}" for i in (3, 30, 50, 70)), "sort 4 1", every=0.0005)


def talks() -> list[Request]:
    """Conversations of three turns."""
    texts = "remember ann 17", "count from 3 to 9", "recall ann"
    return [turn for i in range(4) for turn in turns(f"c{i}", *texts, start=0.001 * i, pause=0.004)]


SMALL = {"kv_memory": "72KiB", "memory__block_size": 4}  # 48 tokens
CELLS = {"model": "lstm:hidden=64", "kv_memory": "16KiB"}
RUNS: dict[str, Callable[[], Played]] = {
    "static": lambda: play("static", few(), max_batch=4),
    "orca": lambda: play("orca", few()),
    "fusion": lambda: play("fusion", few(), memory__slots=4),
    "fusion unshuffled": lambda: play("fusion", few(), memory__slots=4, memory__shuffle=False),
    "vllm": lambda: play("vllm", many(), memory__preemption="swap", **SMALL),
    "fluid": lambda: play("fluid", many(), memory__overflow="rotate", **SMALL),
    "pensieve": lambda: play("pensieve", talks(), kv_memory="96KiB", memory__chunk=8, memory__host=128),
    "baton": lambda: play("baton", few(), max_batch=3),
    "baton-pd": lambda: play("baton-pd", few(), kv_memory="256KiB", max_batch=3),
    "dynamic": lambda: play("dynamic", few(), batching__window="2ms"),
    "cellular": lambda: play("cellular", asks(3, 6, 2, every=0.0003, model="lstm:hidden=64"), **CELLS),
    "graph-padded": lambda: play("graph-padded", asks(3, 6, 2, 9, model="lstm:hidden=64"), **CELLS),
}


@cache
def run_of(name: str) -> Played:
    return RUNS[name]()

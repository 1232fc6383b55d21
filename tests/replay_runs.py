"""Traces of runs that are made up, for what a real run would take too long to make."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from minifuse.show.record import record
from minifuse.show.traced_runs import TracedRun
from minifuse.trace.log import SCHEMA, Event

BATCH = 16
BLOCK = 16
CAPACITY = BATCH * 24 * BLOCK
ASKED = {"max_new_tokens": 400, "priority": 0, "conversation": None, "group": None}


@cache
def long_run(iterations: int) -> dict[str, Any]:
    """The record of a run of so many iterations, made once: change copies only."""
    return record([TracedRun("long", long_events(iterations), title="long")])


def long_events(iterations: int) -> list[Event]:
    """The trace of a run of so many iterations: 16 requests at once in blocks, each of about 200 tokens."""
    draw = random.Random(0)
    requests: list[Event] = []
    steps: list[Event] = []
    free = [*range(BATCH * 24)]
    running: list[tuple[str, int, int, list[int]]] = []  # id, tokens so far, tokens at the end, blocks
    now = 0.0
    for number in range(iterations):
        work: list[list[Any]] = []
        places: list[list[Any]] = []
        admitted: list[str] = []
        finished: dict[str, str] = {}
        end = now + draw.uniform(0.01, 0.02)
        used = 0
        going, running = running, []
        while len(going) < BATCH:
            prompt = draw.randint(8, 64)
            name = f"r{len(requests)}"
            arrival = max(0.0, now - draw.uniform(0, 0.05))
            requests.append({"event": "request", "id": name, "arrival_s": arrival, "prompt_tokens": prompt, **ASKED})
            admitted.append(name)
            going.append((name, 0, prompt + draw.randint(100, 300), []))
        for name, done, last, blocks in going:
            stop = done + 1 if done else next(one["prompt_tokens"] for one in reversed(requests) if one["id"] == name)
            new = [free.pop() for _ in range(-(-stop // BLOCK) - len(blocks))]
            work.append([name, done, stop])
            places.append([len(blocks), new, BLOCK])
            used += stop
            if stop >= last:
                finished[name] = "length"
            else:
                running.append((name, stop, last, blocks + new))
        still = {block for *_, blocks in running for block in blocks}
        free = [block for block in range(BATCH * 24) if block not in still]
        draw.shuffle(free)
        held = sum(len(blocks) for *_, blocks in running) * BLOCK
        steps.append(
            {
                "event": "step",
                "step": number,
                "worker": 0,
                "phase": "running",
                "shape": None,
                "waves": [[0, len(work)]],
                "lanes": [],
                "work": work,
                "places": places,
                "admitted": admitted,
                "evicted": [],
                "moves": [],
                "reasons": [],
                "computed": sum(stop - start for _, start, stop in work),
                "idle": 0,
                "tokens": {name: [1] for name, *_ in work},
                "finished": finished,
                "kv": [used, max(used, held), CAPACITY, 0],
                "wall": {"start_s": now, "end_s": end},
            }
        )
        now = end
    run = {"event": "run", "schema": SCHEMA, "technique": "long", "clock": "virtual", "kv_capacity_tokens": CAPACITY}
    unfinished = [name for name, *_ in running]
    return [run, *requests, *steps, {"event": "end", "unfinished": unfinished, "wall": {"end_s": now}}]

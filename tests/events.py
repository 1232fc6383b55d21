"""Events of a trace, as the engine would log them."""

from __future__ import annotations

from typing import Any

from minifuse.trace.log import Event


def step(start_s: float, end_s: float, work: list[list[Any]], tokens: dict[str, list[int]], **fields: Any) -> Event:
    computed = sum(item[2] - item[1] for item in work) + fields.get("idle", 0)
    decided = {
        "phase": "running",
        "computed": computed,
        "idle": 0,
        "moves": [],
        "waves": [],
        "finished": {},
        "admitted": [],
        "evicted": [],
        "kv": [0, 0, 100, 0],
    }
    wall = {"start_s": start_s, "end_s": end_s, **({"moving_s": 0.25} if fields.get("moves") else {})}
    return {"event": "step", "work": work, "tokens": tokens, **decided, **fields, "wall": wall}


def request(name: str, arrival_s: float, prompt_tokens: int) -> Event:
    return {"event": "request", "id": name, "arrival_s": arrival_s, "prompt_tokens": prompt_tokens}

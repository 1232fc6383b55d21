"""Records of runs that are made up, for what a real run would take too long to make."""

from __future__ import annotations

import random
from typing import Any

BATCH = 16
BLOCK = 16


def long_run(iterations: int, seed: int = 0) -> dict[str, Any]:
    """The record of a run of so many iterations: 16 requests at once in blocks, each of about 200 tokens."""
    draw = random.Random(seed)
    requests: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    free = list(range(BATCH * 24))
    running: list[tuple[int, int, int, list[int]]] = []  # number, tokens so far, tokens at the end, blocks
    now = 0.0
    for number in range(iterations):
        step: dict[str, Any] = {"n": number, "k": 0, "w": [], "p": [], "a": [], "o": [], "f": [], "y": []}
        end = now + draw.uniform(0.01, 0.02)
        going, running = running, []
        for r, done, last, blocks in going:
            new = [free.pop()] if done % BLOCK == 0 else []
            step["w"].append([r, done, done + 1])
            step["p"].append([len(blocks), new, BLOCK])
            step["o"].append([r, 1])
            if done + 1 >= last:
                step["f"].append([r, "length"])
                free += [*blocks, *new]
                requests[r] |= {"ended": end, "outcome": "length"}
            else:
                running.append((r, done + 1, last, blocks + new))
        while len(running) < BATCH and len(going) < BATCH:
            r, prompt = len(requests), draw.randint(8, 64)
            asked = {"id": f"r{r}", "arrival": max(0.0, now - draw.uniform(0, 0.05)), "prompt": prompt, "maxNew": 400}
            requests.append(
                {**asked, "ended": None, "outcome": None, "priority": 0, "conversation": None, "group": None}
            )
            blocks = [free.pop() for _ in range(-(-prompt // BLOCK))]
            step["w"].append([r, 0, prompt])
            step["p"].append([0, blocks, BLOCK])
            step["o"].append([r, 1])
            step["a"].append(r)
            running.append((r, prompt, prompt + draw.randint(100, 300), blocks))
        used = sum(done for _, done, _, _ in running)
        held = sum(len(blocks) for *_, blocks in running) * BLOCK
        computed = sum(stop - start for _, start, stop in step["w"])
        told = {"t": [round(now, 9), round(end, 9)], "c": computed, "kv": [used, held, BATCH * 24 * BLOCK, 0]}
        steps.append({name: value for name, value in (step | told).items() if value or name in ("n", "k")})
        now = end
    run = {
        "title": "long",
        "summary": None,
        "facts": [["technique", "long"]],
        "notice": None,
        "unit": "token",
        "capacity": BATCH * 24 * BLOCK,
        "workers": 1,
        "cells": ["transformer"],
        "reasons": [],
        "requests": requests,
        "steps": steps,
    }
    return {"version": 1, "runs": [run]}

"""Measures the host work of an iteration in the checkout of minifuse that PYTHONPATH names: one JSON case a line.

Started by `scheduler.py`, once for each checkout. It uses what every version of minifuse since 5ab277f has: a way to
build an engine, and its `receive`, `dispatch` and `collect`.
"""

from __future__ import annotations

import gc
import json
import math
import random
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

try:
    from minifuse.model.source import resolve
    from minifuse.serve.build import build_engine
    from minifuse.serve.run import serve
    from minifuse.serve.settings import Settings

    def outline(name: str) -> Any:
        """A model that was found, and what virtual time has instead of its weights."""
        source = resolve(name)
        return source, source.outline(DTYPE)

except ImportError:  # as the modules were called up to 5ab277f
    from minifuse.model.cell_config import resolve_cells
    from minifuse.model.load import resolve
    from minifuse.model.rnn import load_cells

    from minifuse.serve import Settings, build_engine, serve

    def outline(name: str) -> Any:
        source = resolve_cells(name)
        return (resolve(name), None) if source is None else (source, load_cells(source, DTYPE, "meta"))


try:
    from minifuse.serve.resolve import resolve_run
except ImportError:  # `build_engine` resolves a run itself
    resolve_run = None

try:
    from minifuse.trace.running import RunningMetrics
except ImportError:  # before traces had a room of their own
    from minifuse.metrics import RunningMetrics

try:
    from minifuse.core.request import Request
except ImportError:  # before the loop had a room of its own
    from minifuse.request import Request
from minifuse.simulate.cost import HARDWARE
from minifuse.techniques import TECHNIQUES, mix, technique

DTYPE = "float16"
KV_BYTES = 2 * 2 * 40 * 40 * 128  # of a token of llama-2-13b: keys and values, two bytes, layers, heads, their size
MACHINE = replace(HARDWARE["a100-40g"], memory=math.inf)  # whose memory may be of any size here
SIZES = ("batching.max_batch", "batching.instances", "memory.slots")  # the options that bound a batch
PATIENCE_S = 6.0  # of measuring one case, at most; the iterations until then count


def row_of(name: str) -> Any:
    """A technique by its name; or a mix, as batching+memory+attention."""
    if "+" not in name:
        return technique(name)
    batching, memory, attention = name.split("+")
    return mix(technique("orca"), batching=batching, memory=memory, attention=attention)


def requests_of(case: dict[str, Any], count: int) -> list[Request]:
    """Prompts of unequal lengths around `prompt`, the first `common` tokens of all alike; they never stop early.

    Lengths differ so that sequences do not all grow into a new block in the same iteration. Where prompts begin alike,
    the first arrives alone: what it has computed can be shared.
    """
    rng = random.Random(0)
    tokens = rng.choices(range(1000), k=4096)
    longest, common = case["prompt"], case["common"]
    requests = []
    for i in range(count):
        own = longest - common - i % 16
        start = rng.randrange(4096 - own)
        prompt = (*tokens[:common], i % 30_000, *tokens[start : start + own - 1])
        arrival_s = 0.5 if common and i else 0.0
        requests.append(Request(f"r{i}", prompt, case["new"], ignore_eos=True, arrival_s=arrival_s))
    return requests


def engine_of(case: dict[str, Any], trace: Path | None = None, **more: Any) -> Any:
    row = row_of(case["technique"])
    options = {name: case["batch"] for name in SIZES if name in row.option_names} | case["options"]
    if "batching.preprocess" in row.option_names:
        options["batching.preprocess"] = "inline"
    if "memory.block_size" in row.option_names:
        options["memory.block_size"] = case["block_size"]
    source, model = outline(case["model"])
    settings = Settings(
        dtype=DTYPE,
        kv_memory=case["blocks"] * case["block_size"] * (KV_BYTES if model is None else model.slot_bytes),
        clock="virtual",
        hardware=MACHINE,
        stage_options=options,
    )
    if resolve_run is None:
        return build_engine(row, source, settings, model, trace, **more)
    return build_engine(resolve_run(row, source, settings), model, trace, **more)


def iterations(case: dict[str, Any]) -> dict[str, Any]:
    """Seconds of turns of the loop in which a full batch decodes; with `evicts`, of those that evict a sequence.

    A turn of the loop runs at least one plan; several if several workers complete theirs at the same time.
    """
    requests = requests_of(case, case["batch"] + case["waiting"])
    gc.collect()
    gc.freeze()  # as `serve` does
    engine = engine_of(case)
    for request in requests:
        engine.submit(request)

    def turn() -> tuple[float, list[Any]]:
        start = time.perf_counter()
        if hasattr(engine, "turn"):
            reports = engine.turn()
        else:  # a checkout from before the lock that a turn holds
            engine.receive()
            engine.dispatch()
            reports = engine.collect()
        return time.perf_counter() - start, reports

    begun: set[str] = set()
    for _ in range(20 * case["batch"]):
        for report in turn()[1]:
            begun.update(report.tokens or [work.sequence for work in report.plan.work if work.stop - work.start == 1])
        if len(begun) >= case["running"]:
            break
    seconds, per_token, batches = [], [], []
    end = time.perf_counter() + PATIENCE_S
    while len(seconds) < case["count"] and time.perf_counter() < end:
        took, reports = turn()
        plans = [report.plan for report in reports if report.plan.work]  # not those of moves alone
        evicted = any(plan.evicted for plan in plans)
        if not plans or any(plan.admitted for plan in plans) or evicted != case["evicts"]:
            continue
        tokens = sum(len(plan.work) for plan in plans)
        seconds.append(took / len(plans))
        per_token.append(took / tokens)
        batches.append(tokens / len(plans))
    gc.unfreeze()
    if not seconds:
        return {"failure": "no such iteration within the time"}
    return {
        "iteration_s": statistics.median(seconds),
        "token_s": statistics.median(per_token),
        "running": statistics.median(batches),
        "iterations": len(seconds),
    }


def whole_run(case: dict[str, Any]) -> dict[str, Any]:
    """A whole run, in a process of its own: seconds, tokens, the memory that it took, and the size of its trace."""
    requests = requests_of(case, case["waiting"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl" if case["trace"] else None
        counted = RunningMetrics()
        engine = engine_of(case, path, into=counted.read)
        start = time.perf_counter()
        served = serve(engine, requests)
        counted.result()
        seconds = time.perf_counter() - start
        size = path.stat().st_size if path else None
    tokens = sum(len(answer.token_ids) for answer in served.answers)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": seconds, "tokens": tokens, "grown_bytes": peak * 1024, "trace_bytes": size}


def answer(case: dict[str, Any]) -> dict[str, Any]:
    if case["technique"] not in TECHNIQUES and "+" not in case["technique"]:
        return {"failure": "this checkout does not have the technique"}
    return {"iterations": iterations, "run": whole_run}[case["kind"]](case)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)

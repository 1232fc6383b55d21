"""The golden file of decisions: what every technique and mix decided on fixed scenarios, as one digest for each event.

    python tests/conformance/golden.py          # record it anew, when decisions are meant to change

The tokens of a sequence follow from its name and their position, so that decisions hang on no model's numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from minifuse.core.clock import VirtualClock
from minifuse.core.errors import RequestRefused
from minifuse.core.request import Request
from minifuse.execute import VirtualExecutor
from minifuse.serve.engine import ServingEngine
from minifuse.techniques import TECHNIQUES, Technique
from minifuse.testing import GRAPHS, TEXTS, Case
from minifuse.testing.graphs import GraphScenario, recipes
from minifuse.testing.graphs.scenario import only_chains
from minifuse.testing.texts import TextScenario
from minifuse.testing.texts.models import CONTEXT, VOCAB
from minifuse.trace.log import Trace, decisions, whole_tables

FILE = Path(__file__).parent / "golden.json"
SEEDS = range(6)


def token(sequence: str, position: int) -> int:
    """The token that a sequence has at a position."""
    digest = hashlib.blake2b(f"{sequence}/{position}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % VOCAB


def text_scenario(seed: int, row: Technique) -> TextScenario:
    """Few requests, a crowd, or requests that outgrow memory; with groups from seed 3 on."""
    rng = Random(f"golden text {seed}")
    kind = ("few", "crowd", "growing")[seed % 3]
    arrivals = [0.0, 0.0, 0.005, 0.02, 0.055, 0.3]
    longest = 5 if kind == "growing" else 12
    begin = tuple(rng.randrange(VOCAB) for _ in range(8))
    requests = []
    for i in range({"few": 5, "crowd": 8, "growing": 5}[kind]):
        prompt = tuple(rng.randrange(VOCAB) for _ in range(rng.randint(1, longest)))
        if rng.random() < 0.5:
            prompt = (begin + prompt)[: rng.randint(1, longest)]
        requests.append(
            Request(
                f"r{i}",
                prompt,
                rng.choice([7, 10, 12] if kind == "growing" else [1, 2, 3, 5, 7, 10]),
                stop_ids=rng.choice([(), (3,), (5, 11, 17)]),
                ignore_eos=rng.random() < 0.5,
                arrival_s=rng.choice(arrivals if kind == "few" else arrivals[:3]),
            )
        )
    if kind != "growing" and seed >= 3:
        requests[1:3] = [replace(r, group="g", arrival_s=requests[1].arrival_s) for r in requests[1:3]]
    options = {
        "batching.max_batch": rng.randint(1, 4) + 2 * (kind != "few"),
        "batching.token_budget": rng.choice([None, None, 4, 9]),
        "batching.window": rng.choice([0.0, 0.02, 0.1]),
        "batching.instances": rng.randint(1, 3) + 2 * (kind == "crowd"),
        "batching.preprocess": rng.choice(["worker", "inline"]),
        "batching.preprocessors": rng.randint(1, 3),
        "memory.slots": rng.choice([4, 6] if kind == "crowd" else [1, 2, 3]),
        "memory.shuffle": rng.choice([True, True, False]),
        "memory.chunk": 1 + seed % 4,
        "memory.ahead": 0.4,
        "memory.block_size": rng.choice([1, 2, 3, 5]),
        "memory.preemption": rng.choice(["swap", "recompute"]),
        "memory.host": rng.choice([None, 6, 15]),
        "memory.watermark": rng.choice([0.0, 0.2]),
        "memory.share": rng.random() < 0.5,
        "batching.max_tasks": rng.randint(1, 5),
        "batching.workers": rng.choice([1, 2]),
        "memory.rows": 1 + seed % 3,
        "memory.prefill": 0.4,
        "memory.threshold": 0.7 if seed % 3 else 1.0,
        "memory.insert": ("shape", "embed")[seed % 2],
    }
    capacity = {"few": 40, "crowd": 3 * CONTEXT, "growing": 31}[kind]
    seconds_to_prepare = rng.choice([0.003, 0.01, 0.025])
    return TextScenario(
        model="llama",
        requests=tuple(requests),
        capacity=capacity,
        options=tuple(options.items()),
        seconds_to_prepare=seconds_to_prepare,
    )


def graph_scenario(seed: int, row: Technique) -> GraphScenario:
    """Seven requests: chains for what pads them, otherwise chains, trees and other graphs."""
    rng = Random(f"golden cells {seed}")
    kinds = list(recipes.CHAINS if only_chains(row) else recipes.GRAPHS)
    requests = tuple(
        Request(
            f"r{i}",
            (),
            rng.choice([1, 2, 4, 9, 9, 9]),
            stop_ids=rng.choice([(), (), (3,), (6, 8)]),
            ignore_eos=rng.random() < 0.3,
            arrival_s=rng.choice([0.0, 0.0, 0.0, 0.005, 0.02, 0.035, 0.2]),
            structure=recipes.Recipe(rng.choice(kinds), rng.randint(1, 6), rng.randint(0, 99)),
        )
        for i in range(7)
    )
    max_batch = rng.randint(1, 6)
    options = {
        "batching.max_batch": max_batch,
        "batching.min_batch": min(max_batch, rng.choice([1, 1, 2, 3])),
        "batching.max_batches": rng.choice([None, None, "decoder=7,leaf=3,lstm=4,wide=3"]),
        "batching.priorities": rng.choice([None, None, "leaf,encoder,wide"]),
        "batching.max_tasks": rng.randint(1, 5),
        "batching.workers": rng.choice([1, 1, 2, 2, 3]),
        "batching.bucket_width": rng.choice([1, 2, 3, 10]),
        "batching.pad": rng.choice(["bucket", "longest"]),
        "batching.overlap": rng.random() < 0.5,
    }
    slack = rng.choice([-1, 0, 0, 1, 3, 8, 300])
    return GraphScenario(requests=requests, slack=slack, options=tuple(options.items()), pace=seed % 4)


class MadeUpTokens(dict[tuple[str, int], int]):
    """The token at every position of a text, or of every node that produces one."""

    def get(self, key: tuple[str, int], default: Any = None) -> Any:
        return token(*key)


def runs(seeds: Iterable[int] = SEEDS, mixes: bool = True, dealt: bool = False) -> Iterator[tuple[str, list[bytes]]]:
    """The name of every run, and its decisions, one line for each event.

    Args:
        mixes: not only of the named techniques.
        dealt: of a mix, every other scenario only.
    """
    for subject, name, scenario in ((TEXTS, "text", text_scenario), (GRAPHS, "cells", graph_scenario)):
        for i, row in enumerate(subject.mixes()):
            for seed in seeds if mixes or row.name in TECHNIQUES else ():
                if dealt and row.name not in TECHNIQUES and seed % 2 != i % 2:
                    continue
                trace = _served(subject.case(row, scenario(seed, row)))
                lines = decisions(whole_tables(trace.events())).split(b"\n")[1:]
                yield f"{name} {row.name} {seed}", [_as_recorded(line) for line in lines]


def _served(case: Case) -> Trace:
    """Serve the requests of a case on a plain engine. No law is checked: equal decisions keep the same laws."""
    stages, clock, run = case.stages(), VirtualClock(), case.replay(MadeUpTokens())
    if stages.batching.depth > 1:
        run = case.running_ahead(run)
    executor = VirtualExecutor(
        clock, case.scenario.seconds, run, link=case.link(stages.memory), shared=case.scenario.shared
    )
    trace = Trace(technique=case.row.name)
    engine = ServingEngine(
        stages.batching, stages.memory, stages.attention, executor, clock, reader=case.reader, trace=trace
    )
    for prompts in case.groups:
        with suppress(RequestRefused):
            engine.submit(*prompts)
    for _ in engine.run():
        pass
    return trace


SWAPS = {"swap_in": ["host", "device"], "swap_out": ["device", "host"]}


def _as_recorded(line: bytes) -> bytes:
    """The event as it was when moves had neither tiers nor a moment, and these followed from their kind.

    A move that goes elsewhere, or at another moment, than its kind did then stays as it is, and so differs.
    """
    event = json.loads(line)
    for i, (kind, source, target, tokens, *how) in enumerate(event.get("moves", [])):
        if how == [*SWAPS.get(kind, ["device", "device"]), "first", 0]:
            event["moves"][i] = [kind, source, target, tokens, None]
    return json.dumps(event, sort_keys=True).encode()


def digest(line: bytes) -> str:
    return hashlib.blake2b(line, digest_size=3).hexdigest()


def main() -> None:
    recorded = {name: " ".join(map(digest, lines)) for name, lines in runs()}
    FILE.write_text(json.dumps(recorded, indent=0) + "\n")


if __name__ == "__main__":
    main()

"""Attention over sequences of uneven lengths: ragged, request by request, or padded to the longest, in one run.

    python benchmarks/ragged.py                      # everything; writes benchmarks/results/ragged.{json,md}
    python benchmarks/ragged.py --quick --out /tmp   # seconds, to see that it works

The contenders are the attention stages as the engine runs them, on one layer's storage: `paged` over blocks and over
runs, `per_sequence` over runs, and `padded` over a rectangle as wide as the longest context. They take turns within
each round, in an order that rotates; medians over rounds are reported. Before any is timed, all results must agree.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from minifuse.attention.batch import AttentionBackend
from minifuse.attention.layouts import PaddedStage, PagedStage
from minifuse.attention.stage import PerSequenceStage
from minifuse.attention.storage import KVStorage
from minifuse.core.places import Pages
from minifuse.core.plan import Extent, Layout, Place, Plan, Work
from minifuse.core.request import Request, Sequence
from minifuse.core.shapes import Rectangle
from minifuse.model.text.config import ModelConfig, Rotary
from minifuse.papers.provenance import provenance

BLOCK = 16
CONTENDERS = ("paged", "paged, in runs", "per_sequence", "padded")
SHAPES = ((8, 8, 64), (12, 4, 64), (32, 8, 64))  # query heads, KV heads, head_dim


@dataclass(frozen=True)
class Case:
    """Sequences that each compute their last `queries[i]` of `contexts[i]` tokens."""

    name: str
    queries: tuple[int, ...]
    contexts: tuple[int, ...]


def cases(quick: bool) -> list[Case]:
    rng = random.Random(0)
    half, long, longest = (64, 128, 256) if quick else (512, 1024, 2048)
    one = (1,) * 32
    uneven = tuple(rng.randint(16, 64) for _ in range(31))
    return [
        Case("decode, 32 of 64", one, (64,) * 32),
        Case(f"decode, 32 of {half}", one, (half,) * 32),
        Case(f"decode, uniform 16 to {long}", one, tuple(rng.randint(16, long) for _ in range(32))),
        Case(f"decode, 31 of 16 to 64, one of {longest}", one, (*uneven, longest)),
        Case("prefill of 256 beside 31 decodes of 256", (256, *one[1:]), (256,) * 32),
        Case(f"8 queries, 32 of {half}", (8,) * 32, (half,) * 32),
    ]


class Contender:
    """An attention stage on a plan in its own layout; all contenders have the same keys and values."""

    def __init__(self, name: str, case: Case, config: ModelConfig, dtype: torch.dtype) -> None:
        sequences = {f"s{i}": Sequence(Request(f"s{i}", (0,) * n, 2)) for i, n in enumerate(case.contexts)}
        pairs = list(zip(case.queries, case.contexts, strict=True))
        work = tuple(Work(f"s{i}", n - q, n) for i, (q, n) in enumerate(pairs))
        shape, places = _places(name, case)
        self.plan = Plan(0, 0, work, places, layout=Layout(shape=shape))
        slots = max(max(place.slots(0, n)) for place, n in zip(places, case.contexts, strict=True)) + 1
        self.cache = KVStorage(config, slots, dtype, torch.device("cpu"))
        stage = {"per_sequence": PerSequenceStage, "padded": PaddedStage}.get(name, PagedStage)
        self.backend: AttentionBackend = stage().backend()
        generator = torch.Generator().manual_seed(0)
        width = config.num_heads + 2 * config.num_kv_heads
        last_heads = []
        for i, (queries, n) in enumerate(pairs):
            heads = torch.randn(n, width, config.head_dim, generator=generator).to(dtype)
            own_slots = torch.tensor(places[i].slots(0, n))
            self.cache.keys[0, own_slots] = heads[:, config.num_heads : -config.num_kv_heads]
            self.cache.values[0, own_slots] = heads[:, -config.num_kv_heads :]
            last_heads.append(heads[n - queries :])
        started = time.perf_counter()
        self.batch = self.backend.batch(self.plan, sequences, self.cache)
        self.batch_s = time.perf_counter() - started
        self.rows = self.batch.real
        self.heads = torch.zeros(self.plan.num_computed, width, config.head_dim, dtype=dtype)
        self.heads[slice(None) if self.rows is None else self.rows] = torch.cat(last_heads)

    def attend(self) -> torch.Tensor:
        (wave,) = self.batch.waves
        return self.backend.attend(self.heads, None, self.cache, 0, wave)

    def result(self) -> torch.Tensor:
        return self.attend() if self.rows is None else self.attend()[self.rows]


def _places(name: str, case: Case) -> tuple[Rectangle | None, tuple[Place, ...]]:
    count, longest = len(case.contexts), max(case.contexts)
    if name == "padded":  # all rows end in the same column
        places = tuple(Extent(i * longest + longest - n, n) for i, n in enumerate(case.contexts))
        return Rectangle(0, count, longest, longest - max(case.queries), longest), places
    needed = [-(-n // BLOCK) for n in case.contexts]
    if name == "paged":
        free = random.Random(1).sample(range(sum(needed)), sum(needed))
        return None, tuple(Pages(tuple(free.pop() for _ in range(blocks)), BLOCK) for blocks in needed)
    starts = [BLOCK * sum(needed[:i]) for i in range(count)]
    return None, tuple(Extent(start, n) for start, n in zip(starts, case.contexts, strict=True))


def race(case: Case, config: ModelConfig, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Milliseconds of one layer's attention, and of making the batch, which is done once for all layers."""
    contenders = {name: Contender(name, case, config, dtype) for name in CONTENDERS}
    results = {name: contender.result().float() for name, contender in contenders.items()}
    for name, result in results.items():
        worst = (result - results["per_sequence"]).abs().max().item()
        assert worst < 64 * torch.finfo(dtype).eps, f"{name} is off by {worst} in {case}"
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        names = [CONTENDERS[(number + i) % len(CONTENDERS)] for i in range(len(CONTENDERS))]
        for name in names:
            started = time.perf_counter()
            contenders[name].attend()
            if number:  # the first round is a warm-up
                times[name].append(time.perf_counter() - started)
    return {
        "case": case.name,
        "heads": [config.num_heads, config.num_kv_heads, config.head_dim],
        "dtype": str(dtype).removeprefix("torch."),
        "layer_ms": {name: statistics.median(seconds) * 1e3 for name, seconds in times.items()},
        "batch_ms": {name: contender.batch_s * 1e3 for name, contender in contenders.items()},
        "computed_tokens": {name: contender.plan.num_computed for name, contender in contenders.items()},
    }


@torch.inference_mode()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="rounds, each contender once in each")] = 15,
    quick: Annotated[bool, typer.Option("--quick", help="short contexts and few rounds")] = False,
    out: Annotated[Path, typer.Option(help="folder for ragged.json and ragged.md")] = Path(__file__).parent / "results",
) -> None:
    """Race the attention stages on batches of even and uneven lengths."""
    results: dict[str, Any] = {**provenance(), "rounds": 3 if quick else rounds, "rows": []}
    for dtype in (torch.float32, torch.bfloat16):
        for heads, kv_heads, head_dim in SHAPES[: 1 if quick else None]:
            config = ModelConfig(
                "llama", 8, heads * head_dim, 1, heads, kv_heads, head_dim, 8, 4096, rotary=Rotary(head_dim)
            )
            for case in cases(quick):
                results["rows"].append(race(case, config, dtype, results["rounds"]))
    (out / "ragged.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "ragged.md").write_text(_page(results))
    table = Table(box=None, pad_edge=False)
    for head in _HEADS:
        table.add_column(head, no_wrap=True)
    for row in results["rows"]:
        table.add_row(*_cells(row))
    Console(width=160).print(table)


_HEADS = ("heads", "dtype", "batch", *(f"{name}, ms" for name in CONTENDERS), "per_sequence / paged", "padded / paged")


def _cells(row: dict[str, Any]) -> list[str]:
    milliseconds = row["layer_ms"]
    heads, kv_heads, _ = row["heads"]
    return [
        f"{heads}/{kv_heads}",
        row["dtype"],
        row["case"],
        *(f"{milliseconds[name]:.2f}" for name in CONTENDERS),
        f"{milliseconds['per_sequence'] / milliseconds['paged']:.2f}x",
        f"{milliseconds['padded'] / milliseconds['paged']:.1f}x",
    ]


def _page(results: dict[str, Any]) -> str:
    machine, versions = results["machine"], results["versions"]
    state = "" if results["clean"] else " with uncommitted changes"
    lines = [
        "# Attention over uneven lengths, on a CPU",
        "",
        "Milliseconds of one layer's attention, medians. `paged` reads blocks of 16 in no order, `per_sequence` runs",
        "of slots, `padded` a rectangle as wide as the longest context.",
        "",
        f"| {' | '.join(_HEADS)} |",
        f"|{'---|' * len(_HEADS)}",
        *(f"| {' | '.join(_cells(row))} |" for row in results["rows"]),
        "",
        f"{machine['processor']}, {machine['cores']} cores, torch {versions['torch']}, commit "
        f"{results['commit'] or 'unknown'}{state}; {results['rounds']} rounds.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)

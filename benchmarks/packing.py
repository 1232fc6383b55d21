"""Attention in packed lanes, against other ways to order the same work, in one run (FluidInfer, 4.2).

    python benchmarks/packing.py                      # everything; writes benchmarks/results/packing.{json,md}
    python benchmarks/packing.py --quick --out /tmp   # seconds, to see that it works

The contenders attend to the same prompts and single tokens, over blocks of one layer's storage, with as many threads as
torch has: lanes as the packer fills them; a lane for each piece of work, longest first (an ordinary grid over the same
table) or in the order of arrival; prompts first, then single tokens; and all in one call, without lanes. They take
turns within each round, in an order that rotates. Before any is timed, all results must agree.

Bubbles are those of a machine with a processor for each lane: predicted from the packer's estimates, and measured, from
what each piece of work takes alone.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from minifuse.attention.backend import Backend
from minifuse.attention.layouts import PackedStage
from minifuse.attention.packed import PackedAttention
from minifuse.attention.packing import Lanes, bubbles_of, pack
from minifuse.attention.paged import PagedAttention
from minifuse.attention.storage import KVStorage
from minifuse.core.places import Pages
from minifuse.core.plan import Layout, Plan, Span, Work
from minifuse.core.request import Request, Sequence
from minifuse.model.text.config import ModelConfig, Rotary
from minifuse.papers.provenance import provenance

BLOCK = 16
CONTENDERS = ("packed", "grid", "fifo", "apart", "one call")
HEADS, KV_HEADS, HEAD_DIM = 12, 4, 64
CPU_BALANCE = 5.0  # operations while a byte is read: of the simulated CPU
SMALL, SETS = 9, 200  # pieces of work, and sets of them, that greedy packing is compared with the fewest lanes on


@dataclass(frozen=True)
class Case:
    """Prompts, whole, and single tokens after contexts, in the order of arrival."""

    name: str
    prompts: tuple[int, ...]
    contexts: tuple[int, ...]

    def pairs(self) -> list[tuple[int, int]]:
        """Queries and context of each, mixed."""
        both = [(n, n) for n in self.prompts] + [(1, n) for n in self.contexts]
        random.Random(0).shuffle(both)
        return both


def cases(quick: bool) -> list[Case]:
    rng = random.Random(1)
    long, few, many = (64, 128, 6) if quick else (1024, 128, 48)

    def contexts(count: int, most: int) -> tuple[int, ...]:
        return tuple(rng.randint(16, most) for _ in range(count))

    return [
        Case("single tokens alone", (), contexts(many, long)),
        Case("one long prompt", (long,), contexts(many, long)),
        Case("prompts of all lengths", (long, long // 2, long // 4, few, few // 2), contexts(many, long)),
        Case("two long prompts, few tokens", (long, long), contexts(many // 6, long)),
    ]


class Contender:
    """A way to attend to a case's work."""

    def __init__(self, name: str, case: Case, config: ModelConfig) -> None:
        pairs = case.pairs()
        if name == "apart":
            pairs.sort(key=lambda pair: pair[0] == 1)  # stable
        self.sequences = {f"s{i}": Sequence(Request(f"s{i}", (0,) * n, 2)) for i, (_, n) in enumerate(pairs)}
        self.work = tuple(Work(f"s{i}", n - queries, n) for i, (queries, n) in enumerate(pairs))
        blocks = iter(range(sum(-(-n // BLOCK) for _, n in pairs)))
        self.places = tuple(Pages(tuple(next(blocks) for _ in range(-(-n // BLOCK))), BLOCK) for _, n in pairs)
        stage = PackedStage(PackedStage.Options(balance=CPU_BALANCE))
        self.estimates = [stage.estimate(item) for item in self.work]
        self.prompts = [item.num_tokens > 1 for item in self.work]
        self.lanes = self._lanes(name)
        num_prompts = sum(self.prompts)
        waves = (Span(0, num_prompts), Span(num_prompts, len(pairs))) if name == "apart" and num_prompts else ()
        self.backend: Backend = PagedAttention() if name == "one call" else PackedAttention()
        layout = Layout(waves, lanes=() if name == "one call" else self.lanes)
        self.plan = Plan(0, 0, self.work, self.places, layout=layout)
        self.cache = KVStorage(config, sum(place.capacity for place in self.places), torch.float32, torch.device("cpu"))
        self.batch = self.backend.batch(self.plan, self.sequences, self.cache)
        draw = torch.Generator().manual_seed(0)
        width = config.num_heads + 2 * config.num_kv_heads
        by_pair: dict[tuple[int, int], torch.Tensor] = {}
        parts = []
        for (queries, n), place in zip(pairs, self.places, strict=True):  # the same KV for the same pair, in any order
            if (queries, n) not in by_pair:
                by_pair[queries, n] = torch.randn(
                    n, width, config.head_dim, generator=draw.manual_seed(queries * 9973 + n)
                )
            heads = by_pair[queries, n]
            slots = torch.tensor(place.slots(0, n))
            self.cache.keys[0, slots] = heads[:, config.num_heads : -config.num_kv_heads]
            self.cache.values[0, slots] = heads[:, -config.num_kv_heads :]
            parts.append(heads[n - queries :])
        self.heads = torch.cat(parts)
        self.order = sorted(range(len(pairs)), key=lambda i: pairs[i])  # to compare results

    def _lanes(self, name: str) -> Lanes:
        pieces = range(len(self.work))
        if name == "packed":
            return pack(self.estimates)
        if name == "grid":
            return tuple((piece,) for piece in sorted(pieces, key=lambda piece: -self.estimates[piece]))
        return tuple((piece,) for piece in pieces)

    def attend(self) -> torch.Tensor:
        return torch.cat([self.backend.attend(self.heads, None, self.cache, 0, wave) for wave in self.batch.waves])

    def result(self) -> torch.Tensor:
        """What `attend` returns, piece by piece in an order that is the same for all contenders."""
        parts = self.attend().split([item.num_tokens for item in self.work])
        return torch.cat([parts[piece] for piece in self.order])

    def alone_s(self, rounds: int) -> list[float]:
        """Seconds that each piece of work takes by itself."""
        taken = []
        for item, place in zip(self.work, self.places, strict=True):
            plan = Plan(0, 0, (item,), (place,), layout=Layout((Span(0, 1),), lanes=((0,),)))
            (wave,) = self.backend.batch(plan, self.sequences, self.cache).waves
            heads = self.heads[: item.num_tokens]
            seconds = []
            for _ in range(rounds):
                started = time.perf_counter()
                self.backend.attend(heads, None, self.cache, 0, wave)
                seconds.append(time.perf_counter() - started)
            taken.append(median(seconds))
        return taken


def race(case: Case, config: ModelConfig, rounds: int) -> dict[str, Any]:
    """Milliseconds of one layer's attention, round by round, and the bubbles of packed lanes and of a lane for each."""
    contenders = {name: Contender(name, case, config) for name in CONTENDERS}
    results = {name: contender.result() for name, contender in contenders.items()}
    for name, result in results.items():
        worst = (result - results["one call"]).abs().max().item()
        assert worst < 64 * torch.finfo(torch.float32).eps, f"{name} is off by {worst} in {case}"
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name in (*CONTENDERS[number % len(CONTENDERS) :], *CONTENDERS[: number % len(CONTENDERS)]):
            started = time.perf_counter()
            contenders[name].attend()
            if number:  # the first round is a warm-up
                times[name].append((time.perf_counter() - started) * 1e3)
    packed, grid = contenders["packed"], contenders["grid"]
    measured = packed.alone_s(rounds)
    return {
        "case": case.name,
        "pieces": len(packed.work),
        "lanes": len(packed.lanes),
        "ms": times,
        "bubbles": {
            name: {
                "predicted": _bubbles(packed.estimates, packed.prompts, lanes),
                "measured": _bubbles(measured, packed.prompts, lanes),
            }
            for name, lanes in (("packed", packed.lanes), ("grid", grid.lanes))
        },
    }


def _bubbles(seconds: Seq[float], prompts: Seq[bool], lanes: Lanes) -> dict[str, float]:
    """Parts of the time of all lanes: idle in all, of type A, and of type B."""
    found = bubbles_of(seconds, prompts, lanes)
    whole = found.busy_s + found.prompts_s + found.tokens_s + found.others_s
    return {"idle": found.idle, "a": found.prompts_s / whole, "b": found.tokens_s / whole}


def fewest_lanes(seconds: Seq[int]) -> int:
    """The fewest lanes no longer than the longest piece, by branch and bound."""
    longest, best, ordered = max(seconds), len(seconds), sorted(seconds, reverse=True)

    def place(number: int, ends: list[int]) -> None:
        nonlocal best
        if len(ends) >= best:
            return
        if number == len(ordered):
            best = len(ends)
            return
        for lane, end in enumerate(ends):
            if end + ordered[number] <= longest:
                place(number + 1, [*ends[:lane], end + ordered[number], *ends[lane + 1 :]])
        place(number + 1, [*ends, ordered[number]])

    place(0, [])
    return best


def distance(quick: bool) -> dict[str, float]:
    """How far greedy packing is from the fewest lanes, on small sets of work."""
    rng, found = random.Random(2), []
    for _ in range(20 if quick else SETS):
        seconds = [rng.randint(1, 20) for _ in range(SMALL)]
        found.append((len(pack(seconds)), fewest_lanes(seconds)))
    return {
        "sets": len(found),
        "pieces": SMALL,
        "mean": mean(ours / fewest for ours, fewest in found),
        "worst": max(ours / fewest for ours, fewest in found),
        "optimal": mean(ours == fewest for ours, fewest in found),
    }


@torch.inference_mode()
def main(
    rounds: Annotated[int, typer.Option(min=1, help="rounds, each contender once in each")] = 15,
    quick: Annotated[bool, typer.Option("--quick", help="short contexts and few rounds")] = False,
    out: Annotated[Path, typer.Option(help="folder for packing.json and packing.md")] = Path(__file__).parent
    / "results",
) -> None:
    """Race packed lanes against other orders of the same work, and tell their bubbles."""
    config = ModelConfig(
        *("llama", 8, HEADS * HEAD_DIM, 1, HEADS, KV_HEADS, HEAD_DIM, 8, 4096), rotary=Rotary(HEAD_DIM)
    )
    results: dict[str, Any] = {**provenance(), "rounds": 3 if quick else rounds, "threads": torch.get_num_threads()}
    results["rows"] = [race(case, config, results["rounds"]) for case in cases(quick)]
    results["distance"] = distance(quick)
    (out / "packing.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "packing.md").write_text(_page(results))
    table = Table(box=None, pad_edge=False)
    for head in TIMES:
        table.add_column(head, no_wrap=True)
    for row in results["rows"]:
        table.add_row(*_times(row))
    Console(width=160).print(table)
    print(_distance(results["distance"]))


TIMES = ("work", "pieces", "lanes", *(f"{name}, ms" for name in CONTENDERS), "grid / packed", "spread")
BUBBLES = ("work", "lanes", "idle, predicted", "A", "B", "idle, measured", "A", "B")


def _times(row: dict[str, Any]) -> list[str]:
    ratios = [grid / packed for grid, packed in zip(row["ms"]["grid"], row["ms"]["packed"], strict=True)]
    return [
        *(row["case"], str(row["pieces"]), str(row["lanes"])),
        *(f"{median(row['ms'][name]):.2f}" for name in CONTENDERS),
        f"{median(ratios):.2f}x",
        f"{min(ratios):.2f}-{max(ratios):.2f}",
    ]


def _bubble_rows(row: dict[str, Any]) -> list[list[str]]:
    return [
        [
            row["case"],
            name,
            *(f"{found[how][key]:.1%}" for how in ("predicted", "measured") for key in ("idle", "a", "b")),
        ]
        for name, found in row["bubbles"].items()
    ]


def _distance(found: dict[str, float]) -> str:
    return (
        f"On {found['sets']} sets of {found['pieces']} pieces, greedy packing takes {found['mean']:.3f} times the "
        f"fewest lanes in the mean and {found['worst']:.2f} times at worst; it finds the fewest in "
        f"{found['optimal']:.1%} of them."
    )


def _page(results: dict[str, Any]) -> str:
    machine, versions = results["machine"], results["versions"]
    state = "" if results["clean"] else " with uncommitted changes"
    bubbles = [cells for row in results["rows"] for cells in _bubble_rows(row)]
    lines = [
        "# Attention in packed lanes, on a CPU",
        "",
        f"Milliseconds of one layer's attention ({HEADS} heads, {KV_HEADS} KV heads of {HEAD_DIM}, float32), medians,",
        f"with {results['threads']} threads. On CUDA: not measured.",
        "",
        f"| {' | '.join(TIMES)} |",
        f"|{'---|' * len(TIMES)}",
        *(f"| {' | '.join(_times(row))} |" for row in results["rows"]),
        "",
        "Bubbles, as parts of the time of all lanes, on a machine with a processor for each lane. `grid` has a lane",
        "for each piece of work.",
        "",
        f"| {' | '.join(BUBBLES)} |",
        f"|{'---|' * len(BUBBLES)}",
        *(f"| {' | '.join(cells)} |" for cells in bubbles),
        "",
        _distance(results["distance"]),
        "",
        f"{machine['processor']}, {machine['cores']} cores, torch {versions['torch']}, commit "
        f"{results['commit'] or 'unknown'}{state}; {results['rounds']} rounds.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)

"""Swaps that hold an iteration up against swaps layer by layer beside it (`memory.transfer`), in one run.

    python benchmarks/transfers.py                       # writes benchmarks/results/transfers.{json,md}
    python benchmarks/transfers.py --quick --out /tmp    # half a minute, to see that it works

On this machine's CPU both take turns in each round, in an order that alternates, on the same requests, in memory so
short that sequences are evicted again and again. In virtual time both serve larger models on simulated machines. A
CPU's copies take bandwidth and a core from the computing beside them, so what is hidden need not be won.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from minifuse.core.request import Request
from minifuse.model.text.load import TextSource, load_weights, resolve_text
from minifuse.papers.provenance import provenance
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.techniques import technique

WAYS = ("blocking", "overlapped")
SIMULATED = (("random:llama-7b", "a100-40g"), ("random:llama-2-13b", "h200"), ("random:opt-13b", "a100-40g"))


def measure(
    source: TextSource, requests: Iterable[Request], way: str, kv_tokens: int, model: Any = None, **settings: Any
) -> tuple[dict[str, float], list[tuple[int, ...]]]:
    """Serve with `vllm` and swaps: seconds, bytes and evictions of the run, and the answers."""
    options = {"memory.preemption": "swap", "memory.transfer": way, "batching.max_batch": 32}
    dtype = settings.get("dtype", "float32")
    chosen = Settings(kv_memory=kv_tokens * source.slot_bytes(dtype), stage_options=options, **settings)
    engine = build_engine(resolve_run(technique("vllm"), source, chosen), model)
    served = serve(engine, requests)
    metrics = served.metrics()
    carried = metrics["transfers"]
    return {
        "duration_s": metrics["duration_s"],
        "exposed_s": carried["exposed_s"],
        "hidden_s": carried["hidden_s"],
        "bytes": carried["to_host"]["bytes"] + carried["to_device"]["bytes"],
        "evictions": metrics["evictions"],
    }, [answer.token_ids for answer in served.answers]


def real(name: str, count: int, kv_tokens: int, rounds: int) -> dict[str, Any]:
    """Both ways in turn on this machine. Raises if they answer differently."""
    source = resolve_text(name)
    model = load_weights(source, "float32")
    requests = load(source, count)
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for turn in range(-1, rounds):  # the first round warms up
        answers = {}
        for way in WAYS if turn % 2 else WAYS[::-1]:
            figures, answers[way] = measure(source, requests, way, kv_tokens, model)
            if turn >= 0:
                found[way].append(figures)
        if answers["blocking"] != answers["overlapped"]:
            raise AssertionError("blocking and overlapped swaps gave different answers")
    ratios = [b["duration_s"] / o["duration_s"] for b, o in zip(*found.values(), strict=True)]
    return {"model": name, "kv_tokens": kv_tokens, "rounds": found, "speedup": spread(ratios)}


def load(source: TextSource, count: int) -> list[Request]:
    """Prompts of 100 to 300 tokens and answers of 50 to 150, all there from the start."""
    rng, vocab = random.Random(0), source.config.vocab_size
    return [
        Request(
            f"r{i}",
            tuple(rng.randrange(vocab) for _ in range(rng.randint(100, 300))),
            rng.randint(50, 150),
            ignore_eos=True,
        )
        for i in range(count)
    ]


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def simulated(count: int, kv_tokens: int) -> list[dict[str, Any]]:
    """Both ways in virtual time, which is exact."""
    rows = []
    for name, hardware in SIMULATED:
        source = resolve_text(name)
        virtual: dict[str, Any] = {"clock": "virtual", "hardware": hardware, "dtype": "float16"}
        ways = {way: measure(source, load(source, count), way, kv_tokens, None, **virtual)[0] for way in WAYS}
        rows.append({"model": name, "hardware": hardware, **ways})
    return rows


def report(found: dict[str, Any]) -> str:
    measured, origin = found["real"], found["provenance"]
    machine = f"{origin['machine']['processor']}, {origin['machine'].get('threads')} threads"
    lines = [
        "# Swaps beside the computing",
        "",
        f"Machine: {machine}; commit {origin['commit']}{'' if origin['clean'] else ' with changes'}.",
        "",
        f"On this CPU, {measured['model']}, KV for {measured['kv_tokens']} tokens; medians of "
        f"{len(measured['rounds']['blocking'])} rounds, least and most in brackets:",
        "",
        "| transfer | duration | exposed | hidden | moved | evictions |",
        "|---|---|---|---|---|---|",
    ]
    for way, rounds in measured["rounds"].items():
        cells = []
        for name in ("duration_s", "exposed_s", "hidden_s"):
            s = spread([figures[name] for figures in rounds])
            cells.append(f"{s['median']:.3f} s ({s['least']:.3f}, {s['most']:.3f})")
        lines.append(
            f"| {way} | {' | '.join(cells)} | {rounds[0]['bytes'] / 2**20:.0f} MiB | {rounds[0]['evictions']} |"
        )
    s = measured["speedup"]
    ratio = f"{s['median']:.3f} times as fast ({s['least']:.3f} to {s['most']:.3f})"
    lines += ["", f"Overlapped is {ratio}, round by round."]
    lines += ["", "In virtual time:", ""]
    lines += ["| model, machine | transfer | duration | exposed | hidden |", "|---|---|---|---|---|"]
    for row in found["simulated"]:
        for way in WAYS:
            f = row[way]
            times = f"{f['duration_s']:.3f} s | {f['exposed_s'] * 1e3:.1f} ms | {f['hidden_s'] * 1e3:.1f} ms"
            lines.append(f"| {row['model']}, {row['hardware']} | {way} | {times} |")
    return "\n".join(lines) + "\n"


def main(
    out: Annotated[Path, typer.Option(help="Folder for transfers.json and transfers.md.")] = Path("benchmarks/results"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Few requests to a small model, to see that it works.")
    ] = False,
    rounds: Annotated[int, typer.Option(help="Rounds on this machine.")] = 7,
) -> None:
    """Measure both ways, and write what was found."""
    found: dict[str, Any] = {
        "real": real("random:small", 8, 700, 2) if quick else real("random:medium", 24, 2000, rounds),
        "simulated": simulated(24 if quick else 200, 3000),
    }
    found["provenance"] = provenance()  # now that torch is there to be asked
    text = report(found)
    out.mkdir(parents=True, exist_ok=True)
    (out / "transfers.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "transfers.md").write_text(text)
    typer.echo(text)


if __name__ == "__main__":
    typer.run(main)

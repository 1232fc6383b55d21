"""Prompts computed whole and in chunks, against this machine's rate of products.

    GOMP_SPINCOUNT=6000 python benchmarks/prefill.py  # as on the command line; writes results/prefill.{json,md}
    python benchmarks/prefill.py --quick --out /tmp   # seconds, to see that it works

In every round each way of cutting takes its turn, and the machine's rate is measured before each.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from limits import matrix_rate

from minifuse.core.request import Request
from minifuse.execute.cores import keep_freed_memory
from minifuse.model.text.config import ModelConfig
from minifuse.model.text.load import load_weights, resolve_text
from minifuse.papers.provenance import provenance
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.techniques import technique

CHUNKS = (None, 512, 256, 64)  # tokens of an iteration, at most; None: the prompt is computed whole
PROMPTS = (512, 2047)  # the context of the model less one new token
AIM = 0.75  # of the machine's rate


def flops_of(config: ModelConfig, tokens: int) -> float:
    """Return the operations that a prompt needs: two per weight and token, four per (query, key) pair and dimension.

    The head computes the last token alone, and a query attends to the tokens up to itself.
    """
    weights = config.num_matrix_weights - config.head_weights
    pairs = tokens * (tokens + 1) / 2
    return 2.0 * weights * tokens + 2 * config.head_weights + 4 * config.num_layers * config.q_size * pairs


def seconds_of(source: Any, model: Any, prompt: tuple[int, ...], chunk: int | None) -> float:
    """Return how long the iterations of a prompt take until its first token."""
    options = {} if chunk is None else {"batching.token_budget": chunk}
    run = resolve_run(technique("orca"), source, Settings(kv_memory=512 * 2**20, stage_options=options))
    engine = build_engine(run, model)
    start = time.perf_counter()
    serve(engine, [Request("r0", prompt, 1, ignore_eos=True)])
    return time.perf_counter() - start


def measure(name: str, prompts: tuple[int, ...], rounds: int, seed: int) -> list[dict[str, Any]]:
    """Measure every prompt in every way; return seconds and the machine's rate, of each round."""
    source = resolve_text(name)
    model, rng = load_weights(source, seed=seed), random.Random(seed)
    rows = []
    for tokens in prompts:
        prompt = tuple(rng.choices(range(source.config.vocab_size), k=tokens))
        found: dict[int | None, list[float]] = {chunk: [] for chunk in CHUNKS}
        rates: dict[int | None, list[float]] = {chunk: [] for chunk in CHUNKS}
        for number in range(rounds + 1):  # the first warms up
            for chunk in CHUNKS[:: -1 if number % 2 else 1]:
                rates[chunk].append(matrix_rate())
                found[chunk].append(seconds_of(source, model, prompt, chunk))
        flops = flops_of(source.config, tokens)
        for chunk, seconds in found.items():
            row = {"model": name, "tokens": tokens, "chunk": chunk, "flops": flops}
            rows.append(row | {"seconds": seconds[1:], "rates": rates[chunk][1:]})
        typer.echo(f"{name} {tokens}: {flops / median(found[None][1:]) / 1e9:.0f} GFLOP/s whole", err=True)
    return rows


def shares(row: dict[str, Any]) -> list[float]:
    """Return the part of the machine's rate that was reached in each round, ascending."""
    pairs = zip(row["seconds"], row["rates"], strict=True)
    return sorted(row["flops"] / seconds / rate for seconds, rate in pairs)


def page(results: dict[str, Any]) -> str:
    origin = results["provenance"]
    lines = ["| model | prompt | computed | tokens/s | of the machine's rate | aim |", "|---" * 6 + "|"]
    for row in results["rows"]:
        reached = shares(row)
        verdict = "met" if reached[0] >= AIM else "missed" if reached[-1] < AIM else "undecided"
        way = "whole" if row["chunk"] is None else f"in chunks of {row['chunk']}"
        speed = row["tokens"] / median(row["seconds"])
        told = f"{median(reached):.0%} ({reached[0]:.0%} to {reached[-1]:.0%})"
        name = row["model"].removeprefix("random:")
        lines.append(f"| {name} | {row['tokens']:,} | {way} | {speed:,.0f} | {told} | {verdict} |")
    rates = [rate / 1e9 for row in results["rows"] for rate in row["rates"]]
    table = "\n".join(lines)
    return f"""# Prompts, whole and in chunks

One prompt at a time under `orca`, float32, median and range of {origin["rounds"]} rounds. Machine:
{origin["machine"]["processor"]}, {results["threads"]} threads; commit {origin["commit"]}\
{"" if origin["clean"] else " with changes"}.

The operations that a prompt needs are two per weight and token (the head computes one token) and four per dimension of
a query and a key that it attends to; norms and rotation do not count. The machine's rate is that of torch's product of
two square matrices of 2,048, measured before each prompt: {min(rates):.0f} to {max(rates):.0f} GFLOP/s. The aim is
{AIM:.0%} of it: met or missed if all rounds agree.

{table}
"""


def main(
    models: Annotated[str, typer.Option(help="comma-separated models")] = "random:small,random:medium",
    rounds: Annotated[int, typer.Option(help="rounds, each way once in each")] = 5,
    seed: Annotated[int, typer.Option(help="seed of weights and prompts")] = 0,
    out: Annotated[Path, typer.Option(help="folder for prefill.json and prefill.md")] = Path(__file__).parent
    / "results",
    quick: Annotated[bool, typer.Option(help="one round of a short prompt of the small model")] = False,
) -> None:
    """Measure how much of this machine's rate the computation of prompts reaches."""
    keep_freed_memory()  # as the command line does
    if quick:
        rows = measure("random:small", (100,), 1, seed)
    else:
        rows = [row for name in models.split(",") for row in measure(name, PROMPTS, rounds, seed)]
    origin = provenance(seed=seed, rounds=1 if quick else rounds, order="alternating")
    results = {"benchmark": "prefill", "provenance": origin, "threads": torch.get_num_threads(), "rows": rows}
    out.mkdir(parents=True, exist_ok=True)
    (out / "prefill.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "prefill.md").write_text(page(results))


if __name__ == "__main__":
    typer.run(main)

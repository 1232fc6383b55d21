"""This engine against transformers, on the same random LLaMA and the same requests, in one run.

    python benchmarks/engine.py                      # everything; writes benchmarks/results/engine.{json,md}
    python benchmarks/engine.py --quick --out /tmp   # a minute, to see that it works

Contenders take turns within each round, in an order that rotates; medians over rounds are reported. Ratios compare
contenders within one run on one machine; absolute figures of different runs should not be compared.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from limits import matrix_rate, read_bandwidth
from peers import generate, generate_batch, peer_model
from rich.console import Console
from rich.table import Table

from minifuse.core.report import StepReport
from minifuse.core.request import Request
from minifuse.execute import texts
from minifuse.model.text.load import load_weights, resolve_text
from minifuse.model.text.transformer import Transformer
from minifuse.papers.provenance import provenance
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.techniques import technique

PEERS = {"generate": generate, "generate_batch": generate_batch}
OURS = ("static", "orca")
KV_MEMORY = 512 * 2**20
SLOW = "generate_batch"  # raced in fewer rounds: it takes longer than all other contenders together


Result = tuple[float, dict[str, list[int]]]  # seconds, and each request's new tokens


@dataclass(frozen=True)
class Case:
    model: str
    workload: str
    batch: int

    def requests(self, vocab: int, seed: int) -> list[Request]:
        """Equal: `batch` requests of 32 prompt and 64 new tokens. Ragged: three times as many, 8-64 and 16-128."""
        rng = random.Random(f"{seed}/{self.workload}/{self.batch}")
        equal = self.workload == "equal"
        count = self.batch if equal else 3 * self.batch
        return [
            Request(
                f"r{i}",
                tuple(rng.randrange(vocab) for _ in range(32 if equal else rng.randint(8, 64))),
                64 if equal else rng.randint(16, 128),
                ignore_eos=True,
            )
            for i in range(count)
        ]


def serve_with(name: str, model: Transformer, case: Case, requests: Sequence[Request]) -> Result:
    """Seconds and tokens of one technique of this engine."""
    settings = Settings(kv_memory=KV_MEMORY, stage_options={"batching.max_batch": case.batch})
    engine = build_engine(resolve_run(technique(name), resolve_text(case.model), settings), model)
    start = time.perf_counter()
    served = serve(engine, requests)
    return time.perf_counter() - start, {a.request.id: list(a.token_ids) for a in served.answers}


def profile_run(model: Transformer, case: Case, name: str, requests: Sequence[Request]) -> dict[str, float]:
    """Measure the parts of a run.

    Returns:
        outside_model: the fraction spent outside the forward pass: planning, batch tensors, sampling, commit, trace.
        decode_iteration_s: the median iteration in which a full batch decodes one token each.
    """
    inside = 0.0
    in_turn = texts.in_turn

    def timed(*arguments: Any) -> Any:
        nonlocal inside
        start = time.perf_counter()
        out = in_turn(*arguments)
        inside += time.perf_counter() - start
        return out

    settings = Settings(kv_memory=KV_MEMORY, stage_options={"batching.max_batch": case.batch})
    engine = build_engine(resolve_run(technique(name), resolve_text(case.model), settings), model)
    full_decodes: list[float] = []

    def record(report: StepReport) -> None:
        if report.plan.num_tokens == len(report.plan.work) == case.batch:
            full_decodes.append(report.ended_s - report.started_s)

    texts.in_turn = timed
    start = time.perf_counter()
    try:
        serve(engine, requests, on_step=record)
    finally:
        texts.in_turn = in_turn
    return {
        "outside_model": 1 - inside / (time.perf_counter() - start),
        "decode_iteration_s": statistics.median(full_decodes),
    }


def race(case: Case, model: Transformer, peer: Any, rounds: int, slow_rounds: int, seed: int) -> dict[str, Any]:
    """Tokens per second of every contender: medians, and the figures of all rounds."""
    requests = case.requests(model.config.vocab_size, seed)
    num_tokens = sum(request.max_new_tokens for request in requests)
    contenders: dict[str, Callable[[], Result]] = {
        **{name: partial(serve_with, name, model, case, requests) for name in OURS},
        **{name: partial(run, peer, requests, case.batch) for name, run in PEERS.items()},
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    answers: dict[str, dict[str, list[int]]] = {}
    for number in range(rounds):
        names = list(contenders)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if name == SLOW and number >= slow_rounds:
                continue
            elapsed, answers[name] = contenders[name]()
            seconds[name].append(elapsed)
    speed = {name: num_tokens / statistics.median(times) for name, times in seconds.items() if times}
    reference = answers["generate"]
    same = {
        name: sum(tokens[r.id] == reference[r.id] for r in requests) / len(requests) for name, tokens in answers.items()
    }
    return {
        "model": case.model,
        "workload": case.workload,
        "batch": case.batch,
        "requests": len(requests),
        "new_tokens": num_tokens,
        "tokens_per_s": speed,
        "seconds": seconds,
        "answers_equal_to_generate": same,
        "inside": {name: profile_run(model, case, name, requests) for name in OURS},
    }


def against_limits(row: dict[str, Any], model: Transformer, bandwidth: float, rate: float) -> dict[str, float]:
    """The shortest possible decode iteration, and the share of that limit that each technique reaches.

    The limit is the longer of reading the weights once and two flops per weight and token.
    """
    weights = model.config.num_matrix_weights
    shortest = max(4 * weights / bandwidth, 2 * weights * row["batch"] / rate)
    return {"iteration_s": shortest, **{name: shortest / row["inside"][name]["decode_iteration_s"] for name in OURS}}


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "| model | workload | batch | static | orca | generate | generate_batch | best / generate "
        "| best / generate_batch | of the limit (static, orca) | outside model (static, orca) |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        speed = row["tokens_per_s"]
        best = max(OURS, key=lambda name: speed[name])
        peers = [f"{speed[best] / speed[name]:.2f}x" if name in speed else "not measured" for name in PEERS]
        figures = [f"{speed[name]:.0f}" if name in speed else "not measured" for name in (*OURS, *PEERS)]
        outside = ", ".join(f"{row['inside'][name]['outside_model']:.1%}" for name in OURS)
        limit = ", ".join(f"{row['limit'][name]:.0%}" for name in OURS)
        cells = [row["model"], row["workload"], str(row["batch"]), *figures, *peers, limit, outside]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(
    models: Annotated[str, typer.Option(help="comma-separated models")] = "random:small,random:medium",
    batches: Annotated[str, typer.Option(help="comma-separated batch sizes")] = "1,8,32",
    rounds: Annotated[int, typer.Option(help="rounds, each contender once in each")] = 5,
    slow_rounds: Annotated[int, typer.Option(help="rounds in which generate_batch takes part")] = 1,
    seed: Annotated[int, typer.Option(help="seed of weights and requests")] = 0,
    out: Annotated[Path, typer.Option(help="folder for engine.json and engine.md")] = Path(__file__).parent / "results",
    quick: Annotated[bool, typer.Option(help="one round of the small model at batch 8")] = False,
) -> None:
    """Race this engine against transformers and report tokens per second."""
    if quick:
        models, batches, rounds = "random:small", "8", 1
    bandwidth, rate = read_bandwidth(), matrix_rate()
    rows = []
    for name in models.split(","):
        model = load_weights(resolve_text(name), seed=seed)
        peer = peer_model(model)
        for batch in map(int, batches.split(",")):
            for workload in ("equal", "ragged"):
                case = Case(name, workload, batch)
                row = race(case, model, peer, rounds, slow_rounds, seed)
                row["limit"] = against_limits(row, model, bandwidth, rate)
                rows.append(row)
                speeds = ", ".join(f"{contender} {speed:.0f}" for contender, speed in row["tokens_per_s"].items())
                typer.echo(f"{name} {workload} batch {batch}: {speeds} tokens/s", err=True)
    results = {
        "benchmark": "engine",
        "provenance": provenance(seed=seed, rounds=rounds, slow_rounds=slow_rounds, order="rotated each round"),
        "limits": {"read_bytes_per_s": bandwidth, "matrix_flops": rate},
        "rows": rows,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "engine.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "engine.md").write_text(_page(results))
    summary = Table("model", "workload", "batch", *OURS, *PEERS)
    for row in rows:
        figures = [f"{row['tokens_per_s'].get(name, float('nan')):.0f}" for name in (*OURS, *PEERS)]
        summary.add_row(row["model"], row["workload"], str(row["batch"]), *figures)
    Console().print(summary)


def _page(results: dict[str, Any]) -> str:
    origin, limits = results["provenance"], results["limits"]
    versions = ", ".join(f"{name} {number}" for name, number in origin["versions"].items())
    return f"""# Engine against transformers

New tokens per second, float32, medians of {origin["rounds"]} rounds ({origin["slow_rounds"]} for `generate_batch`),
contenders interleaved. Machine: {origin["machine"]["processor"]}, {origin["machine"]["threads"]} threads; {versions};
commit {origin["commit"]}{"" if origin["clean"] else " with changes"}.

Equal: every prompt 32 tokens, every answer 64. Ragged: prompts 8-64, answers 16-128, three batches' worth of requests.
`generate` is transformers' static, left-padded batch; `generate_batch` its continuous batching.
Of the limit: the median iteration in which the whole batch decodes, against the longer of reading all weights once
({limits["read_bytes_per_s"] / 1e9:.1f} GB/s measured) and two flops per weight and token
({limits["matrix_flops"] / 1e9:.0f} GFLOP/s measured); attention and norms are not in the limit.
Outside model: the share of a run not spent in the forward pass.

{table(results)}
"""


if __name__ == "__main__":
    torch.manual_seed(0)
    typer.run(main)

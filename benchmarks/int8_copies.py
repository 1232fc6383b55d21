"""The error of KV copies in 8 bits on the host (`memory.host_dtype=int8`), against float64.

    python benchmarks/int8_copies.py                       # writes benchmarks/results/int8-copies.{json,md}
    python benchmarks/int8_copies.py --quick --out /tmp    # seconds, to see that it works

`fluid` rotates the KV of every sequence through the device in every iteration (`memory.turns=sequences`), so that each
token's KV is read from its copy. Each way's log-probabilities of the sampled tokens are compared with those of `naive`
in float64, up to the first token that differs: from there on the texts differ.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

from minifuse.core.report import StepReport, TokenLogprobs
from minifuse.core.request import Request
from minifuse.model.text.load import TextSource, load_weights, resolve_text
from minifuse.papers.provenance import provenance
from minifuse.serve.build import build_engine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.run import serve
from minifuse.serve.settings import Settings
from minifuse.techniques import technique

ROTATING = {"memory.overflow": "rotate", "memory.turns": "sequences"}
INT8 = {**ROTATING, "memory.host_dtype": "int8"}
WAYS: dict[str, tuple[str, str, dict[str, str]]] = {  # technique, dtype and options
    "naive, float64": ("naive", "float64", {}),
    "fluid, float64, copies in int8": ("fluid", "float64", INT8),
    "fluid, float32, copies as they are": ("fluid", "float32", ROTATING),
    "fluid, float32, copies in int8": ("fluid", "float32", INT8),
    "fluid, bfloat16, copies as they are": ("fluid", "bfloat16", ROTATING),
    "fluid, bfloat16, copies in int8": ("fluid", "bfloat16", INT8),
}
KV_TOKENS = 1024  # of the device
Told = list[list[tuple[int, float]]]  # for each request, its tokens with their log-probabilities


def answers(source: TextSource, way: str, requests: list[Request]) -> Told:
    """Serve the requests one way, and return what it sampled."""
    name, dtype, options = WAYS[way]
    told: defaultdict[str, list[TokenLogprobs]] = defaultdict(list)

    def keep(report: StepReport) -> None:
        for sequence, found in report.logprobs.items():
            told[sequence] += found

    settings = Settings(kv_memory=KV_TOKENS * source.slot_bytes(dtype), dtype=dtype, stage_options=options)
    engine = build_engine(resolve_run(technique(name), source, settings), load_weights(source, dtype))
    served = serve(engine, requests, on_step=keep).whole()
    return [
        [(token, one.logprob) for token, one in zip(answer.token_ids, told[answer.request.id], strict=True)]
        for answer in served.answers
    ]


def load(source: TextSource, count: int, answer: int) -> list[Request]:
    """Draw requests with prompts of 16 to 96 tokens."""
    rng, vocab = random.Random(0), source.config.vocab_size
    prompts = [tuple(rng.randrange(vocab) for _ in range(rng.randint(16, 96))) for _ in range(count)]
    return [Request(f"r{i}", prompt, answer, ignore_eos=True, logprobs=0) for i, prompt in enumerate(prompts)]


def compare(exact: Told, told: Told) -> dict[str, float]:
    """Compare what was sampled with what float64 samples."""
    pairs = [[*zip(one, other, strict=True)] for one, other in zip(exact, told, strict=True)]
    same = [[*takewhile(lambda pair: pair[0][0] == pair[1][0], answer)] for answer in pairs]
    off = [abs(one[1] - other[1]) for answer in same for one, other in answer]
    return {
        "answers": len(pairs),
        "unchanged": sum(len(one) == len(other) for one, other in zip(same, pairs, strict=True)),
        "tokens": len(off),
        "mean": mean(off),
        "most": max(off),
    }


def measure(models: tuple[str, ...], count: int, answer: int) -> Iterator[dict[str, Any]]:
    for name in models:
        source = resolve_text(name)
        requests = load(source, count, answer)
        exact = answers(source, "naive, float64", requests)
        for way in [*WAYS][1:]:
            shape, dtype = source.config, WAYS[way][1]
            share = shape.kv_bytes_per_token("int8") / shape.kv_bytes_per_token(dtype) if WAYS[way][2] is INT8 else 1.0
            yield {"model": name, "way": way, "share": share, **compare(exact, answers(source, way, requests))}


def page(found: dict[str, Any]) -> str:
    machine, versions = found["machine"], found["versions"]
    state = "" if found["clean"] else " with uncommitted changes"
    lines = [
        "# KV copies in 8 bits",
        "",
        "Log-probabilities of sampled tokens, over those of float64, up to the first token that differs.",
        "",
        "| model | way | bytes of a copy | unchanged answers | tokens compared | mean error | largest error |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in found["rows"]:
        unchanged = f"{row['unchanged']} of {row['answers']}"
        errors = f"{row['mean']:.2g} | {row['most']:.2g}"
        lines.append(
            f"| {row['model']} | {row['way']} | {row['share']:.0%} | {unchanged} | {row['tokens']:,} | {errors} |"
        )
    lines += [
        "",
        f"{machine['processor']}, {machine['cores']} cores, torch {versions['torch']}, commit "
        f"{found['commit'] or 'unknown'}{state}.",
        "",
    ]
    return "\n".join(lines)


def main(
    quick: Annotated[bool, typer.Option("--quick", help="one small model and few requests")] = False,
    out: Annotated[Path, typer.Option(help="folder for int8-copies.json and int8-copies.md")] = Path(__file__).parent
    / "results",
) -> None:
    """Measure what copies in 8 bits change."""
    models = ("tiny",) if quick else ("tiny", "random:small", "random:medium")
    rows = [*measure(models, 6 if quick else 12, 20 if quick else 40)]
    found = {**provenance(), "rows": rows}
    (out / "int8-copies.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "int8-copies.md").write_text(page(found))
    print(page(found))


if __name__ == "__main__":
    typer.run(main)

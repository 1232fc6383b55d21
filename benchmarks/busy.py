"""`minifuse run` on a quiet machine and beside other busy processes, by how threads are chosen and wait.

    python benchmarks/busy.py                       # writes benchmarks/results/busy.{json,md}
    python benchmarks/busy.py --quick --out /tmp    # a minute, to see that it works

Each measurement is a process of its own, as a user starts it; all ways take turns in each round, for every model beside
the same number of other processes, each of which computes without a pause.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from minifuse.execute.cores import usable_cores
from minifuse.papers.provenance import provenance

CORES = len(usable_cores())
SPIN = "300000"  # what libgomp does by itself
ALL_CORES = "import minifuse.execute.cores; minifuse.execute.cores.share_cores = lambda *given: None; "
MAIN = "import sys; from minifuse.cli import main; sys.exit(main())"
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "all cores, spinning": (ALL_CORES + MAIN, {"GOMP_SPINCOUNT": SPIN}),
    "all cores, passive": (ALL_CORES + MAIN, {"OMP_WAIT_POLICY": "PASSIVE"}),
    "one thread": (MAIN, {"OMP_NUM_THREADS": "1"}),
    "as it is chosen": (MAIN, {}),
}
TOUCHED = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
LIMIT_S = 120


@contextmanager
def beside(count: int) -> Iterator[None]:
    """So many other processes compute meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def seconds(way: str, typed: list[str]) -> float:
    """Of the run itself, without the start of the process; `LIMIT_S` if it took longer."""
    code, environment = WAYS[way]
    kept = {name: value for name, value in os.environ.items() if name not in TOUCHED}
    command = [sys.executable, "-c", code, "run", "--arrival", "none", "--json", *typed]
    try:
        done = subprocess.run(command, env={**kept, **environment}, capture_output=True, check=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return float(LIMIT_S)
    return float(json.loads(done.stdout)["metrics"]["duration_s"])


def measure(models: dict[str, list[str]], rounds: int) -> Iterator[dict[str, Any]]:
    """Row by row, each once it is known."""
    for model, typed in models.items():
        for others in range(CORES + 1):
            times: dict[str, list[float]] = {way: [] for way in WAYS}
            with beside(others):
                for turn in range(rounds):
                    for way in list(WAYS) if turn % 2 else list(WAYS)[::-1]:
                        times[way].append(seconds(way, ["--model", model, *typed]))
            yield {"model": model, "others": others, "seconds": times}


def report(found: dict[str, Any]) -> str:
    origin = found["provenance"]
    lines = [
        "# Busy machines",
        "",
        f"Machine: {origin['machine']['processor']}, {CORES} cores; commit {origin['commit']}"
        f"{'' if origin['clean'] else ' with changes'}.",
        "",
        "Seconds of `minifuse run --arrival none`, medians, least and most in brackets, beside so many processes that",
        f"compute without a pause; {LIMIT_S} s are the limit of a measurement.",
        "",
        f"| model | others | {' | '.join(WAYS)} |",
        f"|---|---|{'---|' * len(WAYS)}",
    ]
    for row in found["measured"]:
        cells = []
        for times in row["seconds"].values():
            cells.append(f"{statistics.median(times):.2f} ({min(times):.2f}, {max(times):.2f})")
        lines.append(f"| {row['model']} | {row['others']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(
    out: Annotated[Path, typer.Option(help="Folder for busy.json and busy.md.")] = Path("benchmarks/results"),
    quick: Annotated[bool, typer.Option("--quick", help="One model and one round, to see that it works.")] = False,
    rounds: Annotated[int, typer.Option(help="Rounds of each.")] = 5,
) -> None:
    """Measure all ways, and write what was found."""
    models = {"tiny": ["--requests", "16"]}
    if not quick:
        models["random:small"] = ["--requests", "16"]
        models["random:medium"] = ["--requests", "8", "--max-new-tokens", "16"]
    import torch  # noqa: F401  # provenance asks it, if it is there

    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    found = {"measured": rows, "provenance": provenance()}
    for row in measure(models, 1 if quick else rounds):
        rows.append(row)
        (out / "busy.json").write_text(json.dumps(found, indent=1) + "\n")
        (out / "busy.md").write_text(report(found))
        typer.echo(f"{row['model']} beside {row['others']}: {row['seconds']}")
    typer.echo(report(found))


if __name__ == "__main__":
    typer.run(main)

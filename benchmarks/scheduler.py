"""Host work of an iteration: scheduling, memory's books and the trace, without a model; in one checkout or in two.

    python benchmarks/scheduler.py --against DIR        # a checkout of minifuse; writes results/scheduler.{json,md}
    python benchmarks/scheduler.py --quick --out /tmp   # seconds, to see that it works

Each checkout is measured by a process of its own. In every round each case is measured in both, in an order that
changes from round to round. Ratios compare the checkouts of one run; absolute figures of different runs should not be
compared.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from minifuse.papers.provenance import provenance
from minifuse.techniques import TECHNIQUES

HERE = Path(__file__).parent
WORKER = HERE / "scheduler_worker.py"
AIM_S, AIM_PER_SEQUENCE_S = 100e-6, 3e-6  # of an iteration: this much, and this much more for each sequence in it
ALONE = ("naive", "serial")  # techniques that run one request at a time
OURS, OTHER = "now", "before"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Requests that wait and run in a memory of so many blocks.

    `running` are the sequences that must have begun before anything is measured; `count` the iterations measured.
    """

    what: str  # the section of the page
    technique: str  # or a mix, as batching+memory+attention
    model: str = "random:llama-2-13b"
    kind: str = "iterations"  # or "run", a whole run of `waiting` requests
    waiting: int = 100
    batch: int = 64
    running: int = 64
    blocks: int = 10_000
    block_size: int = 16
    prompt: int = 64
    common: int = 0  # tokens with which all prompts begin
    new: int = 400
    count: int = 60
    evicts: bool = False
    trace: bool = False  # of a run: written to a file
    options: Mapping[str, Any] = field(default_factory=dict)


def of_batch(what: str, name: str, batch: int, **more: Any) -> Case:
    """A technique at a batch size, with memory for all of its requests' longest answers."""
    batch = 1 if name in ALONE else batch
    case = Case(what=what, technique=name, batch=batch, running=batch, **more)
    needed = batch * -(-(case.prompt + case.new) // case.block_size)
    return Case(**{**vars(case), "blocks": max(case.blocks, needed)})


def cases(quick: bool) -> list[Case]:
    """All cases: each technique by queue and by batch, then by blocks, evicting, sharing, whole runs."""
    names = [name for name, row in TECHNIQUES.items() if "transformer" in row.serves]
    queues = (10, 20) if quick else (100, 1000, 10_000, 100_000)
    batches = (4, 8) if quick else (16, 64, 256, 1000)
    blocks = (100, 200) if quick else (1000, 10_000, 100_000)
    batch, few = (4, {"count": 3, "waiting": 10, "new": 40}) if quick else (64, {})
    by_queue = [of_batch("queue", name, batch, **{**few, "waiting": n}) for name in names for n in queues]
    by_batch = [of_batch("batch", name, n, **few) for name in names if name not in ALONE for n in batches]
    cells = {**few, "model": "lstm:hidden=64", "prompt": 300}  # of which a request has a node for each token
    by_queue += [of_batch("queue", "cellular", batch, **{**cells, "waiting": n}) for n in queues[:2]]
    by_batch += [of_batch("batch", "cellular", n, **cells) for n in batches]
    by_blocks = [of_batch("blocks", name, batches[0], blocks=n, **few) for name in ("orca", "vllm") for n in blocks]
    small, share = {"memory.preemption": "swap"}, {"memory.share": "on"}
    evicting = [
        Case(what="evicting", technique="vllm", batch=batch, running=batch - batch // 8, evicts=True, options=options,
             blocks=6 * batch, **{**few, "waiting": n})
        for options in ({}, small) for n in queues
    ]  # fmt: skip
    prompt = 128 if quick else 2048
    begun = 4 if quick else 23  # then memory is full, and the next is tried in every iteration
    own, whole = prompt // 2 // 16 + 2, (begun - 1) * (prompt // 2 // 16 + 2) + prompt // 16 + 2
    sharing = [
        Case(what="sharing", technique="vllm", batch=1000, running=begun, prompt=prompt, common=common,
             options=share, blocks=whole + own // 2, **{**few, "waiting": n})
        for common in (prompt // 2, prompt // 2 + 8) for n in queues[:2]
    ]  # fmt: skip
    runs = [
        Case(what="run", technique=name, kind="run", waiting=100_000, new=32, batch=batch) for name in ("orca", "vllm")
    ]
    traced = Case(
        what="run", technique="vllm", kind="run", waiting=5 if quick else 100, prompt=prompt, new=64, trace=True,
        block_size=1, blocks=100_000, batch=batch,
    )  # fmt: skip
    return [*by_queue, *by_batch, *by_blocks, *evicting, *sharing, *([] if quick else runs), traced]


class Worker:
    """A process that measures one checkout."""

    def __init__(self, checkout: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def measure(self, case: Case) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asdict(case)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker of a checkout ended while it measured {case}")
        measured: dict[str, Any] = json.loads(line)
        return measured

    def close(self) -> None:
        self.process.communicate()


def race(every: Iterable[Case], checkouts: Mapping[str, Path], rounds: int) -> list[dict[str, Any]]:
    """Measure all cases; a whole run once, in a process of its own, so that memory can be told."""
    workers = {name: Worker(checkout) for name, checkout in checkouts.items()}
    rows = []
    for case in every:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
        for number in range(1 if case.kind == "run" else rounds):
            for name in list(checkouts)[:: -1 if number % 2 else 1]:
                worker = Worker(checkouts[name]) if case.kind == "run" else workers[name]
                found[name].append(worker.measure(case))
                if case.kind == "run":
                    worker.close()
        rows.append({"case": asdict(case), "rounds": found, **summary(found)})
        typer.echo(f"{case.what} {case.technique}: {line_of(rows[-1])}", err=True)
    for worker in workers.values():
        worker.close()
    return rows


def summary(found: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians over rounds, and how many times as long the other checkout takes: median, least, most."""
    seconds = {
        name: [one["iteration_s"] for one in measured if "iteration_s" in one] for name, measured in found.items()
    }
    ratios = [b / a for a, b in zip(seconds[OURS], seconds.get(OTHER, ()), strict=False)]
    return {
        "iteration_s": {name: median(taken) if taken else None for name, taken in seconds.items()},
        "running": median([one["running"] for one in found[OURS] if "running" in one] or [0]),
        "ratio": [median(ratios), min(ratios), max(ratios)] if ratios else None,
    }


def aim_s(running: float) -> float:
    """The seconds that an iteration of so many sequences should take at most."""
    return AIM_S + AIM_PER_SEQUENCE_S * running


def line_of(row: Mapping[str, Any]) -> str:
    """A measured case in one line."""
    if row["case"]["kind"] == "run":
        return ", ".join(f"{name} {run.get('seconds', math.nan):.1f} s" for name, (run,) in row["rounds"].items())
    return ", ".join(f"{name} {_us(seconds)} us" for name, seconds in row["iteration_s"].items())


def _us(seconds: float | None) -> str:
    return "not measured" if seconds is None else f"{seconds * 1e6:,.0f}"


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """The iterations as Markdown."""
    lines = [
        "| technique | options | waiting | sequences in the iteration | blocks | before, us | now, us | before / now "
        "| aim, us | share of the aim |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        case, seconds, ratio = row["case"], row["iteration_s"], row["ratio"]
        aim, ours = aim_s(row["running"]), seconds[OURS]
        cells = [
            case["technique"]
            + (" on an LSTM" if case["model"].startswith("lstm") else "")
            + (f", {case['common']} tokens alike" if case["common"] else ""),
            ", ".join(f"{name}={value}" for name, value in case["options"].items()),
            f"{case['waiting']:,}",
            f"{row['running']:g}",
            f"{case['blocks']:,}",
            _us(seconds.get(OTHER)),
            _us(ours),
            f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})" if ratio else "not measured",
            _us(aim),
            "not measured" if ours is None else f"{ours / aim:.0%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def run_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Whole runs as Markdown: time, memory, the trace's size."""
    lines = [
        "| technique | requests | checkout | seconds | memory grew by, MB | trace, bytes a token |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        for name, (run,) in row["rounds"].items():
            case = row["case"]
            traced = f"{run['trace_bytes'] / run['tokens']:,.0f}" if run.get("trace_bytes") else "none"
            measured = [f"{run['seconds']:.1f}", f"{run['grown_bytes'] / 1e6:,.0f}", traced] if "seconds" in run else []
            cells = [case["technique"], f"{case['waiting']:,}", name, *(measured or ["not measured"] * 3)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


SECTIONS = {
    "queue": "However many wait",
    "batch": "By sequences in the iteration",
    "blocks": "However many blocks memory has",
    "evicting": "Iterations that evict",
    "sharing": "Prompts that begin alike, by whole blocks or not: memory is full, the next is tried in every iteration",
}


def page(results: Mapping[str, Any]) -> str:
    """All results as Markdown."""
    origin = results["provenance"]
    parts = [
        f"""# Host work of an iteration

Microseconds from one plan to the next, in virtual time with placeholders for tokens (llama-2-13b in float16 on an A100
with as much memory as is asked for): what the loop, the stages and the trace cost. Only iterations without newcomers
count and, but for the section on them, without evictions. Medians of {origin["rounds"]} rounds of up to 60 iterations,
checkouts interleaved. `instances` and `cellular` may complete several plans in one turn of the loop; the figure is that
of one plan. On an LSTM a plan is a batch of cells, one of each sequence. The aim is {_us(AIM_S)} us and
{AIM_PER_SEQUENCE_S * 1e6:g} us for each sequence in the iteration, whatever waits and however large memory is.

Machine: {origin["machine"]["processor"]}; Python {origin["versions"]["python"]}; now: commit {origin["commit"]}\
{"" if origin["clean"] else " with changes"}; before: {origin["before"] or "not measured"}.
"""
    ]
    for what, title in SECTIONS.items():
        parts.append(f"## {title}\n\n{table(row for row in results['rows'] if row['case']['what'] == what)}\n")
    runs = [row for row in results["rows"] if row["case"]["what"] == "run"]
    text = (
        "Each in a process of its own, 64 requests at a time. Answers have 32 tokens; with a trace 64, and blocks one "
        "slot."
    )
    parts.append(f"## Whole runs\n\n{text}\n\n{run_table(runs)}\n")
    return "\n".join(parts)


def commit_of(checkout: Path | None) -> str | None:
    """The commit of a checkout; None outside of one."""
    if checkout is None:
        return None
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=checkout, check=False)
    return done.stdout.strip() or None


def main(
    against: Annotated[Path | None, typer.Option(help="another checkout of minifuse to measure in turns")] = None,
    rounds: Annotated[int, typer.Option(help="rounds, each case once in each checkout")] = 3,
    only: Annotated[str, typer.Option(help="comma-separated: queue, batch, blocks, evicting, sharing, run")] = "",
    out: Annotated[Path, typer.Option(help="folder for scheduler.json and scheduler.md")] = HERE / "results",
    quick: Annotated[bool, typer.Option(help="one round of small cases")] = False,
) -> None:
    """Measure the host work of an iteration, for every technique that serves transformers."""
    chosen = [case for case in cases(quick) if not only or case.what in only.split(",")]
    checkouts = {OURS: HERE.parent} | ({OTHER: against.resolve()} if against else {})
    rounds = 1 if quick else rounds
    rows = race(chosen, checkouts, rounds)
    results = {
        "benchmark": "scheduler",
        "provenance": provenance(rounds=rounds, before=commit_of(against), order="alternating"),
        "rows": rows,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "scheduler.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "scheduler.md").write_text(page(results))


if __name__ == "__main__":
    typer.run(main)

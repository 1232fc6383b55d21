"""Simulates a million requests: how long it takes, and how much memory.

    python benchmarks/simulator.py --out benchmarks/results

Requests have random lengths with ShareGPT's means, and arrive as a Poisson process. Each technique serves a tenth of
the requests, and then all of them, in a process of its own, so that memory can be compared.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import minifuse
from minifuse.core.report import StepReport
from minifuse.core.requests import Observer, Requests
from minifuse.execute.cores import processor
from minifuse.workload.conversations import MEANS
from minifuse.workload.laws import Arrival, Lognormal
from minifuse.workload.synthetic import RequestDefaults, synthetic_stream

MODEL, MACHINE, DTYPE, PLACES, RATE = "random:llama-2-13b", "a100-80g", "float16", 256, 14.0
PROMPTS, ANSWERS = Lognormal(MEANS[1], 1.2, 1024), Lognormal(MEANS[2], 0.9, 1024)


class Counted(Observer):
    """Counts iterations and their pieces of work."""

    def __init__(self) -> None:
        self.iterations = self.pieces = 0

    def completed(self, report: StepReport, requests: Requests) -> None:
        self.iterations += 1
        self.pieces += len(report.plan.work)


def simulate(technique: str, count: int) -> dict[str, float]:
    """Serve `count` requests; return seconds of the processor, iterations and memory."""
    row, source = minifuse.technique(technique), minifuse.resolve(MODEL)
    options = dict.fromkeys(row.batch_sizes, PLACES)
    settings = minifuse.Settings(clock="virtual", hardware=MACHINE, dtype=DTYPE, stage_options=options)
    metrics, counted = minifuse.RunningMetrics(), Counted()
    run = minifuse.resolve_run(row, source, settings)
    engine = minifuse.build_engine(run, into=metrics.read, observers=(counted,))
    arrival, defaults = Arrival(1 / RATE, cv=1.0), RequestDefaults(ignore_eos=True)
    requests = synthetic_stream(count, PROMPTS, ANSWERS, source.config.vocab_size, arrival, defaults=defaults)
    began = time.process_time()
    minifuse.serve_stream(engine, requests)
    seconds = time.process_time() - began
    found = metrics.result()
    assert found["requests"]["length"] == count
    return {
        "seconds": seconds,
        "iterations": counted.iterations,
        "batch": counted.pieces / counted.iterations,
        "us_per_piece": seconds / counted.pieces * 1e6,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "simulated_s": found["duration_s"],
        "ttft_p99_s": found["ttft_s"]["p99"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--techniques", default="vllm,orca")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a technique and a count, of a process of its own
    options = parser.parse_args()
    if options.one:
        technique, count = options.one.split(":")
        print(json.dumps(simulate(technique, int(count))))
        return
    rows = []
    for technique in options.techniques.split(","):
        for count in (options.requests // 10, options.requests):
            command = [sys.executable, __file__, "--one", f"{technique}:{count}"]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows.append({"technique": technique, "requests": count, **found})
            print(rows[-1], flush=True)
    if options.out is not None:
        (options.out / "simulator.json").write_text(json.dumps(rows, indent=1) + "\n")
        (options.out / "simulator.md").write_text(page(rows))


def page(rows: list[dict[str, float]]) -> str:
    """Return the results as Markdown."""
    heads = ["technique", "requests", "s of one core", "iterations", "mean batch", "us a piece of work", "MiB at most"]
    names = ["technique", "requests", "seconds", "iterations", "batch", "us_per_piece", "mib"]
    formats = ["", ",", ",.0f", ",", ".1f", ".2f", ",.0f"]
    lines = [f"| {' | '.join(heads)} |", f"| :--- |{' ---: |' * (len(heads) - 1)}"]
    for row in rows:
        cells = [format(row[name], spec) for name, spec in zip(names, formats, strict=True)]
        lines.append(f"| {' | '.join(cells)} |")
    table = "\n".join(lines)
    return f"""# The simulator: long runs

{MODEL} in {DTYPE} on one {MACHINE}, at most {PLACES} requests at once, {RATE:g} requests/s as a Poisson process.
Lengths are lognormal, with ShareGPT's means ({MEANS[1]} tokens of a prompt, {MEANS[2]} of an answer), clipped to 1,024.

{table}

Computed on {processor()}. A piece of work is a sequence's part of an iteration.
"""


if __name__ == "__main__":
    main()

"""The kernels against their rooflines and against the kernels of a stock install, in one run.

    python benchmarks/kernels.py                      # everything; writes benchmarks/results/kernels.{json,md}
    python benchmarks/kernels.py --quick --out /tmp   # small sizes, to see that it works

The limits of the machine (copy bandwidth, bf16 matrix rate, the link to the host) are measured first, in the same run.
Then each kernel is compared with its twin in float32, and timed only if it is right. Without a CUDA device the same
tables are written, with "not measured" in place of figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from kernel_race.cases import full, quick
from kernel_race.measure import measured, unmeasured
from kernel_race.page import summary, write

RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure every kernel against its roofline and its peers.")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for kernels.json and kernels.md")
    parser.add_argument("--rounds", type=int, default=30, help="rounds, each contender once in each")
    parser.add_argument("--only", default="", help="only cases whose kernel's name contains this")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}: give at least 1.")
    cases = [case for case in (quick() if options.quick else full()) if options.only in case.kernel]
    if not cases:
        known = ", ".join(dict.fromkeys(case.kernel for case in full()))
        parser.error(f"--only is {options.only!r} and no kernel has that in its name: give a part of {known}.")
    settings = {"rounds": min(options.rounds, 5) if options.quick else options.rounds, "quick": options.quick}
    if torch.cuda.is_available():
        results = measured(cases, torch.device("cuda"), torch.bfloat16, **settings)
    elif _has_figures(options.out / "kernels.json"):
        print(
            f"There is no CUDA device, and {options.out} has figures measured on one: give another --out.",
            file=sys.stderr,
        )
        return 3
    else:
        results = unmeasured(cases, **settings)
        print("There is no CUDA device: nothing was measured, and the tables have no figures.", file=sys.stderr)
    write(results, options.out)
    print(summary(results))
    failed = [row for row in results["rows"] if row["failure"]]
    for row in failed:
        print(f"{row['kernel']}, {row['size']}: {row['failure']}", file=sys.stderr)
    return 1 if failed else 0


def _has_figures(path: Path) -> bool:
    """Whether a file of results exists and was measured on a device."""
    return path.exists() and any(json.loads(path.read_text()).get("limits", {}).values())


if __name__ == "__main__":
    sys.exit(main())

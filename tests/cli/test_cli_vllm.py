"""`vllm`, the backends and the numerics through the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.techniques import serving
from minifuse.trace import decisions, read_trace

Cli = Callable[..., Any]

CROWD = ("run", "--requests", 12, "--max-new-tokens", 30, "--ignore-eos", "--json")
SHORT = (
    "--technique",
    "vllm",
    "--kv-memory",
    "100KiB",
    "--set",
    "memory.block_size=4",
)  # room for one answer and a half


def answers(said: Any) -> dict[str, str]:
    assert said.code == 0, said.err
    return {output["id"]: output["text"] for output in said.json()["outputs"]}


@pytest.mark.parametrize(
    "options",
    [
        ("memory.preemption=recompute",),
        ("memory.preemption=swap",),
        ("memory.preemption=swap", "memory.host=8"),
        ("memory.preemption=swap", "memory.share=on"),
        ("memory.preemption=recompute", "memory.share=on", "batching.token_budget=7"),
    ],
    ids=" ".join,
)
def test_the_tiny_crowd_gets_the_answers_of_orca(
    minifuse: Cli, tiny: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """With memory so short that requests are evicted again and again."""
    orca = answers(minifuse(*CROWD))
    typed = [word for option in options for word in ("--set", option)]
    said = minifuse(*CROWD, *SHORT, *typed, "--trace", tmp_path / "trace.jsonl")
    assert answers(said) == orca
    metrics = said.json()["metrics"]
    assert metrics["evictions"] > 3
    kept = metrics["kv"]["peak_host_tokens"]
    assert (kept > 0) == ("memory.preemption=swap" in options)
    assert (metrics["moves"]["swap_out"]["tokens"] > 0) == (kept > 0)
    steps = [event for event in read_trace(tmp_path / "trace.jsonl") if event["event"] == "step"]
    lengths = [{stop - start > 1 for _, start, stop in step["work"]} for step in steps]
    assert all(len(kinds) == 1 for kinds in lengths) or "batching.token_budget=7" in options
    assert sum(len(step["evicted"]) for step in steps) == metrics["evictions"]


def test_evictions_are_told(minifuse: Cli, tiny: str) -> None:
    said = minifuse("run", "--requests", 12, "--max-new-tokens", 30, "--ignore-eos", *SHORT)
    assert said.code == 0
    assert "Evictions" in said.err


def test_all_techniques_agree_to_the_bit_in_reference_numerics(minifuse: Cli, tiny: str) -> None:
    typed = ("--requests", 5, "--max-new-tokens", 8, "--temperature", "1.5", "--numerics", "reference", "--json")
    said = minifuse("compare", *serving("transformer"), *typed, "--dtype", "bfloat16")
    assert (said.code, said.err) == (0, "")
    assert {row["technique"]: row["differing"] for row in said.json()["techniques"]} == {
        name: [] for name in serving("transformer")
    }
    assert said.json()["numerics"] == "reference"


def test_the_order_of_a_hash_decides_nothing(tmp_path: Path) -> None:
    """Which host block is free next must not hang on how Python hashes names, which differs from process to process."""
    typed = ("--clock", "virtual", "--model", "random:small", "--requests", "30", "--max-batch", "16", "--json")
    lengths = ("--prompt-length", "uniform:4:40", "--output-length", "uniform:20:60", "--kv-memory", "600KiB")
    options = ("--set", "memory.preemption=swap", "--set", "memory.block_size=4")
    traces = []
    for seed in ("1", "2", "3"):
        path = tmp_path / seed
        command = [sys.executable, "-m", "minifuse", "run", "--technique", "vllm", *typed, *lengths, *options]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([*command, "--trace", str(path)], env=environment, capture_output=True, check=True)
        traces.append(decisions(read_trace(path)))
    assert b"swap_in" in traces[0]
    assert traces[0] == traces[1] == traces[2]


@pytest.mark.parametrize("technique", ["vllm", "static", "fusion"])
def test_the_kernels_through_the_command_line(technique: str) -> None:
    """In a process of its own: Triton's interpreter must be asked for before a kernel is defined."""
    typed = ["run", "sort 4 2", "--technique", technique, "--set", "attention.backend=triton", "--max-new-tokens", "4"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "minifuse", *typed]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    assert said.stdout == "r0 sort 4 2 -> 2 4\n"
    half = subprocess.run(
        [*command, "--dtype", "bfloat16"], env=environment, capture_output=True, text=True, check=False
    )
    assert half.returncode == 2
    assert half.stderr.startswith("error: ")
    assert "gets bfloat16 wrong" in half.stderr

"""`vllm`, the backends and the numerics through the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.trace.log import decisions, read_trace

Cli = Callable[..., Any]

# Room for one answer and a half.
SHORT = ("--technique", "vllm", "--kv-memory", "100KiB", "--set", "memory.block_size=4")


def test_swaps_beside_the_computing_show_in_virtual_time(minifuse: Cli, tmp_path: Path) -> None:
    """The same decisions but for the moment of the moves, the same bytes, and less of their time exposed."""
    typed = ("--clock", "virtual", "--hardware", "a100-40g", "--model", "random:llama-7b", "--dtype", "float16")
    load = ("--requests", 40, "--prompt-length", "uniform:100:400", "--output-length", "uniform:50:200")
    short = ("--technique", "vllm", "--kv-memory", "2GiB", "--max-batch", 32, "--set", "memory.preemption=swap")
    metrics, traces = {}, {}
    for how in ("blocking", "overlapped"):
        path = tmp_path / how
        outcome = minifuse("run", *typed, *load, *short, "--set", f"memory.transfer={how}", "--json", "--trace", path)
        metrics[how] = outcome.json()["metrics"]
        traces[how] = [event["work"] for event in read_trace(path) if event["event"] == "step"]
    assert traces["blocking"] == traces["overlapped"]
    before, after = metrics["blocking"]["transfers"], metrics["overlapped"]["transfers"]
    assert before["to_host"] == pytest.approx(after["to_host"])
    assert (
        before["to_device"]["bytes"] == after["to_device"]["bytes"] == metrics["blocking"]["moves"]["swap_in"]["bytes"]
    )
    seconds = before["to_host"]["seconds"] + before["to_device"]["seconds"]
    assert before["exposed_s"] == pytest.approx(seconds)
    assert before["hidden_s"] == pytest.approx(0, abs=1e-9)
    assert after["exposed_s"] < 0.5 * seconds
    saved = metrics["blocking"]["duration_s"] - metrics["overlapped"]["duration_s"]
    assert saved == pytest.approx(before["exposed_s"] - after["exposed_s"])
    shown = minifuse("run", *typed, *load, *short, "--set", "memory.transfer=overlapped").err
    assert "Transfers" in shown
    assert "hidden" in shown


def test_techniques_agree_to_the_bit_in_reference_numerics(minifuse: Cli, tiny: str) -> None:
    names = ("naive", "static", "orca", "fusion", "vllm", "fluid", "baton")  # one of each attention
    typed = ("--requests", 3, "--max-new-tokens", 4, "--temperature", "1.5", "--numerics", "reference", "--json")
    outcome = minifuse("compare", *names, *typed, "--dtype", "bfloat16")
    assert (outcome.code, outcome.err) == (0, "")
    assert [(row["technique"], row["differing"]) for row in outcome.json()["techniques"]] == [(n, []) for n in names]
    assert outcome.json()["numerics"] == "reference"


def test_the_order_of_a_hash_decides_nothing(process: Cli, tmp_path: Path) -> None:
    """The next free host block must not depend on Python's hashes of names, which differ from process to process."""
    typed = ("--clock", "virtual", "--model", "random:small", "--requests", "30", "--max-batch", "16", "--json")
    lengths = ("--prompt-length", "uniform:4:40", "--output-length", "uniform:20:60", "--kv-memory", "600KiB")
    options = ("--set", "memory.preemption=swap", "--set", "memory.block_size=4")
    traces = []
    for seed in ("1", "2", "3"):
        path = tmp_path / seed
        command = ("run", "--technique", "vllm", *typed, *lengths, *options, "--trace", path)
        assert process(*command, PYTHONHASHSEED=seed).code == 0
        traces.append(decisions(read_trace(path)))
    assert b"swap_in" in traces[0]
    assert traces[0] == traces[1] == traces[2]

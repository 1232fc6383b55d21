"""Flover's techniques through the command line: `fusion`, and the `instances` that it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.trace.log import Event, read_trace

Cli = Callable[..., Any]

EXACT = ("--dtype", "float64", "--json")


@pytest.mark.parametrize("name", ["fusion", "instances"])
def test_the_tiny_crowd_is_answered_rightly(minifuse: Cli, tiny: str, name: str) -> None:
    outcome = minifuse("run", "--technique", name, "--requests", 8, "--arrival", "constant:2ms")
    assert outcome.code == 0
    assert outcome.out.count("[right]") == 8
    assert "8 of 8" in outcome.err


def test_compare_finds_no_difference_in_float64(minifuse: Cli, tiny: str) -> None:
    typed = ("compare", "orca", "fusion", "instances", "--requests", 6, "--prompts-per-request", 2, *EXACT)
    outcome = minifuse(*typed, "--max-batch", 4)
    assert (outcome.code, outcome.err) == (0, "")
    assert [(row["technique"], row["differing"]) for row in outcome.json()["techniques"]] == [
        ("orca", []),
        ("fusion", []),
        ("instances", []),
    ]


# --- the shuffle, as a trace shows it


@pytest.fixture
def steps(minifuse: Cli, wordless: Path, requests: Cli, tmp_path: Path) -> Callable[..., list[Event]]:
    """The main stream's iterations over four requests of unequal lengths, the short ones in the middle.

    Virtual time, and real weights: they arrive at once, are pre-processed inline, and leave after 2, 4 and 9 tokens.
    """
    lengths = {"a": 9, "b": 2, "c": 4, "d": 9}
    path = requests(*({"id": id, "prompt_token_ids": [1, 2, 3], "max_new_tokens": n} for id, n in lengths.items()))
    typed = ("run", "--technique", "fusion", "--model", wordless, "--prompts", path, "--clock", "virtual")
    trace = tmp_path / "trace.jsonl"

    def run(*options: str) -> list[Event]:
        inline = ("--set", "batching.preprocess=inline", "--max-batch", 4, "--ignore-eos", *EXACT)
        assert minifuse(*typed, *inline, "--trace", trace, *options).code == 0
        return [e for e in read_trace(trace) if e["event"] == "step" and e["phase"] == "running"]

    return run


def test_with_the_shuffle_holes_are_closed_by_moves(steps: Callable[..., list[Event]]) -> None:
    """b leaves slot 1, and d is copied there from slot 3: prompt and first token. c leaves from the end: no move."""
    shuffled = steps("--set", "memory.shuffle=on")
    assert [len(step["work"]) for step in shuffled] == [4, 4, 3, 3, 2, 2, 2, 2, 2]
    assert [step["idle"] for step in shuffled] == [0] * 9
    width = shuffled[0]["shape"]["width"]
    moves = [[], [], [["shuffle", 3 * width, width, 4, "device", "device", "first", 0]], *[[]] * 6]
    assert [step["moves"] for step in shuffled] == moves


def test_without_the_shuffle_holes_are_computed_as_idle_tokens(steps: Callable[..., list[Event]]) -> None:
    """Slots 1, then 1 and 2, lie idle between a and d: one idle token in each of two steps, two in each of five."""
    idle = steps("--set", "memory.shuffle=off")
    assert [len(step["work"]) for step in idle] == [4, 4, 3, 3, 2, 2, 2, 2, 2]
    assert [step["idle"] for step in idle] == [0, 0, 1, 1, 2, 2, 2, 2, 2]
    assert [step["moves"] for step in idle] == [[]] * 9


def test_the_run_tells_of_moves_and_idle_tokens(minifuse: Cli, tiny: str) -> None:
    """The crowd's answers have unequal lengths, so some leave from the middle.

    Inline: beside the main stream a prompt being pre-processed may lie between two that run, and is not moved away.
    """
    typed = ("run", "--technique", "fusion", "--set", "batching.preprocess=inline", "--requests", 16)
    typed += ("--clock", "virtual")
    shuffled, idle = (minifuse(*typed, "--set", f"memory.shuffle={shuffle}").err for shuffle in ("on", "off"))
    assert "shuffle (" in shuffled
    assert "Idle tokens                       0 " in shuffled
    assert "KV moves                          none" in idle
    assert "Idle tokens                       0 " not in idle

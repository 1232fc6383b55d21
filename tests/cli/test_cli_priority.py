"""Priorities from a file: honoured where the order is that of priority; otherwise the command says so, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

VIRTUAL = ("--model", "random:small", "--clock", "virtual", "--max-new-tokens", "2")


@pytest.fixture
def prioritised(requests: Callable[..., Path]) -> Path:
    return requests(
        {"id": "low", "prompt_token_ids": [1, 2]},
        {"id": "high", "prompt_token_ids": [3], "priority": 2},
        {"id": "middle", "prompt_token_ids": [4], "priority": 1},
    )


def _notes(outcome: Any) -> list[str]:
    return [line for line in outcome.err.splitlines() if "priorit" in line]


def test_the_order_is_that_of_priority(minifuse: Cli, prioritised: Path) -> None:
    typed = ["run", "--technique", "serial", "--prompts", prioritised, *VIRTUAL]
    done = minifuse(*typed, "--set", "batching.order=priority")
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()] == ["high", "middle", "low"]
    assert _notes(done) == []
    done = minifuse(*typed)
    assert [line.split()[0] for line in done.out.splitlines()] == ["low", "high", "middle"]
    assert _notes(done) == [
        "note: the priorities of the requests are not followed by serial: add --set batching.order=priority, for "
        "serial."
    ]


def test_a_technique_without_an_order(minifuse: Cli, prioritised: Path) -> None:
    done = minifuse("run", "--technique", "cellular", "--prompts", prioritised, *VIRTUAL)
    assert done.code == 0, done.err
    assert _notes(done) == [
        "note: the priorities of the requests are not followed by cellular: see minifuse list --json."
    ]
    refused = minifuse(
        *("run", "--technique", "cellular", "--set", "batching.order=priority", "--prompts", prioritised, *VIRTUAL)
    )
    refused.refused("has no option 'order'")


def test_compare_says_it_once(minifuse: Cli, prioritised: Path) -> None:
    typed = ["compare", "orca", "vllm", "cellular", "--prompts", prioritised, *VIRTUAL]
    assert _notes(minifuse(*typed)) == [
        "note: the priorities of the requests are not followed by orca, vllm and cellular: add --set "
        "batching.order=priority, for orca and vllm."
    ]
    assert _notes(minifuse(*typed, "--set", "batching.order=priority")) == [
        "note: the priorities of the requests are not followed by cellular: see minifuse list --json."
    ]


def test_without_priorities_nothing_is_said(minifuse: Cli, requests: Callable[..., Path]) -> None:
    done = minifuse("run", "--prompts", requests({"prompt_token_ids": [1], "priority": 0}), *VIRTUAL)
    assert _notes(done) == []

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
        "note: the requests have priorities, which serial does not follow: add --set batching.order=priority."
    ]


def test_a_technique_without_an_order(minifuse: Cli, prioritised: Path) -> None:
    done = minifuse("run", "--technique", "cellular", "--prompts", prioritised, *VIRTUAL)
    assert done.code == 0, done.err
    assert _notes(done) == [
        "note: the requests have priorities, which cellular does not follow: choose a technique with the option "
        "batching.order, see minifuse list --json."
    ]
    refused = minifuse(
        *("run", "--technique", "cellular", "--set", "batching.order=priority", "--prompts", prioritised, *VIRTUAL)
    )
    refused.refused("has no option 'order'")


def test_compare_says_it_once(minifuse: Cli, prioritised: Path) -> None:
    typed = ["compare", "orca", "vllm", "cellular", "--prompts", prioritised, *VIRTUAL]
    assert _notes(minifuse(*typed)) == [
        "note: the requests have priorities, which orca, vllm and cellular do not follow: add --set "
        "batching.order=priority, an option that cellular lacks."
    ]
    assert _notes(minifuse(*typed, "--set", "batching.order=priority")) == [
        "note: the requests have priorities, which cellular does not follow: choose a technique with the option "
        "batching.order, see minifuse list --json."
    ]


def test_without_priorities_nothing_is_said(minifuse: Cli, requests: Callable[..., Path]) -> None:
    done = minifuse("run", "--prompts", requests({"prompt_token_ids": [1], "priority": 0}), *VIRTUAL)
    assert _notes(done) == []


def test_ageing_under_another_order_is_refused(minifuse: Cli) -> None:
    done = minifuse("run", *VIRTUAL, "--set", "batching.ageing=2s")
    done.refused("batching.ageing is 2 s", "give batching.order=priority, not fcfs")


def test_the_option_is_explained(minifuse: Cli) -> None:
    text = " ".join(minifuse("explain", "vllm").out.split())
    assert "batching.order=fcfs" in text
    assert "batching.ageing=none" in text

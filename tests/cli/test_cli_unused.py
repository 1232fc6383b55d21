"""What is accepted and could change nothing is refused, or said; what is refused alike is counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Cli = Callable[..., Any]

VIRTUAL = ("--model", "random:small", "--clock", "virtual", "--requests", 3, "--output-length", 4)
SWAP = ("--set", "memory.preemption=swap", "--set", "memory.transfer=overlapped")


@pytest.mark.parametrize("typed", [("--top-k", 5), ("--top-p", 0.5), ("--top-k", 5, "--top-p", 0.5)])
@pytest.mark.parametrize("command", [("run",), ("compare", "orca", "static")])
def test_sampling_options_without_a_temperature_are_refused(
    minifuse: Cli, command: tuple[str, ...], typed: tuple[Any, ...]
) -> None:
    minifuse(*command, *VIRTUAL, *typed).refused(*typed[::2], "--temperature")
    assert minifuse(*command, *VIRTUAL, *typed, "--temperature", 0.5).code == 0


def test_sampling_options_are_for_the_requests_of_a_file_that_have_a_temperature(minifuse: Cli, requests: Cli) -> None:
    path = requests({"prompt_token_ids": [1], "temperature": 1}, {"prompt_token_ids": [1]})
    run = ("run", "--model", "random:small", "--clock", "virtual", "--max-new-tokens", 2, "--prompts", path)
    assert minifuse(*run, "--top-k", 5).code == 0
    requests({"prompt_token_ids": [1]})
    minifuse(*run, "--top-k", 5).refused("--top-k", "--temperature")


def test_a_line_with_sampling_and_no_temperature_is_noted(minifuse: Cli, requests: Cli) -> None:
    path = requests({"prompt_token_ids": [1], "top_k": 3}, {"prompt_token_ids": [1], "top_p": 0.5})
    run = ("run", "--model", "random:small", "--clock", "virtual", "--max-new-tokens", 2, "--prompts", path)
    outcome = minifuse(*run)
    assert outcome.code == 0
    assert "changes nothing; given by 2 requests, the first 'r0'." in outcome.err
    requests({"prompt_token_ids": [1], "top_k": 3, "temperature": 1})
    assert "top_k" not in minifuse(*run).err


def test_swap_options_that_nothing_used_are_noted(minifuse: Cli) -> None:
    never = minifuse("run", "--technique", "vllm", "--batching", "iteration", *VIRTUAL, *SWAP)
    assert never.code == 0
    assert "note: no request was evicted, so memory.preemption and memory.transfer changed nothing: " in never.err
    compared = minifuse("compare", "vllm", "orca", *VIRTUAL, *SWAP, "--json")
    assert compared.err.count("changed nothing") == 1
    assert "changed nothing" not in minifuse("run", "--technique", "vllm", *VIRTUAL).err
    crowd = ("--requests", 6, "--kv-memory", "600KiB", "--output-length", 40)
    evicting = minifuse("run", "--technique", "vllm", *VIRTUAL[:4], *crowd, *SWAP)
    assert "Evictions" in evicting.err
    assert "changed nothing" not in evicting.err


def test_many_refusals_are_a_few_lines(minifuse: Cli, requests: Cli) -> None:
    empty = [{"id": f"empty{i}", "prompt_token_ids": []} for i in range(400)]
    long = [{"id": f"long{i}", "prompt_token_ids": [1] * (9 + i), "max_new_tokens": 10**6} for i in range(5)]
    path = requests(*empty, *long, {"id": "fine", "prompt_token_ids": [1], "max_new_tokens": 2})
    run = ("run", "--model", "random:small", "--clock", "virtual", "--prompts", path)
    outcome = minifuse(*run)
    assert outcome.code == 1
    errors = [line for line in outcome.err.splitlines() if line.startswith("error:")]
    assert len(errors) == 3 + 3 + 2
    assert sum("has an empty prompt" in line for line in errors) == 3
    assert errors[-2:] == [
        "error: Also refused, for the same reason as 'empty0': 397 more, the last of them 'empty399'.",
        "error: Also refused, for the same reason as 'long0': 2 more, the last of them 'long4'.",
    ]
    outputs = minifuse(*run, "--json").json()["outputs"]
    assert sum("error" in output for output in outputs) == 405

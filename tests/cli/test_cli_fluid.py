"""`fluid`, `fastserve` and `srpt` through the command line: the same answers on starved memory, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Cli = Callable[..., Any]

CROWD = ("run", "--requests", 30, "--max-new-tokens", 12, "--ignore-eos", "--json")
SHORT = ("--kv-memory", "96KiB", "--set", "memory.block_size=4")  # about three of the requests


def test_thirty_requests_where_three_fit(minifuse: Cli, tiny: str) -> None:
    orca = minifuse(*CROWD).answers()
    others = minifuse(*CROWD, "--technique", "vllm", "--max-batch", 30, *SHORT)
    assert others.answers() == orca
    for option in (None, "memory.turns=sequences", "memory.turns=layers", "attention.lanes=1", "memory.buffer=0.5"):
        outcome = minifuse(*CROWD, "--technique", "fluid", *SHORT, *(("--set", option) if option else ()))
        assert outcome.answers() == orca, option
        metrics = outcome.json()["metrics"]
        assert metrics["evictions"] == 0, option
        assert metrics["moves"]["upload"]["tokens"] > 0, option
        assert metrics["iterations"] < others.json()["metrics"]["iterations"] / 2, option


def test_a_request_that_the_device_cannot_attend(minifuse: Cli, tiny: str) -> None:
    """Refused with the figure that would do."""
    typed = ("run", "--technique", "fluid", "count from 1 to 9", "--max-new-tokens", 30, "--kv-memory", "32KiB")
    outcome = minifuse(*typed)
    assert outcome.code == 1
    assert "KV tokens on the device, where attention reads them" in outcome.err
    assert "raise --kv-memory to " in outcome.err


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("--set", "memory.host=3"), ("memory.host is 3, less than a block of 16 tokens",)),
        (("--max-batch", "8"), ("--max-batch", "fluid")),
        (("--batching", "instances"), ("'waves' may use all of the device for one plan", "'instances'")),
        (("--batching", "cellular"), ("'waves' may use all of the device", "'cellular'")),
        (("--attention", "per_sequence"), ("'per_sequence' reads KV as extents", "'waves'")),
    ],
)
def test_what_is_refused(minifuse: Cli, tiny: str, typed: tuple[str, ...], words: tuple[str, ...]) -> None:
    minifuse("run", "--technique", "fluid", *typed).refused(*words)


def test_a_device_too_small_for_all_layers_of_a_request_holds_one_at_a_time(minifuse: Cli, tiny: str) -> None:
    """It has room for 40 tokens of the KV of all three layers, and 120 of one; the request has up to 80."""
    asked = ("run", "--technique", "fluid", "--max-new-tokens", "60", "--ignore-eos", "a text")
    small, in_turn = ("--kv-memory", "60KiB"), ("--set", "memory.turns=layers")
    minifuse(*asked, *small).refused("blocks of 16 KV tokens on the device", "memory.turns=layers", code=1)
    assert minifuse(*asked, *small, *in_turn).out.splitlines()[0] == minifuse(*asked).out.splitlines()[0]
    for clock in ("real", "virtual"):
        wrong = minifuse(*asked, *in_turn, "--set", "memory.layers=2", "--clock", clock)
        wrong.refused("2 layers", "tiny has 3", "leave memory.layers out")
    minifuse(*asked, *in_turn, "--set", "memory.buffer=0.2").refused("leave memory.buffer out")
    minifuse(*asked, "--set", "memory.layers=3").refused("memory.turns is rest", "memory.turns=layers")
    minifuse(*asked, "--set", "memory.turns=none").refused("rest or sequences or layers")
    minifuse(*asked, *small, *in_turn, "--max-new-tokens", "200").refused("of one layer, on the device", code=1)

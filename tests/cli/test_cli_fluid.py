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
    fewer = others.json()["metrics"]["iterations"] / 2
    for option in (None, "memory.turns=sequences", "attention.lanes=1", "memory.buffer=0.5"):
        rotates = ("--set", "memory.overflow=rotate", *(("--set", option) if option else ()))
        outcome = minifuse(*CROWD, "--technique", "fluid", *SHORT, *rotates)
        assert outcome.answers() == orca, option
        metrics = outcome.json()["metrics"]
        assert metrics["evictions"] == 0, option
        assert metrics["moves"]["upload"]["tokens"] > 0, option
        assert metrics["iterations"] < fewer, option


@pytest.mark.parametrize(
    ("options", "moves", "pauses"),
    [
        ((), "upload", True),
        (("memory.turns=host",), "offload", False),
        (("memory.turns=host", "memory.passes=2"), "offload", False),
        (("memory.turns=host", "memory.beyond=40"), "offload", True),
        (("memory.turns=layers", "memory.buffer=0.4"), "upload", False),
    ],
)
@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_what_the_device_has_no_room_for(
    minifuse: Cli, tiny: str, options: tuple[str, ...], moves: str, pauses: bool, clock: str
) -> None:
    """It pauses, or is attended on the host, or passes through slots that layers share: with the same answers."""
    orca = minifuse(*CROWD).answers()
    given = [part for option in options for part in ("--set", option)]
    outcome = minifuse(*CROWD, "--technique", "fluid", *SHORT, *given, "--clock", clock)
    assert outcome.answers() == orca
    metrics = outcome.json()["metrics"]
    assert (metrics["evictions"] > 0) == pauses
    assert metrics["moves"][moves]["tokens"] > 0
    assert metrics["tokens"]["recomputed"] == 0


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_copies_in_8_bits(minifuse: Cli, tiny: str, clock: str) -> None:
    """tiny has 3 layers and heads of 32, in 4 bytes: a copy has 32 + 4 bytes of a head's 128."""
    typed = (*CROWD, "--technique", "fluid", *SHORT, "--set", "memory.overflow=rotate", "--clock", clock)
    moved = []
    for host_dtype in ("auto", "int8"):
        metrics = minifuse(*typed, "--set", f"memory.host_dtype={host_dtype}").json()["metrics"]
        carried = metrics["transfers"]["to_device"]["bytes"]
        moved.append(carried / metrics["moves"]["upload"]["tokens"])
    assert moved[1] == moved[0] * 36 / 128
    minifuse(*CROWD, "--technique", "fluid", "--set", "memory.host_dtype=int4").refused("int4", "auto or int8")


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
    small = ("--kv-memory", "60KiB")
    in_turn = ("--set", "memory.turns=layers", "--set", "memory.buffer=1")
    minifuse(*asked, *small).refused("blocks of 16 KV tokens on the device", "memory.turns=layers", code=1)
    assert minifuse(*asked, *small, *in_turn).out.splitlines()[0] == minifuse(*asked).out.splitlines()[0]
    for clock in ("real", "virtual"):
        wrong = minifuse(*asked, *in_turn, "--set", "memory.layers=2", "--clock", clock)
        wrong.refused("memory.layers is 2", "tiny has 3 layers", "leave memory.layers out")
    minifuse(*asked, *small, "--set", "memory.turns=layers").refused("15 slots of one layer", "raise memory.buffer")
    minifuse(*asked, "--set", "memory.layers=3").refused("memory.layers is 3 and memory.turns is none", "=layers")
    minifuse(*asked, "--set", "memory.turns=some").refused("host or layers or rest or sequences")
    minifuse(*asked, "--set", "memory.turns=rest").refused("memory.overflow is pause", "memory.overflow=rotate")
    minifuse(*asked, *small, *in_turn, "--max-new-tokens", "200").refused("and 7 of one layer", code=1)

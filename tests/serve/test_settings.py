"""What a run may be set up with, and its memory budget, given or by default."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import refusal

from minifuse.core.errors import UsageError
from minifuse.serve.settings import Settings


def test_the_default_budget_is_64_mib_and_at_least_4096_slots() -> None:
    """A token of LLaMA-7B in float16 takes 512 KiB: 64 MiB would hold 128 of them."""
    assert Settings().kv_bytes(128) == 64 * 2**20
    assert Settings().kv_bytes(2**14) == 64 * 2**20  # exactly 4096 of 16 KiB
    assert Settings().kv_bytes(2**19) == 4096 * 2**19
    assert Settings(kv_memory=1000).kv_bytes(2**19) == 1000  # as given


def test_on_simulated_hardware_the_weights_leave_the_rest_of_90_percent() -> None:
    on_a100 = Settings(clock="virtual", hardware="a100-40g", dtype="float16")
    assert on_a100.kv_bytes(2**19, weights=13 * 10**9) == 36 * 10**9 - 13 * 10**9
    assert on_a100.kv_bytes(100, weights=0) == 2**20 * 100  # no more slots than that: the books grow with them
    assert on_a100.kv_bytes(2**19, weights=36 * 10**9) == 4096 * 2**19  # no fewer: whether they fit is checked apart
    assert on_a100.kv_bytes(2**19) == 4096 * 2**19  # KV is really stored
    assert Settings(clock="virtual").kv_bytes(128, weights=1) == 64 * 2**20  # `cpu` has a memory of no size
    assert Settings(clock="virtual", hardware="a100-40g", kv_memory=1000).kv_bytes(100, weights=1) == 1000


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"clock": "virtul"}, ["clock is 'virtul'", 'mean "virtual"', "real or virtual"]),
        ({"numerics": "Reference"}, ["numerics is 'Reference'", "fast or reference"]),
        ({"dtype": "fp16"}, ["dtype is 'fp16'", "float32, float64, bfloat16 or float16"]),
        ({"device": "gpu"}, ["device is 'gpu'", "cpu, cuda"]),
        ({"device": None}, ["device is None"]),
        ({"kv_memory": "100KiB"}, ["kv_memory is '100KiB'", "at most 9223372036854775807, in bytes"]),
        ({"kv_memory": 0}, ["kv_memory is 0"]),
        ({"tensor_parallel": 0}, ["tensor_parallel is 0", "at least 1"]),
        ({"seed": 1.5}, ["seed is 1.5", "whole number"]),
        ({"seed": 10**30}, ["seed is 1000"]),
    ],
)
def test_what_is_not_allowed(given: dict[str, Any], parts: list[str]) -> None:
    with refusal(UsageError, *parts):
        Settings(**given)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_devices(device: str) -> None:
    assert Settings(device=device).device == device

"""The memory budget of a run, given or by default."""

from __future__ import annotations

from minifuse.serve.settings import Settings


def test_the_default_budget_is_64_mib() -> None:
    assert Settings().kv_bytes(128) == 64 * 2**20


def test_the_default_budget_holds_at_least_4096_slots() -> None:
    """A token of LLaMA-7B in float16 takes 512 KiB: 64 MiB would hold 128 of them."""
    assert Settings().kv_bytes(2**19) == 4096 * 2**19
    assert Settings().kv_bytes(2**14) == 64 * 2**20  # exactly 4096 of 16 KiB


def test_a_given_budget_is_kept_whatever_the_slots() -> None:
    assert Settings(kv_memory=1000).kv_bytes(2**19) == 1000

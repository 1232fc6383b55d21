"""Flover's techniques through the command line: `fusion`, and the `instances` that it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Cli = Callable[..., Any]


# --- the shuffle, as a trace shows it


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

"""`--tensor-parallel`: the same answers from several processes, and what cannot be shared among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.trace.log import read_trace

Cli = Callable[..., Any]

CROWD = ("run", "--requests", 4, "--max-new-tokens", 6, "--dtype", "float64", "--json", "--technique", "orca")


def test_two_processes_and_two_simulated_ranks_answer_as_one(minifuse: Cli, tiny: str, tmp_path: Path) -> None:
    """tests/parallel/test_ranks.py has the answers of two processes for other techniques."""
    trace = tmp_path / "trace.jsonl"
    two = ("--tensor-parallel", 2)
    alone, both, simulated = (
        minifuse(*CROWD, *typed).json()
        for typed in (("--tensor-parallel", 1), (*two, "--trace", trace), (*two, "--clock", "virtual"))
    )
    for told in (both, simulated):
        assert [output["token_ids"] for output in told["outputs"]] == [
            output["token_ids"] for output in alone["outputs"]
        ]
    assert alone["metrics"]["messages"] == {"count": 0, "bytes": 0}
    steps = [event["wall"] for event in read_trace(trace) if event["event"] == "step"]
    sent = both["metrics"]["messages"]
    assert sent == {
        "count": sum(wall["messages"] for wall in steps),
        "bytes": sum(wall["message_bytes"] for wall in steps),
    }
    assert sent["bytes"] > 0
    assert simulated["metrics"]["messages"] == sent


@pytest.mark.parametrize(
    ("typed", "parts"),
    [
        (("--tensor-parallel", 0), ("--tensor-parallel", '"0"')),
        (("--tensor-parallel", "two"), ("--tensor-parallel", '"two"')),
        (("--tensor-parallel", 3), ("heads", "3 ranks", "choose a tensor parallel size of")),
        (("--tensor-parallel", 3, "--clock", "virtual"), ("heads", "3 ranks")),
    ],
)
def test_what_cannot_be_shared(minifuse: Cli, tiny: str, typed: tuple[Any, ...], parts: tuple[str, ...]) -> None:
    minifuse("run", "--requests", 2, *typed).refused(*parts)

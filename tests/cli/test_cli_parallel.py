"""`--tensor-parallel`: the same answers from several processes, and what cannot be shared among them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.trace.log import read_trace

Cli = Callable[..., Any]

CROWD = ("--requests", 4, "--max-new-tokens", 6, "--dtype", "float64", "--json")


def test_two_processes_answer_as_one(minifuse: Cli, tiny: str, tmp_path: Path) -> None:
    answers, sent = [], []
    trace = tmp_path / "trace.jsonl"
    for size in (1, 2):
        outcome = minifuse("run", *CROWD, "--technique", "fusion", "--tensor-parallel", size, "--trace", trace)
        assert outcome.code == 0, outcome.err
        answers.append([output["token_ids"] for output in outcome.json()["outputs"]])
        sent.append(outcome.json()["metrics"]["messages"])
    assert answers[0] == answers[1]
    assert sent[0] == {"count": 0, "bytes": 0}
    steps = [event["wall"] for event in read_trace(trace) if event["event"] == "step"]
    assert sent[1] == {
        "count": sum(wall["messages"] for wall in steps),
        "bytes": sum(wall["message_bytes"] for wall in steps),
    }
    assert sent[1]["bytes"] > 0


def test_simulated_ranks_answer_and_send_as_two_processes(minifuse: Cli, tiny: str) -> None:
    outcomes = [
        minifuse("run", *CROWD, "--technique", "orca", "--tensor-parallel", 2, "--clock", clock)
        for clock in ("real", "virtual")
    ]
    real, virtual = (outcome.json() for outcome in outcomes)
    assert [one["token_ids"] for one in virtual["outputs"]] == [one["token_ids"] for one in real["outputs"]]
    assert virtual["metrics"]["messages"] == real["metrics"]["messages"]


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

"""`--workload tour`: each of seven techniques does what it is known for, and answers are the same."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import pytest

from minifuse.cli import main
from minifuse.workload import tour

Cli = Callable[..., Any]
SEVEN = ("static", "orca", "fusion", "vllm", "pensieve", "baton-pd", "fluid")


@pytest.fixture(scope="module")
def metrics() -> dict[str, Any]:
    """The metrics of each technique on the tour, and which answers differ from those of the first."""
    text = io.StringIO()
    with redirect_stdout(text):
        assert main(["compare", *SEVEN, "--workload", "tour", "--clock", "virtual", "--json"]) == 0
    compared = json.loads(text.getvalue())["techniques"]
    return {one["technique"]: {**one["metrics"], "differing": one["differing"]} for one in compared}


def test_each_technique_does_what_it_is_known_for(metrics: dict[str, Any]) -> None:
    assert metrics["static"]["tokens"]["idle_share"] > 0.1
    assert metrics["orca"]["iterations"] < metrics["static"]["iterations"]
    assert metrics["fusion"]["moves"]["shuffle"]["count"] > 2
    assert metrics["vllm"]["evictions"] > 2
    history = metrics["pensieve"]["history"]
    assert history["on_device"] > 0
    assert history["on_host"] > 0
    assert history["on_device"] + history["on_host"] < history["tokens"]  # some chunks have been dropped
    assert metrics["baton-pd"]["moves"]["embed"]["count"] > 2
    assert metrics["fluid"]["moves"]["upload"]["count"] > 10


def test_all_are_served_and_answers_are_the_same(metrics: dict[str, Any]) -> None:
    lines = tour.REQUESTS.read_text().splitlines()
    for name, one in metrics.items():
        assert one["requests"]["stop"] == len(lines) == 20, name
        assert not one["differing"], name


def test_what_is_implied_is_told_and_gives_way_to_what_is_typed(minifuse: Cli) -> None:
    typed = ("run", "--technique", "fluid", "--workload", "tour", "--clock", "virtual", "--json")
    said = minifuse(*typed, "--kv-memory", "64MiB", "--set", "memory.overflow=pause")
    assert "--workload tour implies, where they are not given, --kv-memory 192KiB" in said.err
    assert json.loads(said.out)["metrics"]["moves"]["upload"]["count"] == 0


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--requests", "3"], "--requests and --workload tour are both given, and its 20 requests are fixed"),
        (["--arrival", "poisson:1ms"], "--arrival and --workload tour are both given"),
        (["--model", "random:small"], "of tasks that the model tiny has learnt"),
        (["--workload", "tour:9"], 'The workload is "tour:9"'),
    ],
)
def test_what_cannot_be_toured_is_refused(typed: list[str], words: str, minifuse: Cli) -> None:
    minifuse("run", "--workload", "tour", *typed).refused(words)

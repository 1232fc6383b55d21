"""Users, priorities and conversations: latencies of each, and a policy of one's own that reads the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minifuse.techniques import TECHNIQUES
from minifuse.trace.log import read_trace

Cli = Callable[..., Any]

VIRTUAL = ("--model", "random:small", "--clock", "virtual")
FAIR = """
from collections import Counter
from dataclasses import replace

from minifuse.batching.iteration import Iteration
from minifuse.stages import register
from minifuse.techniques import TECHNIQUES


@register
class Fair(Iteration):
    \"\"\"Requests join at every iteration, the users in turn.\"\"\"

    name = "fair"
    overtaken_at_most = None

    def __init__(self, options=None):
        super().__init__(options)
        self.turns = Counter()

    def rank(self, sequence):
        self.turns[sequence.request.user] += 1
        return self.turns[sequence.request.user]


TECHNIQUES["fair"] = replace(TECHNIQUES["orca"], name="fair", batching="fair")
"""


@pytest.fixture
def fair(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "fair.py"
    path.write_text(FAIR)
    yield path
    TECHNIQUES.pop("fair", None)  # `afresh` forgets its stage


def test_a_fair_policy_is_told_from_another_by_its_users(afresh: Cli, fair: Path) -> None:
    """Of a user who asks seldom, beside one who floods the queue: in all figures together, the two are alike."""
    typed = ("--plugin", fair, "compare", "orca", "fair", *VIRTUAL, "--users", "30:1", "--requests", 120)
    outcome = afresh(*typed, "--by", "user", "--json")
    orca, own = outcome.json()["techniques"]
    assert orca["metrics"]["ttft_s"]["p50"] == pytest.approx(own["metrics"]["ttft_s"]["p50"], rel=0.02)
    seldom = [next(one for one in row["groups"] if one["user"] == "u1") for row in (orca, own)]
    assert seldom[0]["ttft_s"]["p50"] > 40 * seldom[1]["ttft_s"]["p50"]
    assert [sum(one["requests"] for one in row["groups"]) for row in (orca, own)] == [120, 120]
    shown = afresh(*typed, "--by", "user").out
    lines = shown.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("technique, user"))
    assert [line.split()[:2] for line in lines[head + 1 : head + 5]] == [
        ["orca", "u0"],
        ["orca", "u1"],
        ["fair", "u0"],
        ["fair", "u1"],
    ]


def test_a_run_and_its_trace_tell_the_same_by_priority(minifuse: Cli, requests: Cli, tmp_path: Path) -> None:
    lines = [{"prompt_token_ids": [i + 1], "priority": i % 3, "user": "ann\x1b[2J"} for i in range(40)]
    trace = tmp_path / "run.jsonl"
    typed = ("run", *VIRTUAL, "--prompts", requests(*lines), "--max-new-tokens", 3, "--trace", trace)
    told = minifuse(*typed, "--by", "priority", "--json").json()["groups"]
    assert [(group["priority"], group["requests"]) for group in told] == [(2, 13), (1, 13), (0, 14)]
    assert minifuse("trace", trace, "--by", "priority", "--json").json()["groups"] == told
    assert {event["user"] for event in read_trace(trace) if event["event"] == "request"} == {"ann\x1b[2J"}
    shown = minifuse("trace", trace, "--by", "user", "--width", 60).out
    assert "ann\\x1b[2J" in shown
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 60


def test_many_groups_are_cut(minifuse: Cli) -> None:
    typed = (*VIRTUAL, "--workload", "sharegpt:scale=0.01", "--requests", 23, "--by", "conversation")
    shown = minifuse("run", *typed).err
    assert " 3 more are left out: --json has all." in " ".join(shown.split())
    assert len(minifuse("run", *typed, "--json").json()["groups"]) == 23


def test_groups_of_cells(minifuse: Cli) -> None:
    typed = ("--model", "lstm:hidden=64", "--clock", "virtual", "--users", 2, "--requests", 6, "--by", "user")
    outcome = minifuse("compare", "cellular", "graph-padded", *typed)
    assert outcome.code == 0
    assert "graph-padded u1" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", *VIRTUAL, "--by", "user"), ["--by is user", "no request has one", "--users 4"]),
        (("compare", "orca", "vllm", *VIRTUAL, "--by", "conversation"), ["no request has one", "--workload sharegpt"]),
        (("run", *VIRTUAL, "--by", "usr"), ['--by is "usr"', 'mean "user"']),
        (("run", "count", "--users", "2"), ["--users is for synthetic requests", "typed prompts"]),
    ],
)
def test_what_is_refused(minifuse: Cli, arguments: tuple[str, ...], words: list[str]) -> None:
    minifuse(*arguments).refused(*words)


def test_a_trace_without_users_is_not_told_by_them(minifuse: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    minifuse("run", *VIRTUAL, "--requests", 2, "--trace", trace)
    minifuse("trace", trace, "--by", "user").refused("--by is user", "no request of the trace has one")
    minifuse("trace", trace, "--by", "priority", "--perfetto", "-").refused("--by and --perfetto")

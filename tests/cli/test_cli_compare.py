"""`compare`: a technique that fails, traces, and the sentences beneath the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.batching.static import Static
from minifuse.cli.leaders import leaders
from minifuse.cli.tables import cut_to
from minifuse.core.errors import LawBroken
from minifuse.trace.log import read_trace
from minifuse.trace.metrics import Metrics

Cli = Callable[..., Any]

VIRTUAL = ("--model", "random:small", "--clock", "virtual", "--requests", 3, "--output-length", 4)


@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError("no luck"), 1), (LawBroken("progress", "it stands still"), 1), (MemoryError(), 3)],
)
def test_a_technique_that_fails_is_named_and_the_others_go_on(
    minifuse: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Static, "propose", fail)
    outcome = minifuse("compare", "orca", "static", "fusion", *VIRTUAL, "--json")
    assert outcome.code == code
    compared = outcome.json()
    assert [row["technique"] for row in compared["techniques"]] == ["orca", "fusion"]
    (failed,) = compared["failed"]
    assert failed["technique"] == "static"
    assert " ".join(str(error).split()) in failed["error"]
    assert outcome.err.count("error: static failed, and has no row: ") == 1
    outcome = minifuse("compare", "static", "orca", *VIRTUAL)
    assert outcome.code == code
    assert [line.split()[0] for line in outcome.out.splitlines() if line][:3] == ["tokens", "technique", "orca"]


def test_without_any_row_there_is_no_table(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minifuse.cli.compare.build_engine", _fail_with_a_trace(monkeypatch))
    outcome = minifuse("compare", "static", "orca", *VIRTUAL)
    assert (outcome.code, outcome.out) == (3, "")
    assert outcome.err.count(" failed, and has no row: ") == 2


def _fail_with_a_trace(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    from minifuse.cli import compare as module

    build = module.build_engine  # type: ignore[attr-defined]

    def fail(*given: Any, into: Any = None) -> Any:
        if into is not None:  # the run, not the check before it
            raise OSError("no space")
        return build(*given)

    return fail


def test_each_technique_has_a_trace(minifuse: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "traces"
    assert minifuse("compare", "orca", "static", *VIRTUAL, "--trace", folder).code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["orca.jsonl", "static.jsonl"]
    for name in ("orca", "static"):
        events = read_trace(folder / f"{name}.jsonl")
        assert (events[0]["technique"], events[-1]["event"]) == (name, "end")
    assert minifuse("compare", "orca", "static", *VIRTUAL, "--trace", folder).code == 0  # as run's trace is


@pytest.mark.parametrize("way", ["prompts", "link", "a file", "beneath a file"])
def test_traces_are_not_written_where_they_must_not_be(minifuse: Cli, tmp_path: Path, way: str) -> None:
    prompts = tmp_path / "orca.jsonl"
    prompts.write_text('{"prompt_token_ids": [1]}\n')
    folder = {"prompts": tmp_path, "link": tmp_path / "links", "a file": prompts, "beneath a file": prompts / "x"}[way]
    if way == "link":
        folder.mkdir()
        (folder / "static.jsonl").symlink_to(prompts)
    virtual = ("--model", "random:small", "--clock", "virtual")
    outcome = minifuse("compare", "orca", "static", *virtual, "--prompts", prompts, "--trace", folder)
    outcome.refused("--trace")
    assert prompts.read_text() == '{"prompt_token_ids": [1]}\n'
    assert sorted(path.name for path in tmp_path.iterdir()) == ["links", "orca.jsonl"][way != "link" :]


def test_nothing_is_made_for_what_is_refused(minifuse: Cli, tmp_path: Path) -> None:
    outcome = minifuse("compare", "orca", "static", *VIRTUAL, "--kv-memory", 1, "--trace", tmp_path / "new")
    assert outcome.code == 2
    assert not list(tmp_path.iterdir())


def test_two_sentences_close_the_table(minifuse: Cli) -> None:
    crowd = ("--requests", 24, "--prompt-length", "uniform:4:64", "--output-length", "uniform:4:64")
    typed = ("compare", "static", "orca", *VIRTUAL[:4], *crowd, "--hardware", "a100-40g")
    compared = minifuse(*typed, "--json").json()
    lead, why = compared["verdict"]
    static, orca = (row["metrics"] for row in compared["techniques"])
    gain = orca["throughput"]["tokens_per_s"] / static["throughput"]["tokens_per_s"]
    speed, latency = lead.split("; ")
    assert speed == f"orca leads on tokens/s: {gain:.3g} times that of static"
    assert latency.startswith("orca has the shortest median TTFT: ")
    assert f"{static['tokens']['idle_share']:.0%} of the tokens that it computed were idle (orca: none)" in why
    shown = " ".join(minifuse(*typed).out.split())
    assert shown.endswith(f"{lead} {why}")
    real = minifuse("compare", "static", "orca", "--model", "random:small", "--requests", 2, "--json").json()
    assert "(one run each, whose spread is not known" in real["verdict"][0]


def metrics(speed: float, ttft: float = 1.0, **counts: Any) -> Metrics:
    found: Metrics = {
        "requests": {"stop": 4, "length": 0},
        "throughput": {"tokens_per_s": speed, "requests_per_s": speed / 10},
        "ttft_s": {"p50": ttft, "p99": counts.pop("late", 2 * ttft)},
        "e2e_s": {"p50": ttft, "p99": 2 * ttft},
        "itl_s": {"p99": 0.1},
        "queueing_s": {"mean": counts.pop("queueing", 0.0)},
        "tokens": {"output": 40, "computed": 100, "idle": 0, "recomputed": 0, "reused": 0},
        "iterations": 50,
        "mean_batch_size": 2.0,
        "evictions": 0,
        "moving_s": 0.0,
        "gathers": {"seconds": 0.0},
        "duration_s": 10.0,
        "other_cores": None,
    }
    found["tokens"] |= {
        name: counts.pop(name) for name in ("computed", "idle", "recomputed", "reused") if name in counts
    }
    return found | counts


@pytest.mark.parametrize(
    ("worse", "words"),
    [
        ({"computed": 200, "idle": 100}, "50% of the tokens that it computed were idle (a: none)"),
        (
            {"computed": 200, "recomputed": 100, "evictions": 7},
            "its tokens were computed again after 7 evictions",
        ),
        ({"computed": 180, "reused": 20}, "it found 20 tokens in memory, and computed 180 others (a: 0 and 100)"),
        ({"iterations": 200, "mean_batch_size": 1.0}, "it took 200 iterations of 1 in the mean, and a 50 of 2"),
        ({"moving_s": 5.0}, "moves of KV took 50% of its time (a: 0%)"),
        ({}, "No count alone tells b from a"),
    ],
)
def test_the_reason_is_what_the_counts_tell(worse: dict[str, Any], words: str) -> None:
    lead, why = leaders([("b", metrics(50.0, **worse)), ("a", metrics(100.0))], "transformer", "virtual")
    assert lead == "a leads on tokens/s: 2 times that of b; all are level on median TTFT, within 2%."
    assert words in why


def test_level_ones_lead_together_and_waiting_explains_latency() -> None:
    waiting, between = metrics(99.0, 2.0, queueing=1.5), metrics(98.5, 0.9, queueing=0.4)
    rows = [("a", metrics(100.0, 0.5)), ("b", waiting), ("c", between)]
    lead, why = leaders(rows, "transformer", "virtual")
    assert lead == (
        "All are level on tokens/s, within 2%; a has the shortest median TTFT: 500 ms, against 900 ms of c and 2 s of "
        "b, the last."
    )
    assert why == "What tells b from a: requests waited 1.5 s in the mean for their first step (a: 0 s)."
    lead, _ = leaders([*rows, ("d", metrics(10.0))], "transformer", "virtual")
    assert lead.startswith("a, b and c lead, level, on tokens/s: 10 times that of d;")


def test_who_answered_fewer_does_not_lead() -> None:
    fast = metrics(1000.0) | {"requests": {"stop": 1, "length": 0}}
    lead, _ = leaders([("a", fast), ("b", metrics(100.0)), ("c", metrics(50.0))], "transformer", "real")
    assert lead.startswith("b leads on tokens/s: 2 times that of c")
    assert lead.endswith("(a answered fewer requests; one run each, whose spread is not known).")
    assert len(leaders([("a", fast), ("b", metrics(100.0))], "transformer", "real")) == 1


def test_a_busy_machine_is_told() -> None:
    lead, _ = leaders([("a", metrics(2.0)), ("b", metrics(1.0, other_cores=0.9))], "transformer", "real")
    assert lead.endswith("(one run each, whose spread is not known; the machine was busy).")


def test_nothing_to_explain() -> None:
    rows = [("a", metrics(100.0)), ("b", metrics(100.0))]
    assert leaders(rows, "cells", "virtual") == [
        "All are level on tokens/s, within 2%; all are level on median end-to-end time, within 2%.",
        "There is no difference to explain.",
    ]


def test_what_differs_for_the_slowest_alone_is_a_difference() -> None:
    rows = [("a", metrics(100.0, late=2.0)), ("b", metrics(100.0, late=9.0, queueing=3.0))]
    assert leaders(rows, "transformer", "virtual")[1:] == [
        "a has the shortest 99th percentile of TTFT: 2 s, against 9 s of b.",
        "What tells b from a: requests waited 3 s in the mean for their first step (a: 0 s).",
    ]


def test_what_differs_for_one_user_alone_is_a_difference() -> None:
    groups = {
        name: {"user": {"ann": metrics(1.0), None: metrics(1.0, ttft, queueing=ttft)}, "priority": {0: metrics(1.0)}}
        for name, ttft in (("a", 90.0), ("b", 1.0))
    }
    level = [("a", metrics(100.0)), ("b", metrics(100.0))]
    named = "b has the shortest median TTFT of those without a user: 1 s, against 90 s of a."
    assert leaders(level, "transformer", "virtual", groups)[1:] == [
        named,
        "What tells a from b: requests of those without a user waited 90 s in the mean for their first step (b: 1 s).",
    ]
    faster = [("a", metrics(150.0)), ("b", metrics(100.0))]
    _, other, why = leaders(faster, "transformer", "virtual", groups)
    assert other == named
    assert why.startswith("No count alone tells b from a")
    alike = {name: {"user": {"ann": metrics(1.0), "ben": metrics(1.0)}} for name in "ab"}
    assert leaders(level, "transformer", "virtual", alike)[1:] == ["There is no difference to explain."]


@pytest.mark.parametrize("width", [1, 7, 8, 11, 12, 15, 80])
def test_a_table_is_cut_between_columns_alone(width: int) -> None:
    rows = [["one", "10", "200", "3"], ["other", "1", "2", "3000"]]
    tables = cut_to(width, ["\nname", "both\na", "both\nb", "\nc"], rows)
    shown = []
    for table in tables:
        lines = [[str(cell) for cell in column.cells] for column in table.columns]
        assert lines[0] == ["one", "other"]
        assert len(lines) == 2 or sum(1 + max(map(len, line)) for line in lines) - 1 <= width
        shown += lines[1:]
    assert shown == [["10", "1"], ["200", "2"], ["3", "3000"]]
    heads = [str(column.header) for table in tables for column in table.columns[1:]]
    assert heads == ["both\na", "\nb" if len(tables[0].columns) > 2 else "both\nb", "\nc"]
    assert len(cut_to(width, ["\nn"], [["1"]])) == 1

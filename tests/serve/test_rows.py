"""Rows and flat metrics, and docs/library.md, whose examples are run from top to bottom."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import refusal

import minifuse
from minifuse.core.errors import MachineError, UsageError
from minifuse.core.request import FinishReason
from minifuse.trace.metrics import flat_metrics
from minifuse.workload.laws import Uniform, parse_arrival
from minifuse.workload.synthetic import synthetic

LIBRARY = Path(minifuse.__file__).parents[1] / "docs" / "library.md"


def served(*more: minifuse.Request, into: Any = None) -> minifuse.Served:
    source = minifuse.resolve("random:small")
    settings = minifuse.Settings(clock="virtual", hardware="a100-40g")
    arrival = parse_arrival("poisson:1ms")
    requests = synthetic(9, Uniform(2, 30), Uniform(1, 12), source.config.vocab_size, arrival)
    row = minifuse.technique("orca")
    engine = minifuse.build_engine(minifuse.resolve_run(row, source, settings), source.outline(), into=into)
    return minifuse.serve(engine, [*requests, *more])


def tally(given: Iterable[float]) -> dict[str, float] | None:
    values = [*given]
    points = {f"p{percent}": float(np.percentile(values, percent)) for percent in (50, 90, 99)} if values else {}
    return {"mean": fmean(values), **points, "max": max(values)} if values else None


def test_the_package_is_called_as_its_function_is() -> None:
    parameters = inspect.signature(minifuse.serve).parameters
    assert [*parameters][:2] == ["engine", "requests"]


def test_rows_are_what_the_metrics_sum_up() -> None:
    run = served()
    rows, metrics = run.rows(), run.metrics()
    assert [row["id"] for row in rows] == [f"r{i}" for i in range(9)]
    for name in ("ttft_s", "tpot_s", "e2e_s", "normalized_latency_s"):
        values = [row[name] for row in rows if row[name] is not None]
        assert tally(values) == pytest.approx(metrics[name]), name
    assert sum(row["output_tokens"] for row in rows) == metrics["tokens"]["output"]
    assert {row["tpot_s"] is None for row in rows if row["output_tokens"] == 1} == {True}


@pytest.mark.parametrize("by", ["user", "priority", "conversation"])
def test_rows_by_group_are_what_the_rows_of_their_requests_sum_up(by: str) -> None:
    turns = [
        minifuse.Request(f"t{i}", (1, 2), 3, priority=i % 2, user="ann" if i else None, conversation=f"c{i % 3}")
        for i in range(6)
    ]
    run = served(*turns)
    rows, groups = run.rows(), run.rows(by=by)
    assert {group[by] for group in groups} == {row[by] for row in rows}
    for group in groups:
        own = [row for row in rows if row[by] == group[by]]
        assert (group["requests"], group["finished"]) == (len(own), len(own))
        assert group["output_tokens"] == sum(row["output_tokens"] for row in own)
        for name in ("ttft_s", "tpot_s", "e2e_s", "normalized_latency_s"):
            values = tally(row[name] for row in own if row[name] is not None)
            assert {part: group[f"{name}.{part}"] for part in values or {}} == pytest.approx(values), name
    if by == "priority":
        assert [group[by] for group in groups] == [1, 0]


def test_rows_by_what_is_no_group() -> None:
    with refusal(UsageError, "'usr'", "user", "priority", "conversation"):
        served().rows(by="usr")


def test_what_never_happened_is_none() -> None:
    turn = minifuse.Request("turn", (1, 2), 3, after="r0", delay_s=0.5, priority=7)
    *_, refused, follow = served(minifuse.Request("empty", ()), turn).rows()
    assert (refused["finish_reason"], refused["prompt_tokens"], refused["output_tokens"]) == ("refused", 0, 0)
    assert {refused[name] for name in refused if name.endswith("_s") and name != "arrival_s"} == {None}
    first = served().rows()[0]
    assert (follow["conversation"], follow["priority"], follow["prompt_tokens"]) == (None, 7, 2)
    assert follow["history_tokens"] == first["prompt_tokens"] + first["output_tokens"]
    assert follow["arrival_s"] == pytest.approx(first["finish_s"] + 0.5)
    assert follow["ttft_s"] == pytest.approx(follow["first_token_s"] - follow["arrival_s"])


def test_an_answer_that_was_cut_short_has_no_latencies() -> None:
    answer = replace(served().answers[0], finish_reason=FinishReason.ABORTED)
    row = answer.row()
    assert row["first_token_s"] is not None
    assert row["ttft_s"] is row["e2e_s"] is row["tpot_s"] is None


def test_metrics_of_events_that_were_not_kept_are_refused() -> None:
    with pytest.raises(UsageError):
        served(into=minifuse.RunningMetrics().read).metrics()


def test_flat_metrics_name_every_number() -> None:
    metrics = served().metrics()
    flat = flat_metrics(metrics)
    assert flat["ttft_s.p50"] == metrics["ttft_s"]["p50"]
    assert flat["kv.peak_used_bytes"] == metrics["kv"]["peak_used_bytes"]
    assert flat["moves.shuffle.count"] == 0
    assert flat["goodput"] is None
    assert not any(isinstance(value, dict) for value in flat.values())


def test_a_frame_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MachineError, match=r"pip install pandas, or use rows\(\)\.$"):
        served().to_frame()


def test_a_frame_has_a_line_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda records: ("frame", records)))
    run = served()
    assert run.to_frame() == ("frame", run.rows())


def test_a_frame_of_pandas() -> None:
    pytest.importorskip("pandas")
    frame = served().to_frame()
    assert list(frame["id"]) == [f"r{i}" for i in range(9)]
    assert frame["e2e_s"].mean() > 0


def test_the_examples_of_the_library_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", LIBRARY.read_text(), re.DOTALL)
    assert len(blocks) == 10
    monkeypatch.chdir(tmp_path)  # one writes a state file
    printed = io.StringIO()
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(compile(block, str(LIBRARY), "exec"), names)
    lines = printed.getvalue().splitlines()
    assert lines[0] == "['3 4 5 6 7 8 9', '2 5 7', 'fox fish queen']"
    assert [line.split()[:2] for line in lines[1:4]] == [[f"r{i}", "stop"] for i in range(3)]
    points = [[name, rate] for name in ("static", "orca") for rate in ("50", "1000") for _ in range(2)]
    assert [line.split()[:2] for line in lines[-16:-8]] == points
    assert lines[-8] == "{'ask': 'length', 'long': 'aborted'}"
    assert list(ast.literal_eval(lines[-7])) == ["ask", "other", "again"]
    assert lines[-6:-2] == ["{}", "['ok', '2 5 7']", "{}", "['ann 17']"]
    assert lines[-2:] == [" ok 0 0 0", " bob 4 4 0 0"]


def test_the_table_of_the_library_page_has_every_column() -> None:
    told = LIBRARY.read_text().partition("| column of a row")[2].partition("\n\n")[0]
    columns = re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in told.splitlines()[2:]))
    assert columns == list(served().answers[0].row())

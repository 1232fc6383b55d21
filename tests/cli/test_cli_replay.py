"""`replay`, and `--replay` of `run` and `compare`: pages of traces, and what cannot be one."""

import base64
import gzip
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.trace.log import decisions, read_trace

Cli = Callable[..., Any]

VIRTUAL = ("--model", "random:small", "--clock", "virtual", "--requests", 3, "--output-length", "fixed:4")


def runs_on(page: Path) -> list[dict[str, Any]]:
    """The runs of a page's record."""
    packed = re.search(r'id="record">([^<]*)<', page.read_text())
    assert packed is not None
    runs: list[dict[str, Any]] = json.loads(gzip.decompress(base64.b64decode(packed[1])))["runs"]
    return runs


@pytest.fixture
def traces(minifuse: Cli, tmp_path: Path) -> Path:
    """A folder of traces: of two techniques, and of another workload."""
    assert minifuse("compare", "orca", "static", *VIRTUAL, "--trace", tmp_path).code == 0
    assert minifuse("run", *VIRTUAL, "--seed", 5, "--trace", tmp_path / "other.jsonl").code == 0
    return tmp_path


def test_traces_make_a_page(minifuse: Cli, traces: Path) -> None:
    page = traces / "page.html"
    outcome = minifuse("replay", traces / "orca.jsonl", traces / "static.jsonl", "-o", page)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == f"note: {page} replays orca and static: open it in a browser.\n"
    assert [run["title"] for run in runs_on(page)] == ["orca", "static"]


def test_a_trace_that_was_cut_off_makes_a_page_with_a_note(minifuse: Cli, traces: Path) -> None:
    cut, page = traces / "cut.jsonl", traces / "page.html"
    cut.write_text((traces / "orca.jsonl").read_text()[:-150])
    outcome = minifuse("replay", cut, "-o", page)
    assert outcome.code == 0
    assert outcome.err.startswith("note: ")
    assert "was cut off in line" in outcome.err
    assert "was cut off in line" in runs_on(page)[0]["notice"]


def test_standard_input_makes_a_page(minifuse: Cli, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = traces / "page.html"
    monkeypatch.setattr("sys.stdin", io.StringIO((traces / "orca.jsonl").read_text()))
    assert minifuse("replay", "-", traces / "static.jsonl", "-o", page).code == 0
    assert [run["title"] for run in runs_on(page)] == ["orca", "static"]


def test_a_page_is_no_stream(minifuse: Cli, traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(traces)
    sentence = "is -, and a page is a file that a browser opens: give it a name, such as page.html"
    minifuse("replay", "orca.jsonl", "-o", "-").refused(f"-o {sentence}")
    minifuse("run", *VIRTUAL, "--replay", "-").refused(f"--replay {sentence}")
    minifuse("compare", "orca", "static", *VIRTUAL, "--replay", "-").refused(f"--replay {sentence}")
    minifuse("replay", "-", "-", "-o", "page.html").refused("names a trace twice")
    assert not (traces / "-").exists()


def test_a_page_stands_beside_json_and_lanes_are_of_one_run(minifuse: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    outcome = minifuse("run", *VIRTUAL, "--replay", page, "--json")
    assert len(outcome.json()["outputs"]) == 3
    assert [run["title"] for run in runs_on(page)] == ["orca"]
    minifuse("compare", "orca", "static", *VIRTUAL, "--live").refused("No such option: --live")


def test_what_makes_no_page_is_refused_in_a_sentence(minifuse: Cli, traces: Path) -> None:
    orca, page = traces / "orca.jsonl", traces / "page.html"
    (traces / "empty.jsonl").write_text("")
    minifuse("replay").refused("No trace is given", "--trace")
    minifuse("replay", orca).refused("-o is not given")
    minifuse("replay", orca, orca, "-o", page).refused("names a trace twice")
    minifuse("replay", orca, "-o", orca).refused("-o is", "a file of its own")
    (traces / "same.html").hardlink_to(orca)
    minifuse("replay", orca, "-o", traces / "same.html").refused("-o is", "a file of its own")
    minifuse("replay", orca, "-o", traces / "no" / "page.html").refused("cannot be written")
    minifuse("replay", traces / "nowhere.jsonl", "-o", page).refused("cannot be read")
    minifuse("replay", traces / "empty.jsonl", "-o", page).refused("is empty")
    minifuse("replay", orca, traces / "other.jsonl", "-o", page).refused("different workloads", "r0")
    assert not page.exists()


def test_a_run_leaves_a_page_that_tells_why_each_request_waits(minifuse: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    outcome = minifuse("run", *VIRTUAL, "--technique", "static", "--max-batch", 1, "--replay", page)
    assert outcome.code == 0
    assert f"note: {page} replays static: open it in a browser." in outcome.err
    (run,) = runs_on(page)
    assert [bool(request.get("waits")) for request in run["requests"]] == [False, True, True]
    reasons = run["requests"][2]["waits"][2]  # it waits behind r1, and then for the batch
    assert [run["reasons"][one][0] for one in reasons if one >= 0] == ["batch-full", "batch-running"]
    assert any(one < 0 for one in reasons)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"], "its trace was not asked for"


def test_a_comparison_leaves_one_page_of_all_techniques(minifuse: Cli, tmp_path: Path) -> None:
    page, traces = tmp_path / "page.html", tmp_path / "traces"
    outcome = minifuse("compare", "orca", "static", *VIRTUAL, "--replay", page, "--trace", traces, "--json")
    assert outcome.code == 0
    assert outcome.json()["schema"] == "minifuse.compare/2"
    assert [run["title"] for run in runs_on(page)] == ["orca", "static"]
    assert sorted(path.name for path in traces.iterdir()) == ["orca.jsonl", "static.jsonl"]


@pytest.mark.parametrize("typed", [("run", "--technique", "static"), ("compare", "static", "orca")])
def test_a_run_decides_and_tells_the_same_with_a_page_of_it(minifuse: Cli, tmp_path: Path, typed: Any) -> None:
    """It is not asked for every reason: those are found out afterwards."""
    told = []
    for more in ((), ("--replay", tmp_path / "page.html")):
        trace = tmp_path / str(len(more))
        assert minifuse(*typed, *VIRTUAL, "--max-batch", 1, "--trace", trace, *more).code == 0
        told.append(decisions(read_trace(trace / "static.jsonl" if trace.is_dir() else trace)))
    assert told[0] == told[1]


def test_a_technique_that_served_nothing_is_not_on_the_page(minifuse: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    tight = ("--kv-memory", "512KiB")
    outcome = minifuse("compare", "vllm", "fusion", *VIRTUAL, *tight, "--replay", page)
    assert "note: fusion served no request, and is not on the page." in outcome.err
    assert [run["title"] for run in runs_on(page)] == ["vllm"]


def test_a_page_is_not_written_over_what_the_run_uses(minifuse: Cli, tmp_path: Path) -> None:
    prompts, trace = tmp_path / "prompts.jsonl", tmp_path / "trace.jsonl"
    prompts.write_text('{"prompt_token_ids": [3, 4]}\n')
    asked = ("run", "--model", "random:small", "--clock", "virtual", "--prompts", prompts)
    minifuse(*asked, "--replay", prompts).refused("--replay is", "this command reads")
    minifuse(*asked, "--trace", trace, "--replay", trace).refused("--replay is", "a file of its own")
    minifuse(*asked, "--trace", "-", "--replay", tmp_path / "page.html").refused("--trace -", "give --trace a file")
    assert prompts.read_text() == '{"prompt_token_ids": [3, 4]}\n'

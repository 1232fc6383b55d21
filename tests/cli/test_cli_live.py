"""`minifuse run --live`: lanes and memory on a terminal, lines elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from minifuse.cli import display as displays
from minifuse.cli.display import in_use
from minifuse.cli.lanes import Lanes, lane_of, legend, map_of_memory
from minifuse.cli.progress import EVERY, ProgressLines
from minifuse.core.report import StepReport
from minifuse.core.request import Phase, Request
from minifuse.model.source import resolve
from minifuse.serve.build import build_engine
from minifuse.serve.engine import ServingEngine
from minifuse.serve.resolve import resolve_run
from minifuse.serve.settings import Settings
from minifuse.techniques import technique
from minifuse.trace.log import read_trace

Cli = Callable[..., Any]

CROWD = ("run", "--model", "random:small", "--clock", "virtual", "--requests", 8, "--live")
CELLS = ("--model", "lstm:hidden=8,vocab=9", "--workload", "wmt15:fixed=9")


def progress(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("iteration ")]


# --- piped


def test_piped_a_line_tells_of_so_many_iterations(minifuse: Cli, tmp_path: Path) -> None:
    trace = tmp_path / "run.jsonl"
    outcome = minifuse(
        *CROWD, "--technique", "static", "--max-batch", 4, "--output-length", "uniform:5:30", "--trace", trace
    )
    assert outcome.code == 0
    steps = [event for event in read_trace(trace) if event["event"] == "step"]
    lines = progress(outcome.err)
    numbers = [int(re.findall(r"iteration (\d+) at", line)[0]) for line in lines]
    assert numbers == [*range(EVERY, len(steps), EVERY), len(steps)]
    computed = [int(re.findall(r"([\d,]+) computed", line)[0].replace(",", "")) for line in lines]
    assert sum(computed) == sum(step["computed"] for step in steps)
    assert lines[-1].startswith(f"iteration {len(steps)} at ")
    assert ": 8 of 8 ended, 0 run, 0 wait; " in lines[-1]
    ended = sorted(name for line in lines for name in line.partition("; ended ")[2].split())
    assert ended == sorted(f"r{i}" for i in range(8))
    assert outcome.out.count(" -> ") == 8


def test_piped_evictions_are_named(minifuse: Cli) -> None:
    typed = ("--technique", "vllm", "--kv-memory", "768KiB", "--prompt-length", 16, "--output-length", 40)
    outcome = minifuse(*CROWD, *typed)
    assert outcome.code == 0
    assert any("; evicted r" in line for line in progress(outcome.err))


def test_piped_json_is_alone_on_stdout(minifuse: Cli) -> None:
    outcome = minifuse(*CROWD, "--output-length", 4, "--json")
    assert len(outcome.json()["outputs"]) == 8
    assert len(progress(outcome.err)) == 1


def test_piped_cells(minifuse: Cli) -> None:
    outcome = minifuse("run", *CELLS, "--clock", "virtual", "--requests", 3, "--live")
    assert outcome.code == 0
    assert ": 3 of 3 ended, 0 run, 0 wait; " in progress(outcome.err)[-1]


def test_without_it_there_are_no_such_lines(minifuse: Cli) -> None:
    assert progress(minifuse(*CROWD[:-1], "--output-length", 4).err) == []


@pytest.mark.parametrize("other", [("--why",), ("--trace", "-")])
def test_what_fills_the_same_stream_is_refused(minifuse: Cli, other: tuple[str, ...]) -> None:
    minifuse(*CROWD, *other).refused("--live and", other[0])


# --- on a terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """stderr looks like a terminal of 80 columns and 24 rows, and a picture is drawn after every iteration."""

    def console(stderr: bool = False) -> Console:
        import sys

        stream = sys.stderr if stderr else sys.stdout
        return Console(file=stream, force_terminal=stderr, width=80, height=24, color_system=None, highlight=False)

    monkeypatch.setattr(displays, "console", console)
    monkeypatch.setattr(displays, "MIN_GAP_S", 0.0)
    monkeypatch.setattr(displays, "COST_SHARE", 1e9)
    monkeypatch.setattr(displays, "LANES_COST_SHARE", 1e9)
    monkeypatch.setattr("_pytest.capture.CaptureIO.isatty", lambda stream: True, raising=False)


def picture(err: str) -> list[str]:
    """The lines of the last one."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err)
    return plain.rpartition("on random:small")[2].splitlines()


@pytest.mark.usefixtures("terminal")
def test_lanes_and_memory_are_drawn(minifuse: Cli) -> None:
    outcome = minifuse(*CROWD, "--technique", "orca", "--max-batch", 2, "--output-length", 6)
    assert outcome.code == 0
    assert outcome.err.count("slots 0-") > 10
    lines = picture(outcome.err)
    assert any(re.fullmatch(r"  r0 +p####\|", line) for line in lines), lines
    assert any(re.fullmatch(r"B r7 +\.{18}p####\|", line) for line in lines), lines
    assert any(re.fullmatch(r"slots 0-106 +A+B+\.+", line) for line in lines), lines
    assert any(line.startswith("memory ") and " used and " in line for line in lines)
    assert progress(outcome.err) == []


@pytest.mark.usefixtures("terminal")
def test_there_are_no_more_lanes_than_rows(minifuse: Cli) -> None:
    outcome = minifuse(*CROWD[:-1], "--requests", 100, "--output-length", 3, "--live")
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", outcome.err).split("on random:small")[1:-1]
    assert any("more run or wait" in frame for frame in frames)
    assert max(len(re.findall(r"(?m)^[A-Za-z ] r\d+ ", frame)) for frame in frames) == 15


@pytest.mark.usefixtures("terminal")
def test_the_evicted_do_not_count_as_running(minifuse: Cli) -> None:
    typed = ("--technique", "vllm", "--kv-memory", "768KiB", "--prompt-length", 16, "--output-length", 40)
    outcome = minifuse(*CROWD, *typed)
    frames = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", outcome.err).split("on random:small")[1:-1]
    suspended = 0
    for frame in frames:
        running, _ = re.findall(r"(?m)^ +(\d+) +(\d+) ", frame)[0]
        last = [row[-1] for row in re.findall(r"(?m)^[A-Za-z ] r\d+ +(\S+)", frame)]
        suspended += last.count("~")
        assert int(running) == sum(mark not in "~.|" for mark in last)
    assert suspended, "none was evicted"


@pytest.mark.usefixtures("terminal")
def test_without_it_the_picture_has_no_lanes(minifuse: Cli) -> None:
    outcome = minifuse(*CROWD[:-1], "--output-length", 4)
    assert "KV in use" in outcome.err
    assert "slots 0-" not in outcome.err


# --- what a lane says


def crowd(name: str, slots: int, **options: object) -> ServingEngine:
    """Three requests in memory for so many tokens."""
    source = resolve("random:small")
    settings = Settings(clock="virtual", kv_memory=source.slot_bytes("float32") * slots, stage_options=options)
    engine = build_engine(resolve_run(technique(name), source, settings), source.outline("float32", 0))
    for i in range(3):
        engine.submit(Request(f"r{i}", (1,) * 16, 24, arrival_s=i * 1e-5))
    return engine


def run(name: str, slots: int, **options: object) -> tuple[ServingEngine, Lanes, list[StepReport]]:
    """The same, to the end."""
    engine = crowd(name, slots, **options)
    lanes, reports = Lanes(engine), []
    for report in engine.run():
        lanes.step(report)
        reports.append(report)
    engine.close()
    return engine, lanes, reports


def test_a_lane_is_told_backwards_from_what_is_known_now() -> None:
    """At every moment the lanes are the beginnings of those at the end, but for the last sign of who has just ended."""
    _, lanes, reports = run("vllm", 80)
    whole = {line.split()[0]: line.split()[-1] for line in lanes.lines(200, 10) if line.startswith("  r")}
    assert set("".join(whole.values())) >= {"p", "#", "~", "|"}
    for name, signs in whole.items():
        assert "." not in signs.lstrip(".")  # who is evicted is suspended until it is back, and does not wait anew
        evicted = sum(name in report.plan.evicted for report in reports)
        assert len(re.findall("~+", signs)) == evicted
        assert signs.count("#") + signs.count("p") == sum(name in report.plan.sequences for report in reports) - 1


def test_who_is_suspended_now_is_drawn_so_since_its_eviction() -> None:
    engine = crowd("vllm", 80)
    lanes, suspended = Lanes(engine), 0
    since: dict[str, int] = {}  # iterations since each was evicted, that one included
    for report in engine.run():
        lanes.step(report)
        drawn = {line.split()[-2]: line.split()[-1] for line in lanes.lines(200, 10) if re.match(r". r\d", line)}
        since = {name: since.get(name, 0) + 1 for name in {*since, *report.plan.evicted} - {*report.plan.admitted}}
        for name, number in since.items():
            suspended += 1
            assert re.search(r"[p#]~+$", drawn[name])
            assert len(drawn[name]) - len(drawn[name].rstrip("~")) == number
    assert suspended > 5


def test_a_line_counts_who_runs_and_who_waits() -> None:
    """Of each iteration, of memory in which some are evicted."""
    engine = crowd("vllm", 80)
    progress, evicted = ProgressLines(engine, 3), []
    for report in engine.run():
        phases = [one.phase for one in engine.sequences.values()]
        line = progress.step(report) or progress.last()
        assert line is not None
        assert f"{phases.count(Phase.RUNNING)} run, {len(phases) - phases.count(Phase.RUNNING)} wait; " in line
        evicted += re.findall(r"; evicted (r\d)", line)
        assert (f"; evicted {' '.join(report.plan.evicted)}" in line) == bool(report.plan.evicted)
    assert evicted


def test_beside_another_worker_a_lane_goes_on() -> None:
    """Three instances run at the same time, each on a worker of its own: no lane has holes."""
    _, lanes, _ = run("instances", 400)
    whole = [line.split()[-1] for line in lanes.lines(200, 10) if line[2:3] == "r"]
    assert len(whole) == 3
    assert all(re.fullmatch(r"\.*p+#+\|", signs) for signs in whole), whole


def test_a_request_that_has_not_come_has_no_sign() -> None:
    engine, _, reports = run("serial", 80)
    late = replace(engine.finished["r2"], request=Request("r2", (1,), 1, arrival_s=1e9), finish_reason=None)
    columns = [(report, {work.sequence: [work] for work in report.plan.work}) for report in reports[:3]]
    assert lane_of("r2", late, columns, None, 1) == "   "
    soon = replace(late, request=Request("r2", (1,), 1, arrival_s=reports[1].started_s))
    assert lane_of("r2", soon, columns, None, 1) == " .."


def batch(name: str) -> list[str]:
    """The picture at the end of a batch of requests that arrive at once and have answers of 9, 3, 5 and 2 tokens."""
    source = resolve("random:small")
    settings = Settings(clock="virtual", kv_memory=source.slot_bytes("float32") * 300)
    engine = build_engine(resolve_run(technique(name), source, settings), source.outline("float32", 0))
    requests = [Request(f"r{i}", (1,) * 8, answer) for i, answer in enumerate((9, 3, 5, 2))]
    for request in requests:
        engine.submit(request)
    lanes = Lanes(engine, requests)
    for report in engine.run():
        lanes.step(report)
    engine.close()
    return [*lanes.lines(80, 10)]


def test_a_row_that_is_computed_after_its_end_is_idle_and_keeps_its_slots() -> None:
    assert batch("static")[:5] == [
        "A r0           p#######|",
        "B r1           p#|xxxxxx",
        "C r2           p###|xxxx",
        "D r3           p|xxxxxxx",
        "slots 0-56     AAAAAAAAAAAAAAAABBBBBBBBBB......CCCCCCCCCCCC....DDDDDDDDD",
    ]


def test_rows_are_in_the_order_of_arrival_and_what_has_ended_is_free() -> None:
    assert batch("orca")[:4] == [
        "A r0           p#######|",
        "  r1           p#|",
        "  r2           p###|",
        "  r3           p|",
    ]


def test_the_prompt_of_what_has_ended_is_still_a_prompt() -> None:
    """Of fusion the last token of a prompt is computed in the main stream, one token alone."""
    _, lanes, _ = run("fusion", 400)
    ended = [line.split()[-1] for line in lanes.lines(200, 10) if line[2:3] == "r"]
    assert len(ended) == 3
    assert all(re.fullmatch(r"\.*o+-*p+#+\|", signs) for signs in ended), ended


def test_the_legend_fits_its_lines_and_tells_of_letters() -> None:
    assert max(map(len, legend(40))) <= 40
    assert " ".join(legend(80)).endswith("; letters: the request that has the slots")
    assert len(legend(80)) == 2


def test_memory_in_use_does_not_vanish() -> None:
    assert in_use(3 * 2**20 // 2, 64 * 2**20) == "1.5 of 64 MiB"
    assert in_use(0, 64 * 2**20) == "0 of 64 MiB"
    assert in_use(2304, 300_000) == "2.2 of 293 KiB"
    assert in_use(2304, 2**20) == "2.2 KiB of 1 MiB"
    assert in_use(96, 512) == "96 of 512 B"
    assert in_use(0, 0) == "0 of 0 B"


def test_the_map_of_memory_shows_most_of_each_part() -> None:
    owned = [("A", range(4)), ("B", range(6, 8))]
    assert map_of_memory(owned, 10, 5) == "AA.B."
    assert map_of_memory(owned, 10, 10) == "AAAA..BB.."
    assert map_of_memory(owned, 10, 2) == "AB"
    assert map_of_memory(owned, 10, 80) == "AAAA..BB.."
    assert map_of_memory([], 3, 3) == "..."

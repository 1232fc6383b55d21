"""`minifuse reproduce`: the list, tables, JSON, files, what is refused, and Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from papers.figures import quickly

from minifuse import papers as command
from minifuse.cli import findings
from minifuse.cli.text import time_left
from minifuse.papers import EXPERIMENTS
from minifuse.papers.experiment import Column, Conditions, Experiment, Finding, Panel, Point, Say

Cli = Callable[..., Any]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    quickly(monkeypatch)


VIRTUAL = ("--scale", "paper", "--tokens", "4", "--rounds", "1")  # no weights, no waiting
SMALL = {"tokens": 4, "hidden": 4, "requests": 8}
SERVING = {f"pensieve-fig3.{number}" for number in (12, 13, 14, 15, 16, 18)}  # seconds each, in real time
LONGEST = SERVING | {  # another figure of the same paper has such tables and pictures
    *("flover-fig9", "flover-fig10", "batchmaker-fig2.11", "batchmaker-fig2.13", "batchmaker-fig2.15"),
    *("baton-table1", "fluidinfer-fig12"),
}
COLUMN_KEYS = {"at", "measured", "paper"}


def test_the_list_names_every_figure_in_one_line_of_words(minifuse: Cli) -> None:
    said = minifuse("reproduce", "--list")
    assert (said.code, said.err) == (0, "")
    text = " ".join(said.out.split())
    assert max(map(len, said.out.splitlines())) <= 80
    for row in EXPERIMENTS.values():
        assert f"{row.name} {row.paper} {row.figure}" in text
        assert "\n" not in row.shows
    assert "minifuse reproduce flover runs all of Flover's" in text


def test_the_list_as_json(minifuse: Cli) -> None:
    listed = minifuse("reproduce", "--list", "--json").json()
    assert listed["schema"] == "minifuse.reproduce.list/1"
    assert [row["name"] for row in listed["figures"]] == list(EXPERIMENTS)
    assert all(set(row) == {"name", "paper", "figure", "shows"} for row in listed["figures"])


def test_a_figure_in_real_time(minifuse: Cli) -> None:
    said = minifuse("reproduce", "flover-fig7", "--scale", "quick", "--tokens", "4", "--rounds", "2")
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("flover-fig7: 2 to 8 requests")
    assert [line.split()[0] for line in lines[5:9]] == ["500", "500", "5000", "5000"]
    assert lines[5].split()[1:5] == ["84.6%", "84.1%", "1", "2"]
    assert "1.7x" in lines[5].split()
    assert "random:small in" in said.out
    assert "4 tokens a request, medians of 2 rounds, real time" in said.out
    assert "tokens/s of the fused stream at batch 1, 2, 4, 8, 16, 32: " in said.out
    assert "flover-fig7: every 500 ms, 2 requests of batch 1\n" in said.err


def test_all_figures_of_a_paper_as_one_json_object(minifuse: Cli) -> None:
    said = minifuse("reproduce", "flover", *VIRTUAL, "--seed", "5", "--json")
    found = said.json()
    assert found["schema"] == "minifuse.reproduce/1"
    assert [figure["name"] for figure in found["figures"]] == [
        "flover-fig7",
        "flover-fig8",
        "flover-fig9",
        "flover-fig10",
    ]
    assert [len(figure["panels"]) for figure in found["figures"]] == [3, 6, 6, 3]
    for figure in found["figures"]:
        assert (figure["scale"], figure["model"], figure["dtype"]) == ("paper", "random:gpt-j-6b", "float16")
        assert (figure["tokens"], figure["rounds"], figure["seed"]) == (4, 1, 5)
        assert set(figure["fused_tokens_per_s"]) == {"1", "2", "4", "8", "16", "32"}
        assert all(set(point) == COLUMN_KEYS for panel in figure["panels"] for point in panel["points"])
    fig8 = found["figures"][1]["panels"][0]["points"]
    assert fig8[1]["paper"] == {"overlap": 0.818, "iterations": 616, "iterations_per_token": 616 / 512, "speedup": 11.1}
    assert "Poisson" in said.err


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in LONGEST else ())
        for name in EXPERIMENTS
        if name != "simulator-error"  # needs a profile: see tests/papers/simulator
    ],
)
def test_tables_fit_a_terminal_and_files_are_named_after_the_figure(
    minifuse: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    made: list[findings.Progress] = []
    honest = findings.Progress.__init__

    def init(self: findings.Progress, name: str, seconds: float | None = None) -> None:
        honest(self, name, seconds)
        made.append(self)

    monkeypatch.setattr(findings.Progress, "__init__", init)
    scale = "paper" if name.startswith("flover") else "quick"
    row = EXPERIMENTS[name]
    takes = row.takes - {"requests"} if name in SERVING else row.takes  # few may all arrive before the measured period
    small = [part for key, value in SMALL.items() if key in takes for part in (f"--{key}", value)]
    said = minifuse("reproduce", name, "--scale", scale, *small, "--rounds", "1", "--out", tmp_path)
    assert said.code == 0
    assert said.out.startswith(f"{name}: {row.shows}")
    endings = ["-dark.png", ".json", ".md", ".png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}-{scale}{ending}" for ending in endings]
    text = (tmp_path / f"{name}-{scale}.md").read_text()
    assert text.startswith(f"# {name}: {row.paper}, {row.figure}\n")
    assert f'srcset="{name}-{scale}-dark.png"><img src="{name}-{scale}.png" alt="{name}">' in text
    assert max(len(line.rstrip()) for line in said.out.splitlines()[1:] if not line.startswith("- ")) <= 80
    (progress,) = made
    sweeps = len(progress.kept) if name.startswith("batchmaker") else 0  # each may add a rate, or end before the last
    assert 0 < progress.said <= progress.expected + sweeps
    assert progress.expected <= progress.said + 3 * sweeps
    kept = {"batchmaker-fig2.5": 0, "batchmaker-fig2.13": 2}  # takes no time; two numbers of workers
    assert len(progress.kept) >= kept.get(name, 1)


def test_files_hold_what_is_shown(minifuse: Cli, tmp_path: Path) -> None:
    said = minifuse("reproduce", "flover-fig9", *VIRTUAL, "--json", "--out", tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".png"}
    assert json.loads((tmp_path / "flover-fig9-paper.json").read_text()) == said.json()
    text = (tmp_path / "flover-fig9-paper.md").read_text()
    assert text.startswith("# flover-fig9: Flover, Fig. 9\n")
    assert "## Fig. 9b: shuffle against none, 16 requests" in text
    head = next(line for line in text.splitlines() if line.startswith("| lengths paper | lengths here |"))
    rows = [line for line in text.splitlines() if line.startswith("| 128-")]
    assert len(rows) == 3 * (3 + 4)  # on three machines
    assert rows[0].count("|") == head.count("|")
    assert all(f"- {note}" in text for note in said.json()["figures"][0]["notes"])


BAD = [
    ([], ["No figure was named", "--list", "flover-fig7"]),
    (["flover-fig77"], ["'flover-fig77'", 'did you mean "flover-fig7"']),
    (["flovr"], ["'flovr'", 'did you mean "flover"']),
    (["flover-fig7", "--list"], ["--list", "'flover-fig7'", "give one of them"]),
    (["flover", "--scale", "papre"], ['--scale is "papre"', 'did you mean "paper"', "quick, cpu or paper"]),
    (["flover", "--dtype", "float8"], ['--dtype is "float8"', "auto"]),
    (["flover", "--tokens", "3"], ['--tokens is "3"', "from 4"]),
    (["flover", "--tokens", "many"], ['--tokens is "many"']),
    (["flover", "--rounds", "0"], ['--rounds is "0"', "from 1"]),
    (["flover", "--seed", "-1"], ['--seed is "-1"', "from 0"]),
    (["flover", "--model", "small"], ["'small'", "random:small"]),
    (["flover", "--scale", "quick", "--tokens", "600"], ["--tokens 600", "at most 582"]),
    (["flover", "--scale", "paper", "--model", "random:opt-66b"], ["40 GB", "smaller --model"]),
    (["batchmaker-fig2.7", "--hidden", "0"], ['--hidden is "0"', "from 1"]),
    (["batchmaker-fig2.7", "--hidden", "65537"], ["to 65536"]),
    (["batchmaker-fig2.7", "--requests", "7"], ['--requests is "7"', "from 8"]),
    (["batchmaker-fig2.7", "--rates", "fast"], ['A rate of --rates is "fast"', "0.001"]),
    (["batchmaker-fig2.7", "--rates", "0.5,0"], ['A rate of --rates is "0"']),
    (["batchmaker-fig2.7", "--rates", ""], ['A rate of --rates is ""']),
    (["batchmaker-fig2.7", "--rates", "0.5,300"], ['--rates is "0.5,300"', "mixes", "up to 2", "one or the other"]),
    (["batchmaker-fig2.7", "--rates", ",".join(["1"] * 65)], ["--rates has 65", "at most 64"]),
    (["batchmaker-fig2.7", "--model", "lstm"], ["--model is given", "no use for it", "flover-fig7"]),
    (["batchmaker", "--tokens", "8"], ["--tokens is given, and batchmaker has no use"]),
    (["batchmaker-fig2.5", "--hidden", "8"], ["--hidden is given", "batchmaker-fig2.3"]),
    (["pensieve-fig3.4", "--conversations", "x"], ["--conversations is given, and pensieve-fig3.4 has no use for it"]),
    (["pensieve-fig3.12", "--conversations", "none.json"], ["none.json cannot be read (No such file or directory)"]),
    (["batchmaker-fig2.9", "--rates", "0.5"], ["--rates is given", "batchmaker-fig2.7"]),
    (["flover-fig7", "--hidden", "8"], ["--hidden is given, and flover-fig7", "batchmaker-fig2.3"]),
    (["pensieve-fig3.17", "--requests", "8"], ["--requests is given, and pensieve-fig3.17", "batchmaker-fig2.7"]),
    (["pensieve", "--hidden", "8"], ["--hidden is given, and pensieve has no use"]),
    (["flover", "--no-such-flag"], ["--no-such-flag", "minifuse reproduce --help"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_bad_input_is_one_sentence_and_writes_nothing(
    minifuse: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    monkeypatch.setattr(findings, "Progress", None)  # nothing may begin to run: a figure can take an hour
    minifuse("reproduce", *arguments, "--out", tmp_path).refused(*words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["missing", "a file", "zero byte"])
def test_a_folder_that_cannot_be_written_to_is_refused_at_once(minifuse: Cli, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file"
    file.touch()
    given = {"missing": tmp_path / "none", "a file": file, "zero byte": "a\0b"}[kind]
    minifuse("reproduce", "flover", *VIRTUAL, "--out", given).refused("--out is", "give a folder that exists")
    assert list(tmp_path.iterdir()) == [file]


def experiment(number: str, interrupted: bool = False) -> Experiment:
    def run(say: Callable[[str], None]) -> Finding:
        say("the first point")
        if interrupted:
            raise KeyboardInterrupt
        points = (Point({"n": 1}, {"s": 2.5}, {}), Point({"n": 2}, {}, {"s": 1234.5}))
        columns = (Column("\nn", "at", "n"), Column("time\nhere", "measured", "s"), Column("time\npaper", "paper", "s"))
        return Finding({"scale": "quick"}, (Panel("A panel", columns, points),), ("A note.",))

    return Experiment("Some", number, "nothing", lambda conditions: run)


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_keeps_the_figures_that_are_complete(
    minifuse: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_json: bool
) -> None:
    rows = (experiment("1"), experiment("2", interrupted=True), experiment("3"))
    monkeypatch.setattr(command, "experiments", lambda name: rows)
    said = minifuse("reproduce", "some", "--out", tmp_path, *(["--json"] if as_json else []))
    assert said.code == 130
    assert said.err.splitlines() == [
        "some-fig1: the first point",
        "some-fig2: the first point",
        "error: Interrupted: nothing is shown of some-fig2, some-fig3: run it again.",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some-fig1.json", "some-fig1.md"]
    if as_json:
        assert [figure["name"] for figure in said.json()["figures"]] == ["some-fig1"]
    else:
        assert [line.rstrip() for line in said.out.splitlines()] == [
            "some-fig1: nothing (Some, Fig. 1).",
            "",
            "A panel",
            "  time",
            "n here paper",
            "1  2.5     -",
            "2    - 1,234",
            "",
            "- A note.",
            "",
        ]


@pytest.mark.parametrize("last", [False, True])
def test_ctrl_c_keeps_the_points_that_have_been_measured(
    minifuse: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, last: bool
) -> None:
    def run(say: Say) -> Finding:
        say.expect(3)
        say("the first point")
        for number in (1, 2):
            say.keep(
                Panel("A panel", (Column("\nn", "at", "n"),), tuple(Point({"n": n}, {}, {}) for n in range(number)))
            )
            say(f"point {number + 1}")
        raise KeyboardInterrupt

    rows = (Experiment("Some", "1", "nothing", lambda conditions: run), *([] if last else [experiment("2")]))
    monkeypatch.setattr(command, "experiments", lambda name: rows)
    said = minifuse("reproduce", "some", "--out", tmp_path)
    assert "error: Interrupted: some-fig1 is incomplete" in said.err
    assert ("nothing is shown of some-fig2" in said.err) is not last
    assert "- Interrupted after 2 of 3 measurements: the rest is missing." in said.out
    assert [line.strip() for line in said.out.splitlines()[5:7]] == ["0", "1"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "some-fig1-interrupted.json",
        "some-fig1-interrupted.md",
    ]
    (figure,) = minifuse("reproduce", "some", "--json").json()["figures"]
    assert figure["interrupted"] is True
    assert [point["at"]["n"] for point in figure["panels"][0]["points"]] == [0, 1]


@pytest.mark.parametrize(
    ("clock", "cores", "note"),
    [
        ("real", 0.125, ("Other processes used 0.12 of 2 cores meanwhile.",)),
        ("real", 1.0, ("Other processes used 1.00 of 2 cores meanwhile, so these times compare with no others.",)),
        ("real", None, ()),
        ("virtual", 1.0, ()),
    ],
)
def test_times_are_shown_with_what_ran_beside(
    monkeypatch: pytest.MonkeyPatch, clock: str, cores: float | None, note: tuple[str, ...]
) -> None:
    monkeypatch.setattr(findings, "usable_cores", lambda: {0, 1})
    found = findings.beside_others(Finding({"clock": clock}, (), ()), cores)
    assert found.notes == note
    assert found.facts.get("other_cores") == (cores if note else None)


def test_the_time_left_is_told_from_what_has_been_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    began, now = now, now + 30.0
    assert time_left(0, 4, began) == time_left(4, 4, began) == ""
    assert time_left(1, 2, began) == ", about 30 s left"
    assert time_left(1, 21, began) == ", about 10 min left"
    assert time_left(1, 1201, began) == ", about 10.0 h left"
    now = began + 0.5
    assert time_left(1, 100, began) == ""


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_ctrl_c_while_measuring(start: Cli) -> None:
    process: subprocess.Popen[str] = start("reproduce", "flover-fig7", "--scale", "quick", "--tokens", "16")
    assert process.stderr is not None
    while "one request alone" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "error: Interrupted: nothing is shown of flover-fig7: run it again."


def test_minutes_end_a_figure_with_what_was_measured(minifuse: Cli, tmp_path: Path) -> None:
    said = minifuse("reproduce", "flover-fig7", *VIRTUAL, "--minutes", "0.001", "--out", tmp_path)
    assert said.code == 0
    assert "- Ended by --minutes 0.001 after " in said.out
    assert {path.name for path in tmp_path.iterdir()} >= {"flover-fig7-paper-interrupted.md"}
    minifuse("reproduce", "flover-fig7", "--minutes", "0").refused('--minutes is "0"')


def test_conditions_reach_the_experiment_as_values(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Conditions] = []

    def prepare(conditions: Conditions) -> Any:
        seen.append(conditions)
        return experiment("1").prepare(conditions)

    monkeypatch.setattr(command, "experiments", lambda name: (Experiment("X", "1", "nothing", prepare),))
    assert minifuse("reproduce", "x").code == 0
    minifuse("reproduce", "x", "--scale", "quick", "--model", "m", "--dtype", "float16", "--tokens", "9")
    minifuse("reproduce", "x", "--rounds", "3", "--seed", "7")
    assert seen == [
        Conditions(),
        Conditions(scale="quick", model="m", dtype="float16", tokens=9),
        Conditions(rounds=3, seed=7),
    ]
    every = Experiment("X", "1", "nothing", prepare, frozenset({"hidden", "rates", "requests"}))
    monkeypatch.setattr(command, "experiments", lambda name: (every,))
    minifuse("reproduce", "x", "--hidden", "64", "--rates", "1.2, 0.5,0.5", "--requests", "99")
    minifuse("reproduce", "x", "--rates", "600,300")
    assert seen[3:] == [Conditions(hidden=64, rates=(0.5, 1.2), requests=99), Conditions(rates=(300.0, 600.0))]
    assert Conditions() == Conditions("cpu", None, "auto", None, None, 0)

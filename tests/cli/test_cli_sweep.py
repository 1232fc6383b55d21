"""`sweep`: the grid, its table, its file and picture, and what it refuses."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minifuse.batching.static import Static
from minifuse.show.load import Loaded, knee

Cli = Callable[..., Any]

VIRTUAL = ("--model", "random:small", "--clock", "virtual", "--requests", 12, "--output-length", 8, "--processes", 1)


def test_a_grid_of_rates_seeds_and_options(minifuse: Cli, tmp_path: Path) -> None:
    out, picture = tmp_path / "sweep.csv", tmp_path / "sweep.png"
    grid = ("--rates", "50,5000,20000", "--seeds", "3,4", "--vary", "batching.max_batch=2,8")
    given = ("sweep", "static", "orca", *VIRTUAL, *grid, "--out", out)
    done = minifuse(*given, "--picture", picture, "--json").json()
    rows = done["rows"]
    assert len(rows) == 2 * 3 * 2 * 2
    assert (
        rows[0].items()
        >= {
            "technique": "static",
            "model": "random:small",
            "requests": 12,
            "batching.max_batch": "2",
            "rate": 50.0,
            "seed": 3,
            "requests.length": 12,
        }.items()
    )
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert set(done["knees"]) == {
        f"{name}, batching.max_batch {most}" for name in ("static", "orca") for most in (2, 8)
    }
    lines = list(csv.DictReader(out.open()))
    assert [line["throughput.requests_per_s"] for line in lines] == [
        str(row["throughput.requests_per_s"]) for row in rows
    ]

    again = minifuse(*given)
    assert again.err == ""  # nothing is run again
    assert "orca, batching.max_batch 8, rate 20000.0, seed 4" in again.out
    assert again.out.count("knee") == 4


def test_a_point_is_the_run_of_the_same_options(minifuse: Cli) -> None:
    swept = minifuse("sweep", "orca", *VIRTUAL, "--rates", "200", "--seeds", "5", "--json").json()["rows"][0]
    run = minifuse("run", *VIRTUAL[:-2], "--arrival", "poisson:5ms", "--seed", 5, "--json").json()["metrics"]
    assert swept["e2e_s.p99"] == run["e2e_s"]["p99"]
    constant = minifuse("sweep", "orca", *VIRTUAL, "--rates", "200", "--arrival", "constant:1s", "--json").json()
    assert constant["rows"][0]["duration_s"] == pytest.approx(11 * 0.005, rel=0.5)


def test_a_run_that_fails_is_named_and_tried_again(
    minifuse: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "sweep.csv"

    def fail(*_: Any) -> None:
        raise RuntimeError("no luck")

    with monkeypatch.context() as patched:
        patched.setattr(Static, "propose", fail)
        done = minifuse("sweep", "static", "orca", *VIRTUAL, "--out", out)
    assert done.code == 1
    assert "error: static failed: " in done.err
    assert "orca" in done.out
    assert "static" not in done.out
    again = minifuse("sweep", "static", "orca", *VIRTUAL, "--out", out)
    assert (again.code, again.err.splitlines()) == (0, ["sweep: static"])


def test_what_ended_before_ctrl_c_is_kept(minifuse: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "sweep.csv"

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Static, "propose", interrupted)
        early = minifuse("sweep", "static", *VIRTUAL, "--out", out)
        done = minifuse("sweep", "orca", "static", *VIRTUAL, "--out", out)
    assert "Interrupted: no run had ended: run it again." in early.err
    assert done.code == 130
    assert f"Interrupted: {out} keeps the runs that had ended: run it again." in done.err
    assert minifuse("sweep", "orca", "static", *VIRTUAL, "--out", out).err.splitlines() == ["sweep: static"]


def test_in_real_time_and_of_cells(minifuse: Cli) -> None:
    done = minifuse("sweep", "orca", "--requests", 2, "--max-new-tokens", 4, "--json").json()
    assert done["rows"][0]["requests.total"] == 2
    cells = minifuse(
        "sweep", "cellular", "--model", "lstm:hidden=8", "--clock", "virtual", "--rates", "10,900", "--processes", 1
    )
    assert "(e2e_s.p99)" in cells.out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((), "sweep was given no technique: name different techniques"),
        (("orca", "orca"), "sweep was given orca orca"),
        (("orka",), "There is no technique 'orka' (did you mean \"orca\"?)"),
        (("orca", "--vary", "max-batch"), "give an option and its values, such as requests=100,400"),
        (("orca", "--vary", "foo=1,2"), "There is no option to vary 'foo'"),
        (("orca", "--vary", "seed=1,2"), "--vary gives seed: give --seeds instead"),
        (("orca", "--vary", "json=1"), "There is no option to vary 'json'"),
        (("orca", "--vary", "requests=1,x"), '--requests is "x"'),
        (("orca", "--vary", "requests=1", "--requests", "2"), "--requests and --vary requests are both given"),
        (("orca", "--vary", "requests=1", "--vary", "requests=2"), "requests is given twice"),
        (("orca", "fluid", "--vary", "batching.max_batch=2"), "batching.max_batch, no option of fluid"),
        (("orca", "fluid", "--vary", "max-batch=2,3"), "max-batch, which sets nothing for fluid"),
        (("orca", "--vary", "batching.max_batch=2,0"), "The max_batch of the batching stage"),
        (("orca", "--rates", "1,x"), 'A rate of --rates is "x"'),
        (("orca", "--seeds", "1,-2"), 'A seed of --seeds is "-2"'),
        (("orca", "--rates", "1", "--arrival", "none"), "--rates and --arrival none are both given"),
        (("orca", "--rates", "1", "--picture", "a.png"), "--picture is given without several --rates"),
        (("orca", "--processes", "2"), "runs in real time slow each other down"),
        (("orca", "--prompts", "-"), "--prompts is -, which can be read only once"),
        (("orca", "--latency", "ttft"), '--latency is "ttft"'),
        (("cellular", "--model", "lstm", "--latency", "tpot_s.p50"), "which counts tokens, and cells have none"),
        (("orca", "--clock", "virtual", "--vary", "hardware=cpu,tpu"), "There is no hardware 'tpu'"),
        (("orca", "--set", "memory.host=3"), "--set gives memory.host, which none of these techniques has"),
        (("orca", "--workload", "crowd", "--model", "random:small"), "crowd"),
        (("orca", "--vary", "model=tiny,lstm:hidden=8"), "orca does not serve models of cells"),
    ],
)
def test_what_cannot_run_is_refused_before_the_first_run(minifuse: Cli, given: tuple[str, ...], message: str) -> None:
    done = minifuse("sweep", *given)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_curve_without_a_bend_has_no_knee() -> None:
    straight = [Loaded(rate, rate, rate, rate, rate) for rate in (1.0, 2.0, 3.0)]
    assert knee(straight) is None
    assert knee(straight[:2]) is None
    assert knee([Loaded(rate, 2.0, 1.0, 1.0, 1.0) for rate in (1.0, 2.0, 3.0)]) is None
    early = [Loaded(1.0, 1.0, 1.0, 1.0, 1.0), Loaded(2.0, 1.5, 9.0, 9.0, 9.0), Loaded(3.0, 3.0, 10.0, 10.0, 10.0)]
    assert knee(early) is None


def test_runs_of_files_that_have_changed_are_run_again(minifuse: Cli, tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "sweep.csv"
    given = ("sweep", "orca", "--model", "random:small", "--clock", "virtual", "--prompts", prompts, "--out", out)
    done = []
    for length in (2, 2, 3):
        prompts.write_text(f'{{"prompt_token_ids": [1, 2], "max_new_tokens": {length}}}\n')
        done.append(len(minifuse(*given).err.splitlines()))
    assert done == [1, 0, 1], "the file of the second run is that of the first"
    lines = list(csv.DictReader(out.open()))
    assert [line["tokens.output"] for line in lines] == ["2", "3"]
    assert len({line["files"] for line in lines}) == 2

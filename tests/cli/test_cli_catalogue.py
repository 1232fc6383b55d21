"""`list`, `explain`, `doctor`, `--version` and the help."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minifuse as package
from minifuse.cli import doctor
from minifuse.cli.glossary import PLACES, Term, folded, terms
from minifuse.model.cells.config import BUILT_IN
from minifuse.simulate.cost import HARDWARE
from minifuse.stages import KINDS, Kind, stages
from minifuse.techniques import TECHNIQUES

Cli = Callable[..., Any]

PACKAGE = Path(package.__file__).parent.parent
GLOSSARY = PACKAGE / "docs" / "glossary.md"
OPTION = {"name", "default", "allowed", "help", "batch_size", "of_evictions"}


def test_list_as_json(minifuse: Cli) -> None:
    listed = minifuse("list", "--json").json()
    assert set(listed) == {"schema", "techniques", *KINDS}
    assert listed["schema"] == "minifuse.list/1"
    assert [row["name"] for row in listed["techniques"]] == list(TECHNIQUES)
    for row in listed["techniques"]:
        assert set(row) == {"name", "paper", "section", "serves", "stages", "options"}
        assert set(row["serves"]) <= {"transformer", "cells"}
        assert all(set(option) == OPTION for option in row["options"])
        assert all(option["name"].split(".")[0] in KINDS for option in row["options"])
    for kind in KINDS:
        assert [stage["name"] for stage in listed[kind]] == list(stages(kind))
        for stage in listed[kind]:
            assert set(stage) == {"name", "summary", "options"}
            assert stage["summary"]
            assert all(set(option) == OPTION for option in stage["options"])


def test_list_as_tables(minifuse: Cli) -> None:
    outcome = minifuse("list")
    assert (outcome.code, outcome.err) == (0, "")
    first_words = {line.split(" ")[0] for line in outcome.out.splitlines()}
    assert {*TECHNIQUES, *(name for kind in KINDS for name in stages(kind))} <= first_words
    assert max(map(len, outcome.out.splitlines())) <= 80


@pytest.mark.parametrize("name", TECHNIQUES)
def test_a_technique_is_explained(minifuse: Cli, name: str) -> None:
    outcome = minifuse("explain", name)
    assert outcome.code == 0
    text = " ".join(outcome.out.split())
    row = TECHNIQUES[name]
    for words in (f"{name}, a technique", row.summary, row.section, f"minifuse run --technique {name}", *row.stages):
        assert words in text


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in stages(kind)])
def test_a_stage_is_explained_and_its_command_runs(minifuse: Cli, kind: Kind, name: str) -> None:
    outcome = minifuse("explain", f"{kind}.{name}")
    assert outcome.code == 0
    assert outcome.out.startswith(f"{name}, a stage for {kind}.")
    found = re.search(r"code +(\S+)\s+\((\S+)\)", outcome.out)
    assert found
    module, file = found.groups()
    assert module.startswith(f"minifuse.{kind}.")
    assert name.replace("_", "") in (PACKAGE / file).read_text().lower().replace("_", "")
    command = outcome.out.partition("run it")[2].split()
    assert command[:2] == ["minifuse", "run"]
    model = () if "--model" in command else ("--model", "random:small")
    run = minifuse(*command[1:], *model, "--clock", "virtual", "--requests", 1, "--json").json()
    assert run["stages"][kind] == name


@pytest.mark.parametrize("term", terms(), ids=lambda term: term.names[0])
def test_every_term_of_the_glossary_is_explained(minifuse: Cli, term: Term) -> None:
    for name in term.names:
        outcome = minifuse("explain", *name.upper().split())
        assert outcome.code == 0
        text = " ".join(outcome.out.split())
        assert f"{', '.join(term.names)}: {term.meaning}." in text
        assert f"defined in {term.defined_in}" in text


MECHANISMS = [term for term in terms() if term.command is not None]


@pytest.mark.parametrize("term", MECHANISMS, ids=lambda term: term.names[0])
def test_what_papers_call_a_mechanism_has_a_command_that_runs(minifuse: Cli, term: Term) -> None:
    assert term.chapter == "Which paper is which option"
    assert f"run it\n    {term.command}\n" in minifuse("explain", *term.names[0].split()).out
    assert (PACKAGE / term.defined_in).exists()
    given = (term.command or "").split()[1:]
    model = () if {"--model", "--workload"} & {*given} else ("--model", "random:small")
    memory = ("--kv-memory", "1MiB") if "--kv-memory" in given and model else ()  # its tokens are larger than tiny's
    outcome = minifuse(*given, *model, *memory, "--clock", "virtual", "--requests", 6, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json()["metrics"]["requests"]["total"] >= 6


def test_every_mechanism_of_the_glossary_has_a_command() -> None:
    chapter = [term for term in terms() if term.chapter == "Which paper is which option"]
    assert chapter == MECHANISMS
    assert len(chapter) >= 20


def test_the_glossary_is_read_whole_and_names_each_term_once() -> None:
    rows = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    heads = [row for row in rows if row.startswith("| term |")]
    assert len(terms()) == len(rows) - len(heads) > 100
    assert len({term.chapter for term in terms()}) == len(heads)
    once = [(folded(name), term.meaning) for term in terms() for name in term.names if name != "rank"]
    assert len({name for name, _ in once}) == len(once)  # a rank is a process, and an order


def test_the_wheel_has_the_glossary_where_it_is_read() -> None:
    project = tomllib.loads((GLOSSARY.parents[1] / "pyproject.toml").read_text())
    forced = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert PLACES[0] == PACKAGE / forced["docs/glossary.md"]
    assert PLACES[1] == GLOSSARY


@pytest.mark.parametrize(
    ("typed", "title"),
    [
        ("ttft", "TTFT, TPOT, ITL: "),
        ("kv", "KV cache, KV: "),
        ("Idle", "idle, idle token: "),
        ("copy-on-write", "share, copy on write: "),
        ("sequences", "sequence: "),
        ("latency", "normalized latency, norm.: "),  # a word of it
        ("ORCA", "orca, a technique: "),
        ("graph_padded", "graph-padded, a technique: "),
        ("Memory.Paged", "paged, a stage for memory."),
        ("max_batch", "max_batch, an option, for --set:\n  batching cellular "),
        ("memory.preemption", "preemption, an option, for --set:\n  memory paged  memory.preemption="),
    ],
)
def test_names_are_found_however_they_are_written(minifuse: Cli, typed: str, title: str) -> None:
    outcome = minifuse("explain", typed)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(title)


def test_the_columns_models_and_hardware_of_a_result_are_explained(minifuse: Cli) -> None:
    for word in (*BUILT_IN, *HARDWARE, "norm.", "differ", "busy", "overtaking"):
        assert minifuse("explain", word).code == 0, word


def test_a_stage_and_a_term_of_one_name_are_both_explained(minifuse: Cli) -> None:
    text = minifuse("explain", "recompute").out
    assert "recompute, a stage for memory." in text
    assert "recompute: compute KV again that was dropped." in text


def test_without_a_name_all_names_are_listed(minifuse: Cli) -> None:
    outcome = minifuse("explain")
    assert (outcome.code, outcome.err) == (0, "")
    text = " ".join(outcome.out.split())
    for name in (*TECHNIQUES, *(name for kind in KINDS for name in stages(kind))):
        assert name in text
    assert all(name in text for term in terms() for name in term.names)


def test_options_are_explained_with_defaults_and_allowed_values(minifuse: Cli) -> None:
    outcome = minifuse("explain", "dynamic")
    assert outcome.out.count("dynamic, a ") == 2  # the technique and the stage
    text = " ".join(outcome.out.split())
    assert "batching.window=0.5s how long the oldest request waits for others; give a duration such as 500ms" in text


def test_every_option_has_its_help(minifuse: Cli) -> None:
    for command, own in {"run": {"--technique", "--batching", "--trace"}, "compare": set[str]()}.items():
        outcome = minifuse(command, "--help")
        assert (outcome.code, outcome.err) == (0, "")
        for flag in own | {
            "--model",
            "--set",
            "--kv-memory",
            "--goodput",
            "--ignore-eos",
            "--clock",
            "--prompts-per-request",
        }:
            assert f"\n  {flag} " in outcome.out
        assert "\x1b" not in outcome.out
    assert "--technique" not in minifuse("compare", "--help").out


def test_version_and_bare_command(minifuse: Cli) -> None:
    assert minifuse("--version").out == f"minifuse {package.__version__}\n"
    outcome = minifuse()
    assert (outcome.code, outcome.err) == (0, "")
    for command in ("run", "compare", "list", "explain", "doctor"):
        assert f"\n  {command} " in outcome.out


def test_the_doctor_says_what_to_do(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode() -> doctor.Check:
        raise RuntimeError("no\nluck")

    monkeypatch.setattr(doctor, "LOOKS", (lambda: doctor.Check("so so", "slow", "warning", "wait"),))
    outcome = minifuse("doctor")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1].split()[0] == "warning"
    assert "slow: wait" in outcome.out
    monkeypatch.setattr(doctor, "LOOKS", (explode,))
    outcome = minifuse("doctor", "--json")
    assert outcome.code == 3
    assert outcome.json()["checks"][-1]["found"] == "RuntimeError: no luck"


def test_the_doctor_looks_at_this_machine(minifuse: Cli) -> None:
    found = {check["name"]: check["status"] for check in minifuse("doctor", "--json").json()["checks"]}
    assert {"python", "torch", "rich", "CUDA device", "cores", "free memory"} <= found.keys()
    assert found["model tiny"] == "ok"


def test_the_doctor_misses_packages(minifuse: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["rich>=9999", "no-such-thing>=1; sys_platform != 'none'", "extra-thing; extra == 'test'", "typer"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: wanted)
    found = {check.name: check.status for check in doctor._packages()}
    assert found == {"rich": "problem", "no-such-thing": "problem", "typer": "ok"}

"""A run is resolved once: each option is parsed once, and one policy is made beside the one that runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from helpers import asks

import minifuse.options
import minifuse.serve.assembly
from minifuse.cli import main
from minifuse.labs.engine import served
from minifuse.serve.resolve import resolve_run
from minifuse.show.notebook import play
from minifuse.techniques import TECHNIQUES, technique

VIRTUAL = ("--clock", "virtual", "--requests", "2")
MODELS = {"transformer": "random:small", "cells": "lstm:hidden=8"}


@dataclass
class Counts:
    """Every option is counted by the words that a refusal would begin with, every stage by its kind."""

    converted: Counter[str] = field(default_factory=Counter)
    parsed: Counter[str] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)

    def check(self, runs: int = 1, engines: int = 1) -> None:
        assert set(self.converted.values()) <= {1}
        assert self.parsed.total() == 3 * runs
        for kind in ("batching", "memory", "attention"):
            assert self.made[kind] == runs + engines, "one to look at, and one for each engine"


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    counts = Counts()
    convert, parse = minifuse.options._convert, minifuse.options.parse_options
    make = minifuse.serve.assembly.make_stage

    def counted_convert(name: str, *arguments: Any) -> Any:
        counts.converted[name] += 1
        return convert(name, *arguments)

    def counted_parse(stage: str, *arguments: Any) -> Any:
        counts.parsed[stage] += 1
        return parse(stage, *arguments)

    def counted_make(protocol: Any, *arguments: Any, **named: Any) -> Any:
        counts.made[protocol.kind] += 1
        return make(protocol, *arguments, **named)

    monkeypatch.setattr("minifuse.options._convert", counted_convert)
    monkeypatch.setattr("minifuse.serve.assembly.parse_options", counted_parse)
    monkeypatch.setattr("minifuse.serve.assembly.make_stage", counted_make)
    return counts


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, row in TECHNIQUES.items() for kind in sorted(row.serves)]
)
def test_of_the_command_run(counts: Counts, name: str, kind: str) -> None:
    size = ["--max-batch", "3"] if technique(name).batch_sizes else []
    assert main(["run", "--technique", name, "--model", MODELS[kind], *size, *VIRTUAL]) == 0
    counts.check()


def test_of_the_command_compare(counts: Counts) -> None:
    names = ("static", "fusion", "vllm", "pensieve", "fluid")  # no two of which share a stage with options
    assert main(["compare", *names, "--model", MODELS["transformer"], "--max-batch", "3", *VIRTUAL]) == 0
    counts.check(len(names), len(names))


def test_of_a_comparison_in_real_time(counts: Counts) -> None:
    """Each technique is warmed up by an engine of its own."""
    names = ("static", "fusion")
    assert main(["compare", *names, "--model", "tiny", "--requests", "2", "--max-new-tokens", "2"]) == 0
    counts.check(len(names), 2 * len(names))


def test_of_a_notebook(counts: Counts) -> None:
    play("fastserve", [asks("a"), asks("b")], model=MODELS["transformer"], batching__quantum="1ms")
    counts.check()


def test_of_a_lab(counts: Counts) -> None:
    served(technique("vllm"), [asks("a"), asks("b")], batching__max_batch=2, memory__block_size=8)
    counts.check()


def test_any_number_of_engines_are_built_of_one_run(counts: Counts) -> None:
    import minifuse

    source = minifuse.resolve(MODELS["transformer"])
    settings = minifuse.Settings(clock="virtual", stage_options={"batching.max_batch": 2})
    run = resolve_run(technique("pensieve"), source, settings)
    answers = [minifuse.serve(minifuse.build_engine(run), [asks("a"), asks("b")]).rows() for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    counts.check(1, 3)

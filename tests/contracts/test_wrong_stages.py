"""A mistake in a stage that is not minifuse's own is one sentence: class, method, file and line, and what it did."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from conformance import golden
from contracts.wrong_stages.attention import ATTENTIONS
from contracts.wrong_stages.batching import BATCHINGS
from contracts.wrong_stages.cases import Wrong, source_of
from contracts.wrong_stages.cells import CELLS
from contracts.wrong_stages.memory import MEMORIES
from helpers import asks, unit

from minifuse import stages as register_of_stages
from minifuse.attention.stage import PerSequenceStage
from minifuse.batching import Iteration
from minifuse.cli.plugin import load_plugin
from minifuse.contracts.checks import checks_of
from minifuse.contracts.fault import blaming, call_check, is_own
from minifuse.core.clock import RealClock, VirtualClock
from minifuse.core.errors import LawBroken, StageFault, UsageError
from minifuse.core.plan import TRANSFORMER
from minifuse.execute import RealExecutor, VirtualExecutor
from minifuse.execute.moving import torch_runner
from minifuse.memory import Contiguous
from minifuse.model.text.reader import TextReader
from minifuse.serve import serve
from minifuse.serve.assembly import Stages, choose
from minifuse.serve.engine import ServingEngine
from minifuse.stages import KINDS, Kind, stage
from minifuse.techniques import TECHNIQUES, mix, technique
from minifuse.testing import GRAPHS
from minifuse.testing.observed import observe
from minifuse.testing.texts.case import TextCase
from minifuse.testing.texts.models import CONTEXT, VOCAB, small_model
from minifuse.testing.texts.scenario import TextScenario

REQUESTS = tuple(asks(f"r{i}", 3 + i, 4) for i in range(3))
SCENARIO = TextScenario(model="llama", requests=REQUESTS, capacity=60, options=())
BASES: dict[Kind, str] = {"batching": "Iteration", "memory": "Contiguous", "attention": "PerSequenceStage"}
WRONG: list[tuple[Kind, Wrong]] = [
    *(("batching", wrong) for wrong in BATCHINGS),
    *(("memory", wrong) for wrong in MEMORIES),
    *(("attention", wrong) for wrong in ATTENTIONS),
]
FREE = """
class Free(Iteration):
    token_budget = None

class Small(Paged):
    def __init__(self, capacity, options):
        super().__init__(capacity, replace(options, block_size=2))
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_register: None) -> Path:
    """A plugin's file, in a folder that is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "minifuse_plugin_mine", sys)  # so that it is as before when the test has ended
    return tmp_path / "mine.py"


def _stages(kind: Kind, wrong: Wrong) -> Stages:
    return choose(mix(technique(wrong.technique), **{kind: "mine"}), wrong.settings).stages(wrong.capacity)


def _run(stages: Stages, *, real: bool = False) -> None:
    clock, reader = RealClock() if real else VirtualClock(), TextReader(VOCAB, CONTEXT)
    checks = checks_of(stages.batching, stages.memory, stages.attention)
    with blaming(stages.batching, stages.attention):
        call_check(stages.batching, "llama", (TRANSFORMER,))
        call_check(stages.attention, "cpu", "float64")
        run = torch_runner(small_model("llama"), stages.memory, stages.attention)
    executor = RealExecutor(run, clock, stages.batching.workers) if real else VirtualExecutor(clock, unit, run)  # type: ignore[arg-type]
    parts = stages.batching, stages.memory, stages.attention, executor, clock
    served = serve(ServingEngine(*parts, reader=reader, observers=checks), REQUESTS)
    assert len([*served.trace.events()]) < 300, "it goes on for ever"


def _site(source: str, wrong: Wrong) -> str:
    """How the sentence names the method: with the line of its `def`, if it is in the file."""
    cls = next((name for name in ("Tensors", "Rooms") if f"class {name}" in wrong.head), "Mine")
    lines = source.split("\n")
    first = next(i for i, line in enumerate(lines) if line.startswith(f"class {cls}"))
    found = [i + 1 for i, line in enumerate(lines) if i > first and f"def {wrong.method}(" in line]
    return f"{cls}.{wrong.method} (" + (f"mine.py, line {found[0]})" if found else "inherited from ")


@pytest.mark.parametrize(("kind", "wrong"), WRONG, ids=[f"{kind}: {wrong.name}" for kind, wrong in WRONG])
def test_a_mistake_is_one_sentence_that_names_it(kind: Kind, wrong: Wrong, write: Path) -> None:
    source = source_of(wrong._replace(head=FREE + wrong.head), BASES[kind])
    write.write_text(source)
    load_plugin(str(write))
    with pytest.raises((StageFault, UsageError)) as error:
        _run(_stages(kind, wrong))
    text = str(error.value)
    assert "\n" not in text
    assert wrong.words in text, text
    assert "mine.py, line " in text, text
    assert not wrong.method or _site(source, wrong) in text, text


@pytest.mark.parametrize("wrong", CELLS, ids=[wrong.name for wrong in CELLS])
def test_a_mistake_of_cells(wrong: Wrong, write: Path) -> None:
    write.write_text(source_of(wrong, ""))
    load_plugin(str(write))
    kind = "batching" if wrong.method == "propose" else "memory"
    row = mix(technique("graph-merged"), **{"memory": "states", "attention": "cells", kind: "mine"})
    case = GRAPHS.case(row, golden.graph_scenario(1, row))
    with pytest.raises(StageFault) as error:
        observe(case, run=case.replay({}))
    assert wrong.words in error.value.what
    assert _site(source_of(wrong, ""), wrong) in error.value.what


# --- the class itself


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("kind = 'batchin'", "has the kind 'batchin' (did you mean"),
        ("kind = None", "has the kind None"),
        ("name = 'two words'", "has the name 'two words'"),
        ("name = 7", "has the name 7"),
        ("Options = type('O', (), {})\n    rank = len", "are no dataclass"),
        ("class Options(QueueOptions):\n        size: int = option(8, 'of it')", "'size' without a type, or below no"),
        (
            "@dataclass(frozen=True)\n    class Options(QueueOptions):\n        size: int = 8",
            "'size' without option(...)",
        ),
        (
            "@dataclass\n    class Options(QueueOptions):\n        size = option(8, 'of it')",
            "no type annotation) at mine.py",
        ),
        (
            "@dataclass(frozen=True)\n    class Options(QueueOptions):\n        s: 'Nat' = option(8, 'of it')",
            "is unknown",
        ),
        ("serves = 'transformer'", "serves = 'transformer': give a set"),
        ("serves = frozenset({'gpt'})", "give cells or transformer"),
        ("propose = None", "has None in place of the method 'propose'"),
        ("@property\n    def propose(self): pass", "has None in place of the method 'propose'"),
        ("def __init__(self, *given): super().__init__(*given); self.propose = lambda: None", "has the parameters ()"),
        ("def __init__(self, *given): self.own = given", "Mine.__init__ (mine.py, line "),
        ("Options = NoOptions\n    def rnak(self, sequence): pass", "its 'rnak' is never called: did you mean 'rank'?"),
        ("Options = NoOptions", "or give the policy a rank of its own"),
        ("name = 'orca'\n    kind = 'memory'", "has no 'offers'"),
        ("kind = 'attention'\n    def layot(self): pass\n    reads = backend = 0", "misspelt as 'layot'? See docs"),
        ("name = 'iteration'", "choose another name for Mine (mine.py, line "),
    ],
)
def test_a_class_that_cannot_be_a_stage(lines: str, words: str, write: Path) -> None:
    more = "\nfrom dataclasses import dataclass\nfrom minifuse.batching.queue import QueueOptions\n"
    more += "from minifuse.core.stages import option\nfrom minifuse.options import NoOptions\n"
    write.write_text(source_of(Wrong("", "pass", "", "", head=more), "Iteration").replace("    pass", f"    {lines}"))

    def make() -> None:
        load_plugin(str(write))
        choose(mix(technique("orca"), batching="mine")).stages(60)

    with pytest.raises(UsageError) as error:
        make()
    assert words in str(error.value), str(error.value)
    assert "mine.py, line " in str(error.value) or "give a set" in str(error.value) or "serves" in str(error.value)


# --- what is not wrong


@pytest.mark.parametrize("name", TECHNIQUES)
def test_shipped_stages_pay_nothing(name: str) -> None:
    """They are made of their own classes: there is not a call more between them and the engine."""
    row = TECHNIQUES[name]
    made = choose(row).stages(60)
    assert {type(made.batching), type(made.memory), type(made.attention)} == {
        stage(kind, which) for kind, which in row.stages.items()
    }
    assert row.serves == {"cells"} or is_own(type(made.attention.backend()))


def test_right_stages_of_ones_own_decide_as_the_shipped_ones(own_register: None) -> None:
    """Twins of all shipped stages, which are checked, make the golden decisions: nothing is found wrong in them."""
    for kind in KINDS:
        for name, cls in register_of_stages._STAGES[kind].items():
            register_of_stages._STAGES[kind][name] = type(cls.__name__, (cls,), {"__module__": __name__})
    recorded = json.loads(golden.FILE.read_text())
    for name, lines in golden.runs(seeds=range(2), mixes=False):
        assert " ".join(map(golden.digest, lines)) == " ".join(recorded[name].split()), name


# --- wherever it runs


LAID = next(wrong for wrong in ATTENTIONS if wrong.name == "fails to attend")
MISS = next(wrong for wrong in MEMORIES if wrong.name == "missing gives None")


@pytest.mark.parametrize("technique_", ["orca", "instances"])
def test_a_mistake_in_real_time_and_in_a_workers_thread(technique_: str, write: Path) -> None:
    write.write_text(source_of(LAID, "PerSequenceStage"))
    load_plugin(str(write))
    stages = choose(mix(technique(technique_), attention="mine")).stages(60)
    with pytest.raises(StageFault) as error:
        _run(stages, real=True)
    assert error.value.what.startswith("Tensors.attend (mine.py, line ")
    assert isinstance(error.value.__cause__, RuntimeError)


IN_A_LIST = next(wrong for wrong in BATCHINGS if wrong.name == "work in a list")


@pytest.mark.parametrize(("kind", "wrong"), [("memory", MISS), ("attention", LAID), ("batching", IN_A_LIST)])
def test_the_laws_say_the_same_sentence(kind: Kind, wrong: Wrong, write: Path) -> None:
    write.write_text(source_of(wrong, BASES[kind]))
    load_plugin(str(write))
    row = mix(technique("orca"), **{kind: "mine"})
    with pytest.raises(StageFault) as by_engine:
        _run(_stages(kind, wrong))
    with pytest.raises(LawBroken) as by_law:
        observe(TextCase(row, SCENARIO))
    assert by_law.value.law == "contract"
    assert str(by_law.value) == str(by_engine.value)


def test_a_stage_may_call_its_own_methods(write: Path) -> None:
    """A policy that takes a sequence out and in again, and a memory that asks itself, are told nothing new by that."""
    body = (
        "def propose(self, worker, now, memory):\n"
        "    for sequence in list(self.waiting):\n"
        "        self.release(sequence)\n"
        "        self.receive(sequence)\n"
        "    return super().propose(worker, now, memory)"
    )
    write.write_text(source_of(Wrong("", body, "", ""), "Iteration"))
    load_plugin(str(write))
    _run(choose(mix(technique("orca"), batching="mine")).stages(60))


# --- anything at all

JUNK = [None, True, 0, 2.5, "r0", (), ("r0",), [], object(), int, iter(())]
CHECKED: dict[Kind, tuple[str, ...]] = {
    "batching": ("propose", "rank", "admission"),
    "memory": ("missing", "room", "place", "commit", "ahead"),
    "attention": ("layout", "backend"),
}


def _what_happens(kind: Kind, base: type[Any], method: str, junk: Any) -> LawBroken | None:
    """A run with a stage whose `method` returns `junk`."""
    members = {"name": "mine", "__module__": __name__, method: lambda *arguments, **named: junk}
    register_of_stages._STAGES[kind]["mine"] = type("Mine", (base,), members)
    try:
        _run(choose(mix(technique("orca"), **{kind: "mine"})).stages(60))
    except LawBroken as broken:
        return broken
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_method_returns_is_its_own_mistake(kind: Kind, own_register: None) -> None:
    """What is allowed goes on, or lets no request in; of all else it is said that this method returned it."""
    base = {"batching": Iteration, "memory": Contiguous, "attention": PerSequenceStage}[kind]
    for name in CHECKED[kind]:
        found = [_what_happens(kind, base, name, junk) for junk in JUNK]
        faults = [broken for broken in found if isinstance(broken, StageFault)]
        assert faults, name
        assert all(f"Mine.{name} (" in fault.what for fault in faults), faults
        assert {broken.law for broken in found if broken is not None and broken not in faults} <= {"progress"}, found

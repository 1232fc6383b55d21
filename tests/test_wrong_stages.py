"""A mistake in a stage that is not minifuse's own is one sentence: class, method, file and line, and what it did."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from helpers import asks, unit
from wrong_stages.attention import ATTENTIONS
from wrong_stages.batching import BATCHINGS
from wrong_stages.cases import Wrong, source_of
from wrong_stages.memory import MEMORIES

from minifuse.assembly import Stages
from minifuse.cli.plugin import load_plugin
from minifuse.clock import RealClock, VirtualClock
from minifuse.engine import Engine
from minifuse.errors import StageFault, UsageError
from minifuse.execute import RealExecutor, VirtualExecutor
from minifuse.execute.texts import torch_runner
from minifuse.request import TextReader
from minifuse.stages import Kind
from minifuse.techniques import mix, technique
from minifuse.testing.texts.models import CONTEXT, VOCAB, small_model

REQUESTS = tuple(asks(f"r{i}", 3 + i, 4) for i in range(3))
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
    return tmp_path / "mine.py"


def _stages(kind: Kind, wrong: Wrong) -> Stages:
    return Stages.of(mix(technique(wrong.technique), **{kind: "mine"}), wrong.capacity, wrong.settings)


def _run(stages: Stages, *, real: bool = False) -> None:
    clock, reader = RealClock() if real else VirtualClock(), TextReader(VOCAB, CONTEXT)
    stages.attention.check("cpu", "float64")
    run = torch_runner(small_model("llama"), stages.memory, stages.attention)
    executor = RealExecutor(run, clock) if real else VirtualExecutor(clock, unit, run)  # type: ignore[arg-type]
    engine = Engine(stages.batching, stages.memory, stages.attention, executor, clock, reader=reader)
    for request in REQUESTS:
        engine.submit(request)
    for number, _ in enumerate(engine.run()):
        assert number < 100, "it goes on for ever"


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

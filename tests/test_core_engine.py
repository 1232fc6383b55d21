"""The loop of the core alone, as docs/core.md tells of it: one thread, no trace, no checks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from helpers import CONTEXT, VOCAB, asks, make_engine, run_all

from minifuse.attention.stage import PerSequenceStage
from minifuse.batching.iteration import BatchOptions, Iteration
from minifuse.core.clock import VirtualClock
from minifuse.core.engine import Engine
from minifuse.core.errors import LawBroken, RequestRefused
from minifuse.core.turns import Turns
from minifuse.execute import VirtualExecutor
from minifuse.execute.moving import torch_runner
from minifuse.memory.contiguous import Contiguous
from minifuse.model.text.reader import TextReader
from minifuse.testing.texts.models import small_model

REQUESTS = [asks("a", 3, 6), asks("b", 5, 4, at=0.005), asks("c", 2, 5, at=0.02)]


def core_engine(capacity: int = 60) -> Engine:
    memory, attention, clock = Contiguous(capacity), PerSequenceStage(), VirtualClock()
    run = torch_runner(small_model("llama"), memory, attention)
    return Engine(
        Iteration(BatchOptions(max_batch=2)),
        memory,
        attention,
        VirtualExecutor(clock, lambda plan: 0.01, run),
        clock,
        reader=TextReader(VOCAB, CONTEXT),
        arrivals=Turns(),
    )


def test_it_serves_as_the_serving_engine_does() -> None:
    engine = core_engine()
    for request in REQUESTS:
        engine.submit(request)
    reports = list(engine.run())
    serving = make_engine("orca", capacity=60, settings={"batching.max_batch": "2"}, model="llama", cost=lambda _: 0.01)
    assert [(report.plan, report.tokens) for report in reports] == [
        (report.plan, report.tokens) for report in run_all(serving, REQUESTS)
    ]
    engine.memory.check_integrity()  # type: ignore[attr-defined]
    assert engine.memory.usage().reserved == 0


def test_it_refuses_what_it_could_never_serve() -> None:
    with pytest.raises(RequestRefused, match="memory holds 4"):
        core_engine(capacity=4).submit(asks("a", 3, 6))
    with pytest.raises(RequestRefused, match="the context is"):
        core_engine().submit(asks("a", CONTEXT, 6))


def test_nothing_that_will_run_is_named() -> None:
    engine = core_engine()
    engine.submit(asks("a", 3, 6))
    engine.batching.ready = ()  # type: ignore[attr-defined]  # nobody may join
    with pytest.raises(LawBroken, match="gave no reason"):
        list(engine.run())


def test_the_engine_that_the_page_puts_together(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parent.parent / "docs/core.md").read_text()
    (code,) = re.findall(r"<!-- engine -->\n```python\n(.*?)```", page, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(code, scope)
    assert {name: text.strip() for name, text in scope["answers"].items()} == {"a": "3 4 5 6", "b": "2 5 7"}
    assert "Work(sequence='a', start=0" in capsys.readouterr().out

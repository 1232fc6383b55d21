"""Whose mistake an error is: the stage's that raised it, or the law's."""

from __future__ import annotations

import importlib

import pytest
from hypothesis import strategies as st

from minifuse.core.errors import CheckerFailed, StageFailed
from minifuse.core.request import Request
from minifuse.techniques import technique
from minifuse.testing import TEXTS
from minifuse.testing.search import Search
from minifuse.testing.texts import TextScenario

SCENARIO = TextScenario(
    requests=tuple(Request(f"r{i}", (1, 2), max_new_tokens=3) for i in range(2)), options=(), model="gptj", capacity=40
)
SEARCH = Search(TEXTS._replace(scenarios=lambda row: st.just(SCENARIO)), technique("vllm"), ())


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("testing.laws", "check_trace"),
        ("testing.overtaking", "compute_metrics"),
        ("testing.texts.books", "sum"),
        ("testing.watched", "fingerprint"),
    ],
)
def test_of_a_law(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    monkeypatch.setattr(importlib.import_module(f"minifuse.{module}"), name, None, raising=False)
    with pytest.raises(CheckerFailed, match=r"A law failed at \w+.py, line \d+, in \w+ \(TypeError: 'NoneType' object"):
        SEARCH.run(1, seed=0)


@pytest.mark.parametrize(
    ("module", "name"),
    [("memory.paged.paged", "PagedTrial"), ("batching.prefill_first", "partial"), ("attention.paged", "RaggedIndex")],
)
def test_of_a_stage_also_where_a_law_calls_it(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    monkeypatch.setattr(importlib.import_module(f"minifuse.{module}"), name, None)
    with pytest.raises(StageFailed, match=r"contract: .*'NoneType' object"):
        SEARCH.run(1, seed=0)

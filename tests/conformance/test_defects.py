"""Tests of the tests: defects of the kinds people really make, each caught by the law that forbids it."""

from __future__ import annotations

import pytest
from conformance.defects import (
    attention,
    batching,
    blocks,
    cells,
    conversations,
    engine,
    fluid,
    graph_batching,
    lives,
    load,
    memory,
    promises,
    rebatch,
    states,
    told,
    transfers,
)
from conformance.defects.harness import DEFECTS, Defect, caught

FILES = (
    attention,
    batching,
    blocks,
    cells,
    conversations,
    engine,
    fluid,
    graph_batching,
    lives,
    load,
    memory,
    promises,
    rebatch,
    states,
    told,
    transfers,
)  # each registers its own


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.id)
def test_defect_is_caught(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    defect.seed(monkeypatch)
    broken = caught(defect)
    assert broken is not None, "the defect went unnoticed"
    assert broken.law in defect.laws, str(broken)

"""Tests of the tests: defects of the kinds people really make, each caught by the law that forbids it."""

from __future__ import annotations

import pytest
from conformance.defects.harness import Defect, all_defects, caught

DEFECTS = all_defects()


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.id)
def test_defect_is_caught(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    defect.seed(monkeypatch)
    broken = caught(defect)
    assert broken is not None, "the defect went unnoticed"
    assert broken.law in defect.laws, str(broken)

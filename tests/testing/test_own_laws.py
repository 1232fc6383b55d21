"""Laws of a researcher's own: named, told, and at fault themselves when they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import strategies as st

from minifuse.core.errors import CheckerFailed, LawBroken, UsageError
from minifuse.core.request import Request
from minifuse.techniques import technique
from minifuse.testing import TEXTS, law, own_laws
from minifuse.testing.mixes import applying
from minifuse.testing.search import Search
from minifuse.testing.statements import OWN_LAWS, statement
from minifuse.testing.texts import TextScenario

SCENARIO = TextScenario(requests=(Request("r0", (1, 2), max_new_tokens=3),), options=(), model="gptj", capacity=40)
SUBJECT = TEXTS._replace(scenarios=lambda row: st.just(SCENARIO))


@pytest.fixture(autouse=True)
def _none_registered() -> Iterator[None]:
    with patch.dict(OWN_LAWS, clear=True):
        yield


def _check() -> None:
    Search(SUBJECT, technique("orca"), ()).run(1, seed=0)


def test_one_that_holds_is_listed() -> None:
    met: list[int] = []

    @law("my own", "a run has steps")
    def steps(case: Any, seen: Any) -> None:
        met.append(len(seen.steps))

    _check()
    assert met == [3]
    assert applying([(TEXTS, technique("orca"))])[0]["my own"] == 1


def test_one_that_is_broken_is_told_by_its_name() -> None:
    @law("my own", "a run has two steps")
    def steps(case: Any, seen: Any) -> str | None:
        return f"there are {len(seen.steps)}" if len(seen.steps) != 2 else None

    with pytest.raises(LawBroken) as broken:
        _check()
    assert (broken.value.law, broken.value.what) == ("my own", "there are 3")
    assert broken.value.seen.steps
    assert statement("my own").says == "a run has two steps"


def _forever(*arguments: Any) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda case, seen: seen.stesp, r"failed at test_own_laws.py, line \d+, in <lambda> \(AttributeError"),
        (lambda case, seen: True, "returned True, and may return None or a sentence"),
        (lambda case: None, r"failed at test_own_laws.py, line \d+ \(TypeError"),
        (_forever, "does not return"),
    ],
)
def test_one_that_fails_is_at_fault(function: Callable[..., Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_laws, "PATIENCE_S", 0.1)
    law("my own", "it fails")(function)
    with pytest.raises(CheckerFailed, match=f"The law 'my own' .*{words}.*it is at fault, not the stages"):
        _check()


@pytest.mark.parametrize(
    ("name", "says", "words"),
    [
        ("exact", "a", "already"),
        ("Mine!", "a", "small letters"),
        ("mine", " ", "says nothing"),
        ("two", "a", "already"),
        (5, "a", "small letters"),
        ("mine", None, "says nothing"),
    ],
)
def test_one_that_cannot_be_registered(name: Any, says: Any, words: str) -> None:
    law("two", "the first of two")(lambda case, seen: None)
    with pytest.raises(UsageError, match=words):
        law(name, says)(_forever)


def test_one_that_is_no_function() -> None:
    with pytest.raises(UsageError, match="put it on a function"):
        law("mine", "a")(partial(_forever, 1))

"""The page of a figure: columns of tables, items of notes, what they are filled in with, and which of them count."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from minifuse.papers import page as module
from minifuse.papers.experiment import Column
from minifuse.papers.page import notes, tables

TEXT = """# A heading, which is for the reader

| rate<br>req/s | gain<br>paper        | <br>here         |
| ------------: | -------------------: | ---------------: |
| {at.rate}     | <={paper.gain:.1f}x  | {measured.gain:d} |

| <br>name    |
| ----------: |
| {at.name:s} |

- {setup}
- {setting.model} makes {speed:rate} requests/s,
  in rounds {gains:times}
  - [setting.virtual] , in virtual time
    - [several] , medians
  - [not setting.virtual] in real time
  - ; that is all ({met:agrees}).
- [several] Medians of {rounds}: {by_batch:times}.
"""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    (tmp_path / "some.md").write_text(TEXT)


def test_columns_are_a_row_of_heads_and_one_of_values() -> None:
    first, second = tables("some")
    assert first == (
        Column("rate\nreq/s", "at", "rate"),
        Column("gain\npaper", "paper", "gain", "<={:.1f}x"),
        Column("\nhere", "measured", "gain", "{:d}"),
    )
    assert second == (Column("\nname", "at", "name", "{:s}"),)


def test_items_under_an_item_go_on_with_its_note() -> None:
    values = {"setup": ("a", "b"), "speed": 12345.6, "gains": [1.5, 2.0], "met": True, "several": False}
    virtual = SimpleNamespace(model="m", virtual=True)
    assert notes("some", setting=virtual, **values) == (
        "a",
        "b",
        "m makes 12,346 requests/s, in rounds 1.50x, 2.00x, in virtual time; that is all (agrees).",
    )


def test_an_item_counts_where_its_condition_holds() -> None:
    values = {"setup": (), "speed": 1.0, "gains": [1.5], "met": False, "rounds": 3, "by_batch": {4: 2.0, 8: 1.5}}
    real = SimpleNamespace(model="m", virtual=False)
    assert notes("some", setting=real, several=True, **values) == (
        "m makes 1 requests/s, in rounds 1.50x in real time; that is all (does not agree).",
        "Medians of 3: 2.00x at 4, 1.50x at 8.",
    )


@pytest.mark.parametrize("missing", ["speed", "several"])
def test_a_value_or_a_condition_that_is_missing_is_an_error(missing: str) -> None:
    values = {"setup": (), "speed": 1.0, "gains": [1.5], "met": False, "several": False}
    del values[missing]
    with pytest.raises(KeyError):
        notes("some", setting=SimpleNamespace(model="m", virtual=True), **values)

"""KV that belongs to a conversation and outlives its turns: a toy memory through the unchanged loop and the laws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from conformance.defects.harness import Defect, caught
from helpers import answers_of, asks, make_engine, run_all, schedule
from keeping import Books, Keeping, owner_of

from minifuse.attention.layouts import PagedStage
from minifuse.batching import Iteration
from minifuse.metrics import compute_metrics
from minifuse.report import KVUsage
from minifuse.request import Sequence
from minifuse.stages import register
from minifuse.techniques import Technique, mix, technique
from minifuse.testing import TEXTS, put_through
from minifuse.testing.capacity import count_slots
from minifuse.testing.texts.models import expected_answer

TURNS = [
    asks("a", (5, 6), 3, conversation="c", ignore_eos=True),
    asks("b", (7,), 2, conversation="c", after="a", delay_s=2.5, ignore_eos=True),
    asks("d", (8, 9), 1, conversation="c", after="b", ignore_eos=True),
]


@pytest.fixture
def row(own_register: None) -> Technique:
    """The technique, while the memory is registered."""
    register(Keeping)
    count_slots("keeping")(lambda sequences, options: sum(-(-s.request.max_cached // 2) * 2 for s in sequences))
    return mix(technique("orca"), memory="keeping", attention="paged")


def _engine(slots: int = 40, model: str | None = "llama") -> Any:
    return make_engine(model=model, memory=Keeping(slots), attention=PagedStage(), batching=Iteration())


def test_the_next_turn_reuses_what_is_kept() -> None:
    """The last token of each answer has not been computed when it ends: b computes it and its own, and so does d."""
    engine = _engine()
    steps = run_all(engine, TURNS)
    assert schedule(steps) == [
        *("0: a[0:2)", "1: a[2:3)", "2: a[3:4)"),
        *("5.5: b[4:6)", "6.5: b[6:7)"),
        "7.5: d[7:10)",
    ]
    assert compute_metrics(engine.trace.events())["tokens"]["recomputed"] == 0
    assert answers_of(engine) == {
        name: expected_answer("llama", sequence.request) for name, sequence in engine.finished.items()
    }
    assert engine.memory.usage() == KVUsage(used=0, reserved=0, capacity=40, kept=10)


def test_what_is_kept_is_reclaimed_for_others_and_computed_again() -> None:
    engine = _engine(slots=12)
    other = asks("x", 4, 6, at=4.0, ignore_eos=True)
    steps = run_all(engine, [TURNS[0], asks("b", (7,), 2, conversation="c", after="a", delay_s=20.0), other])
    assert schedule(steps)[-2:] == ["23: b[0:6)", "24: b[6:7)"]
    assert compute_metrics(engine.trace.events())["tokens"]["recomputed"] == 4


def test_a_report_tells_what_is_kept() -> None:
    engine = _engine(model=None)
    run_all(engine, [TURNS[0], asks("x", 2, 1, at=9.0)])
    *_, last = [event for event in engine.trace.events() if event["event"] == "step"]
    assert (last["kv"], last["kept"]) == ([2, 2, 40, 0], [4, 0])
    metrics = compute_metrics(engine.trace.events())
    assert metrics["kv"]["peak_kept_tokens"] == 4


def test_all_laws_hold(row: Technique) -> None:
    put_through(TEXTS, row, examples=4, derandomize=True)


def _kept_of_another(patch: pytest.MonkeyPatch) -> None:
    """The first of what is kept is given to any turn."""
    admit = Books.admit

    def wrong(self: Books, sequence: Sequence, spared: Any) -> str | None:
        owner = owner_of(sequence)
        first = next(iter(self.kept), None)
        if owner not in self.tables and first is not None and self.cached[first] < len(sequence):
            self.tables[owner], self.cached[owner] = self.tables.pop(first), self.cached.pop(first)
        return admit(self, sequence, spared)

    patch.setattr(Books, "admit", wrong)
    patch.setattr(Keeping, "missing", _missing_of_anything(Keeping.missing))


def _missing_of_anything(missing: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Keeping, sequence: Sequence) -> Any:
        (span,) = missing(self, sequence)
        kept = self.books.kept
        if owner_of(sequence) not in self.books.tables and kept and self.books.cached[kept[0]] < len(sequence):
            return (span._replace(start=self.books.cached[kept[0]]),)
        return (span,)

    return wrong


def _kept_while_given_away(patch: pytest.MonkeyPatch) -> None:
    """A block of what is kept is free as well."""
    release = Keeping.release

    def wrong(self: Keeping, sequence: Sequence, now: float) -> None:
        release(self, sequence, now)
        table = self.books.tables.get(owner_of(sequence))
        if table and owner_of(sequence) not in self.books.users:
            self.books.free.append(table[0])

    patch.setattr(Keeping, "release", wrong)
    patch.setattr(Keeping, "check_integrity", lambda self: None)


def _kept_and_not_counted(patch: pytest.MonkeyPatch) -> None:
    usage = Keeping.usage
    patch.setattr(Keeping, "usage", lambda self: usage(self)._replace(kept=0, reserved=usage(self).reserved + 2))


def _kept_for_a_request(patch: pytest.MonkeyPatch) -> None:
    """KV of requests without a conversation is kept as well."""
    release = Keeping.release

    def wrong(self: Keeping, sequence: Sequence, now: float) -> None:
        held = (list(self.books.tables.get(sequence.id, ())), self.books.cached.get(sequence.id, 0))
        release(self, sequence, now)
        if sequence.request.conversation is None and held[1]:
            self.books.tables[sequence.id], self.books.cached[sequence.id] = held
            self.books.free = [block for block in self.books.free if block not in held[0]]

    patch.setattr(Keeping, "release", wrong)


@pytest.mark.parametrize(
    ("seed", "laws"),
    [
        (_kept_of_another, ("conservation",)),
        (_kept_while_given_away, ("ghost", "conservation")),
        (_kept_and_not_counted, ("conservation",)),
        (_kept_for_a_request, ("conservation",)),
    ],
)
def test_defect_is_caught(seed: Any, laws: tuple[str, ...], row: Technique, monkeypatch: pytest.MonkeyPatch) -> None:
    import conformance.defects.harness as harness

    monkeypatch.setitem(harness.MIXES["transformer"], row.name, row)
    seed(monkeypatch)
    broken = caught(Defect(seed, TEXTS, row.name, laws, "of_one_run", ("crowd",), {}))
    assert broken is not None, "the defect went unnoticed"
    assert broken.law in laws, str(broken)

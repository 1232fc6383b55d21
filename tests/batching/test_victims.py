"""A policy that chooses whom to evict: a toy that evicts the longest, through the unchanged loop and the laws."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

import pytest
from helpers import asks, breach, make_engine, run_all, schedule

from minifuse.batching.prefill_first import PrefillFirst
from minifuse.core.request import Sequence
from minifuse.serve.engine import ServingEngine

REQUESTS = [asks("a", 2, 5), asks("b", 4, 3), asks("c", 2, 3)]


class EvictLongest(PrefillFirst):
    """As prefill_first, but the longest leaves first."""

    name = "evict-longest"

    def victims(self, running: Seq[Sequence]) -> Iterable[Sequence]:
        return sorted(running, key=len, reverse=True)


def _engine(policy: type[PrefillFirst], blocks: int = 4) -> ServingEngine:
    settings = {"memory.block_size": 2, "memory.watermark": 0.0}
    return make_engine("vllm", capacity=2 * blocks, settings=settings, batching=policy())


def test_the_policy_chooses() -> None:
    """Four blocks are full: a needs another one. The newest is c; the longest is b, which has two."""
    usual = run_all(_engine(PrefillFirst), REQUESTS)
    assert usual[1].plan.evicted == ("c", "b")
    steps = run_all(_engine(EvictLongest), REQUESTS)
    assert steps[1].plan.evicted == ("b",)
    assert schedule(steps)[:3] == ["0: a[0:2) b[0:4) c[0:2)", "1: a[2:3) c[2:3)", "2: a[3:4) c[3:4)"]


def test_the_first_is_never_among_those_to_choose_from() -> None:
    """Otherwise the longest might be evicted again and again, and never end."""
    asked: list[list[str]] = []

    class Noting(EvictLongest):
        name = "noting"

        def victims(self, running: Seq[Sequence]) -> Iterable[Sequence]:
            asked.append([sequence.id for sequence in running])
            return super().victims(running)

    requests = [asks("a", 6, 6), asks("b", 2, 6), asks("c", 2, 6)]
    steps = run_all(_engine(Noting, blocks=6), requests)
    assert {name for step in steps for name in step.finished} == {"a", "b", "c"}
    assert asked
    evictions = [step for step in steps if step.plan.evicted]
    assert len(asked) == len(evictions)  # asked once, and only if one has to go
    assert all("a" not in names for names in asked[:2])


def test_a_policy_that_names_none_breaks_progress() -> None:
    class Merciful(PrefillFirst):
        name = "merciful"

        def victims(self, running: Seq[Sequence]) -> Iterable[Sequence]:
            return ()

    with breach("progress", "no other sequence is left to evict"):
        run_all(_engine(Merciful), REQUESTS)


@pytest.mark.parametrize("wrong", [lambda mine: mine.running, lambda mine: [None], lambda mine: [*mine.running] * 2])
def test_a_policy_that_names_others_breaks_progress(wrong: Callable[[PrefillFirst], Iterable[Sequence]]) -> None:
    class Wrong(PrefillFirst):
        name = "wrong"

        def victims(self, running: Seq[Sequence]) -> Iterable[Sequence]:
            return wrong(self)

    with breach("progress", r"returned .* among others: give sequences of the list"):
        run_all(_engine(Wrong), REQUESTS)

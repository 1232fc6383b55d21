"""The crowds, the long runs and the many texts that are made of small scenarios."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2b
from typing import Any

import pytest
from helpers import breach
from testing.right_stages import Node, Radix

from minifuse.batching.iteration import Iteration
from minifuse.core.errors import LawBroken
from minifuse.core.request import Request, Sequence
from minifuse.memory.paged.tables import Tables
from minifuse.memory.tiered import owners
from minifuse.stages import register
from minifuse.techniques import TECHNIQUES, Technique, for_model, mix
from minifuse.testing import GRAPHS, TEXTS, Case, Subject, observe
from minifuse.testing.drawn import try_each
from minifuse.testing.laws import of_one_run, under_load
from minifuse.testing.load import crowd_of, long_run_of, many_texts_of
from minifuse.testing.search import Limit, Search
from minifuse.testing.texts import TextScenario


def _on_some(subject: Subject, technique: str, examples: int, check: Callable[[Case], None]) -> None:
    row = for_model(TECHNIQUES[technique], subject.kind)
    cases = subject.scenarios(row).map(lambda scenario: subject.case(row, scenario))
    try_each(cases, check, examples, derandomize=True)


def test_in_a_crowd_many_wait() -> None:
    waiting: list[int] = []

    def check(case: Case) -> None:
        seen = observe(crowd_of(case))
        admitted_s = {name: seen.submitted_s[step.plan.step] for step in seen.steps for name in step.plan.admitted}
        waiting.append(
            max(
                sum(arrived_s <= now < admitted_s.get(name, now) for name, arrived_s in seen.arrived_s.items())
                for now in (0.0, *seen.submitted_s.values())  # if all are refused, no step is made
            )
        )

    _on_some(TEXTS, "orca", 20, check)
    assert sum(count > 12 for count in waiting) > len(waiting) / 3


@pytest.mark.parametrize(("subject", "technique"), [(TEXTS, "vllm"), (GRAPHS, "graph-merged")])
def test_a_crowd_is_the_same_every_time_and_computes_nothing(
    subject: Subject, technique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(case: Case) -> None:
        crowd = crowd_of(case)
        assert repr(crowd.scenario) == repr(crowd_of(case).scenario)
        assert 40 <= len(crowd.requests) <= 50
        monkeypatch.setattr(type(case), "runner", lambda self: pytest.fail("a model computes"))
        of_one_run(crowd, observe(crowd))

    _on_some(subject, technique, 3, check)


@pytest.mark.long
@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.parametrize("subject", [TEXTS, GRAPHS], ids=lambda subject: subject.kind)
def test_laws_hold_on_a_long_run(subject: Subject, technique: str) -> None:
    if subject.kind not in TECHNIQUES[technique].serves:
        pytest.skip("it does not serve these models")

    def check(case: Case) -> None:
        long = long_run_of(case)
        of_one_run(long, observe(long))

    _on_some(subject, technique, 10, check)


def test_what_shows_late_takes_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest first, once a hundred and fifty requests have come."""
    rank = Iteration.rank
    monkeypatch.setattr(
        Iteration,
        "rank",
        lambda self, one: -self.waiting.num_joined if self.waiting.num_joined > 150 else rank(self, one),
    )
    short = TEXTS._replace(scenarios=lambda row: TEXTS.scenarios(row, ("few",)))
    Search(short, TECHNIQUES["orca"], []).run(3, seed=1)
    with pytest.raises(LawBroken) as broken:
        Search(short, TECHNIQUES["orca"], [], long=True, limit=Limit(math.inf, -math.inf)).run(3, seed=1)
    assert broken.value.law in ("queue", "overtaking")
    assert len(broken.value.seen.case.requests) >= 300  # there was no time to make it smaller


def test_a_crowd_is_told_as_the_scenario_that_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest first, once more than twelve wait."""
    rank = Iteration.rank
    monkeypatch.setattr(
        Iteration, "rank", lambda self, one: -self.waiting.num_joined if len(self.waiting) > 12 else rank(self, one)
    )
    with pytest.raises(LawBroken) as broken:
        Search(TEXTS, TECHNIQUES["orca"], [under_load], limit=Limit(math.inf, -math.inf)).run(10, seed=0)
    case = broken.value.seen.case
    assert f"{case}, the smallest scenario found" in broken.value.__notes__
    assert case.scenario.replayed


def _many(technique: Technique) -> Case:
    scenario = TextScenario(model="llama", requests=(Request("r0", (1, 2), 1),), capacity=48, options=())
    return many_texts_of(TEXTS.case(technique, scenario))


def _on(memory: type[Radix]) -> Technique:
    return mix(TECHNIQUES["vllm"], memory=register(memory).name)


def test_many_texts_are_not_for_a_worker_each(own_register: None) -> None:
    """Hundreds of workers that are asked after each token would take hours, which is no fault of the memory's."""
    row = mix(TECHNIQUES["instances"], memory=register(Radix).name, attention="paged")
    crowded: set[str] = set()
    search = Search(TEXTS, row, [], crowded=crowded)
    search.run(12, derandomize=True)
    assert search.hits.found
    assert not crowded


@pytest.mark.long
@pytest.mark.parametrize("name", ["vllm", "pensieve", "radix"])
def test_many_texts_are_in_memory_at_once(name: str, own_register: None) -> None:
    case = _many(_on(Radix) if name == "radix" else TECHNIQUES[name])
    seen = observe(case)
    of_one_run(case, seen)
    assert len(seen.answers) == len(case.requests) == 1000
    assert max(len(step.plan.work) for step in seen.steps) > 200


@cache
def _digest(tokens: tuple[int, ...]) -> int:
    return zlib.crc32(repr(tokens).encode()) & 0xFFFF


def _key(tokens: Iterable[int]) -> int:
    return _digest(tuple(tokens))


def _by_path(memory: Radix, sequence: Sequence) -> list[Node]:
    """The blocks of the tree that have the beginning of a text, by keys of 16 bits."""
    path = [memory.root]
    for start in range(0, len(sequence) - memory.size, memory.size):
        key = _key(sequence.tokens[start : start + memory.size])
        child = next((child for tokens, child in path[-1].children.items() if _key(tokens) == key), None)
        if child is None:
            break
        path.append(child)
    return path[1:]


def _by_first_block(self: Tables, newcomer: Sequence, gone: Any = ()) -> tuple[str, int]:
    """A sequence whose first block has the same key of 16 bits."""
    held = (name for name in self.blocks.pages if self.cached.get(name, 0) >= 16)
    key = _key(newcomer.tokens[:16])
    return next(((name, 16) for name in held if _key(self.sequences[name].tokens[:16]) == key), ("", 0))


def test_many_texts_show_short_keys_in_a_tree(own_register: None) -> None:
    with breach("conservation"):
        observe(_many(_on(type("Digest", (Radix,), {"name": "digest-radix", "found": _by_path}))))


def test_many_texts_show_short_keys_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tables, "alike", _by_first_block)
    with pytest.raises(LawBroken) as broken:
        observe(_many(TECHNIQUES["vllm"]))
    assert broken.value.law in ("conservation", "counting")


def test_many_texts_show_short_digests_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "blake2b", lambda data, digest_size: blake2b(data, digest_size=2))
    with breach("conservation"):
        observe(_many(TECHNIQUES["pensieve"]))

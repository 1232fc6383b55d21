"""What the books of a memory cost depends on what changes alone: lines of Python run and bytes taken, not seconds."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from helpers import asks, lines_of, make_engine

from minifuse.core.plan import Plan, Proposal, Work
from minifuse.core.report import StepReport
from minifuse.core.request import Sequence
from minifuse.memory import Contiguous, Paged, Slots
from minifuse.stages import Memory
from minifuse.trace.log import Trace
from minifuse.trace.running import RunningMetrics

FEW, MANY = 10, 400  # sequences in memory; of 4 blocks of 4 tokens each
LINES, BYTES = 10, 2_000  # what more sequences, or more memory, may cost more: a copy of their books takes 20,000 bytes
MEMORIES: dict[str, Callable[[int], Memory]] = {
    "paged": lambda capacity: Paged(capacity, Paged.Options(4, watermark=0.0)),
    "paged, swapping": lambda capacity: Paged(capacity, Paged.Options(4, preemption="swap", watermark=0.0)),
    "paged, sharing": lambda capacity: Paged(capacity, Paged.Options(4, share=True, watermark=0.0)),
    "contiguous": Contiguous,
    "slots": lambda capacity: Slots(capacity, Slots.Options(capacity // 32, shuffle=False)),
}


def cost_of(do: Callable[[], object]) -> tuple[int, int]:
    """The lines of Python that it runs, and the bytes that it takes at most."""
    gc.disable()  # a collection would be counted as well
    tracemalloc.start()
    try:
        _, lines = lines_of(do)
        return lines, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.enable()


def iteration(memory: Memory, work: tuple[Work, ...], admit: tuple[Sequence, ...] = (), **more: Any) -> None:
    placement = memory.place(Proposal(work, admit, **more), 0.0)
    plan = Plan(0, 0, work, placement.places, tuple(sequence.id for sequence in admit), moves=placement.moves)
    memory.commit(plan, {item.sequence for item in work}, 0.0)


def filled(make: Callable[[int], Memory], count: int, capacity: int) -> tuple[Memory, list[Sequence]]:
    """A memory with so many sequences of 14 tokens, each begun with a number of its own."""
    memory = make(capacity)
    sequences = [Sequence(asks(f"r{i:03}", (i, *range(13)), 12)) for i in range(count)]
    iteration(memory, tuple(Work(s.id, 0, 14) for s in sequences), tuple(sequences), growing=True)
    for sequence in sequences:
        sequence.tokens.append(0)
    return memory, sequences


def decode(make: Callable[[int], Memory], count: int, capacity: int) -> tuple[int, int]:
    """Three iterations of five sequences, which grow into a block. A newcomer and an eviction are tried out."""
    memory, sequences = filled(make, count, capacity)
    newcomer = Sequence(asks("new", (1000, *range(13)), 12))

    def run() -> None:
        for _ in range(3):
            room = memory.room()
            for sequence in sequences[:5]:
                assert room.extend(sequence) is None
            assert room.admit(newcomer, growing=True) is None
            if isinstance(memory, Paged):
                room.evict(sequences[-1])
            iteration(memory, tuple(Work(s.id, *memory.missing(s)[0]) for s in sequences[:5]))
            for sequence in sequences[:5]:
                sequence.tokens.append(0)

    return cost_of(run)


@pytest.mark.parametrize("name", MEMORIES)
def test_the_books_of_others_cost_nothing(name: str) -> None:
    few, many = (decode(MEMORIES[name], count, 32 * 2 * MANY) for count in (FEW, MANY))
    assert many[0] <= few[0] + LINES
    assert many[1] <= few[1] + BYTES


@pytest.mark.parametrize("name", MEMORIES)
def test_a_larger_memory_costs_nothing(name: str) -> None:
    small, large = (decode(MEMORIES[name], FEW, 32 * count) for count in (2 * FEW, 20 * MANY))
    assert large[0] <= small[0] + LINES
    assert large[1] <= small[1] + BYTES


@pytest.mark.parametrize("common", [520, 512])
def test_sharing_costs_no_more_with_more_running_sequences_that_begin_alike(common: int) -> None:
    """Their common beginning ends within a block of 16 tokens, or with one."""
    beginning = tuple(range(common))

    def cost(count: int) -> tuple[int, int]:
        """Of asking what a newcomer lacks, of trying its admission out, and of admitting it."""
        memory = Paged(16 * 40 * (count + 2), Paged.Options(16, share=True, watermark=0.0))
        for i in range(count):
            sequence = Sequence(asks(f"r{i:03}", (*beginning, 1000 + i, 1), 12))
            iteration(memory, (Work(sequence.id, *memory.missing(sequence)[0]),), (sequence,), growing=True)
        newcomer = Sequence(asks("new", (*beginning, 999, 1), 12))

        def run() -> None:
            (span,) = memory.missing(newcomer)
            assert span.start == common
            assert memory.room().admit(newcomer, growing=True) is None
            iteration(memory, (Work("new", *span),), (newcomer,), growing=True)

        return cost_of(run)

    few, many = cost(10), cost(100)
    assert many[0] == few[0]
    assert many[1] <= few[1] + BYTES


@pytest.mark.parametrize("common", [520, 512])
def test_sharing_costs_no_more_after_more_newcomers_in_the_same_trial(common: int) -> None:
    beginning = tuple(range(common))

    def lines(count: int) -> int:
        """Of trying the admission of a newcomer out after so many others."""
        memory = Paged(16 * 40 * (count + 2), Paged.Options(16, share=True, watermark=0.0))
        first, *others, newcomer = (Sequence(asks(f"r{i}", (*beginning, 1000 + i), 12)) for i in range(count + 2))
        iteration(memory, (Work(first.id, 0, common),), (first,), growing=True)
        room = memory.room()
        for sequence in others:
            assert room.admit(sequence, growing=True) is None
        reason, lines = lines_of(lambda: room.admit(newcomer, growing=True))
        assert reason is None
        return lines

    assert lines(100) == lines(10)


def test_a_longer_run_holds_no_more_reports() -> None:
    """Where the events are handed on, a run holds of its steps none but the last."""

    def held(count: int) -> int:
        """Step reports that a run of so many requests holds in the end."""
        gc.freeze()  # what other tests have left is not looked through
        counted = RunningMetrics()
        engine = make_engine("vllm", capacity=200, trace=Trace(into=counted.read))
        for i in range(count):
            engine.submit(asks(f"r{i}", 3, 4))
        for _ in engine.run():
            pass
        gc.collect()
        assert counted.result()["requests"]["length"] == count
        reports = sum(type(one) is StepReport for one in gc.get_objects())
        gc.unfreeze()
        return reports

    assert held(200) <= held(20)

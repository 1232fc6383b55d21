"""Paged memory by hand: iterations that are placed and committed at once."""

from __future__ import annotations

from typing import Any

from helpers import asks

from minifuse.core.places import Pages
from minifuse.core.plan import Placement, Plan, Proposal, Work
from minifuse.core.request import Sequence
from minifuse.memory import Paged

SIZE = 4  # slots in a block


class PagedScene:
    """A paged memory and its sequences.

    Every iteration is committed, and produces a token for each running sequence.
    """

    def __init__(self, blocks: int = 6, **options: Any) -> None:
        self.memory = Paged(blocks * SIZE, Paged.Options(SIZE, **{"watermark": 0.0, **options}))
        self.sequences: dict[str, Sequence] = {}

    def ask(self, name: str, prompt: int | tuple[int, ...] = 4, new: int = 9) -> Sequence:
        self.sequences[name] = Sequence(asks(name, prompt, new))
        return self.sequences[name]

    def iterate(self, *running: str, admit: str = "", evict: str = "", growing: bool = True) -> Placement:
        memory, every = self.memory, self.sequences
        work = tuple(Work(name, *span) for name in (*admit, *running) for span in memory.missing(every[name]))
        proposal = Proposal(
            work, tuple(every[n] for n in admit), evict=tuple(every[n] for n in evict), growing=growing
        )  # fmt: skip
        placement = memory.place(proposal, 0.0)
        memory.check_integrity()
        admitted, evicted = tuple(admit), tuple(evict)
        plan = Plan(0, 0, work, placement.places, admitted, moves=placement.moves if work else (), evicted=evicted)
        memory.commit(plan, {item.sequence for item in work}, 0.0)
        memory.check_integrity()
        for item in work:
            every[item.sequence].tokens.append(0)
        return placement

    def blocks(self, placement: Placement) -> list[tuple[int, ...]]:
        assert all(isinstance(place, Pages) and place.size == SIZE for place in placement.places)
        return [place.blocks for place in placement.places if isinstance(place, Pages)]

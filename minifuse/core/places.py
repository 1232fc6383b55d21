"""Places other than consecutive slots: several runs of slots, blocks, and the slots of states."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

from minifuse.core.errors import LawBroken
from minifuse.core.plan import Extent, Plan, Tier


class Runs(NamedTuple):
    """KV of one sequence in several runs of consecutive slots, filled in turn.

    A gap separates two runs, or the text wraps around from the end of a rectangle's row to the row's beginning.

    >>> Runs(((10, 3), (20, 4))).slots(2, 5)  # tokens 0 to 2 in slots 10 to 12, the others from slot 20 on
    [12, 20, 21]
    """

    runs: tuple[tuple[int, int], ...]  # (first slot, slots)

    @property
    def capacity(self) -> int:
        return sum([length for _, length in self.runs])

    @property
    def tier(self) -> Tier:
        return "device"

    def slots(self, start: int, stop: int) -> Seq[int]:
        """Return the slots of tokens [start, stop)."""
        slots: list[int] = []
        for slot, length in self.runs:
            if start < length and stop > 0:
                slots += range(slot + max(start, 0), slot + min(stop, length))
            start, stop = start - length, stop - length
        return slots


class Pages(NamedTuple):
    """KV of one sequence in blocks of `size` slots, listed in its block table.

    Token i lies in slot `blocks[i // size] * size + i % size`.

    >>> Pages((7, 2), 4).slots(2, 6)
    [30, 31, 8, 9]
    """

    blocks: tuple[int, ...]  # the block table
    size: int
    tier: Tier = "device"

    @property
    def capacity(self) -> int:
        return len(self.blocks) * self.size

    def slots(self, start: int, stop: int) -> Seq[int]:
        """Return the slots of tokens [start, stop)."""
        blocks, size = self.blocks, self.size
        return [blocks[i // size] * size + i % size for i in range(start, stop)]


class State(NamedTuple):
    """The slots that a node reads (one for each `Output`), and the slot it writes.

    A slot holds all outputs of one node.
    """

    reads: tuple[int, ...]
    slot: int

    @property
    def capacity(self) -> int:
        return 1

    @property
    def tier(self) -> Tier:
        return "device"

    def slots(self, start: int, stop: int) -> Seq[int]:
        """Return the slot that the node [start, stop) writes."""
        return (self.slot,)


class Reuse(NamedTuple):
    """Counts, per tier, the tokens of an admitted sequence whose KV was found there."""

    sequence: str
    on_device: int
    on_host: int

    @property
    def num_tokens(self) -> int:
        return self.on_device + self.on_host


def runs_in(place: Extent | Runs) -> tuple[tuple[int, int], ...]:
    """Return the first slot and the length of each run of slots in a place."""
    return place.runs if isinstance(place, Runs) else (place,)


def runs_of(plan: Plan) -> list[tuple[tuple[int, int], ...]]:
    """Return the runs of slots of each piece of work, for attentions that read rows."""
    found = [runs_in(place) for place in plan.places if isinstance(place, Extent | Runs)]
    if len(found) < len(plan.places):
        raise LawBroken("layout", f"step {plan.step} has {plan.places} where runs of slots are read")
    return found


def extents_of(plan: Plan) -> tuple[Extent, ...]:
    """Return a plan's places. Raise `LawBroken` unless each has consecutive slots."""
    for place in plan.places:
        if not isinstance(place, Extent):
            raise LawBroken("layout", f"step {plan.step} has {place} where consecutive slots are read")
    return plan.places  # type: ignore[return-value]

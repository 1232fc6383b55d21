"""KV that waits on the host until it is copied back (Baton, 4.2, 4.3)."""

from __future__ import annotations

from collections.abc import Iterable

from minifuse.core.places import Runs
from minifuse.core.plan import Extent, Move
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.copies import copies
from minifuse.memory.rows.copied import Copied


class HostRuns:
    """Keeps one run of host slots for each swapped-out sequence.

    A run is free when its sequence has dropped it, and the plans have run that copy from it.

    >>> host = HostRuns(8)
    >>> host.swap_out("a", Extent(40, 9), 5)  # doctest: +NORMALIZE_WHITESPACE
    [Move(kind='swap_out', source=40, target=0, num_tokens=5, source_tier='device', target_tier='host', moment='first',
     wave=0)]
    >>> host.swap_out("b", Extent(50, 9), 4) is None, host.fit([3]), host.fit([2, 2])
    (True, True, False)
    >>> host.swap_in("a", Extent(10, 9))[0].target, host.num_used, host.free.num_free
    (10, 0, 3)
    >>> host.ran([Move("swap_in", 0, 10, 5, source_tier="host")])
    >>> host.free.num_free
    8
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = RunAllocator(capacity)
        self.runs: dict[str, Extent] = {}  # slots on the host
        self.copied = Copied(self.free)
        self.arriving: set[int] = set()  # first slots of runs that a plan in flight copies to the host

    def __contains__(self, name: str) -> bool:
        return name in self.runs

    @property
    def num_used(self) -> int:
        return self.capacity - self.free.num_free - self.copied.num_dropped

    def has_arrived(self, name: str) -> bool:
        """Return whether a sequence's KV is on the host, and no longer on its way."""
        return name in self.runs and self.runs[name].offset not in self.arriving

    def fit(self, counts: Iterable[int]) -> bool:
        """Return whether runs of these lengths all fit, allocated in this order."""
        free = self.free.copy()
        return None not in [free.allocate(count) for count in counts]

    def swap_out(self, name: str, place: Extent | Runs, count: int) -> list[Move] | None:
        """Return the moves that copy a sequence's first `count` tokens to the host, or None.

        None means that `count` is 0 or that no free run is long enough.
        """
        offset = self.free.allocate(count) if count else None
        if offset is None:
            return None
        run = self.runs[name] = Extent(offset, count)
        self.arriving.add(offset)
        return copies("swap_out", place, run, count)

    def copy_in(self, name: str, place: Extent | Runs) -> list[Move]:
        """Return the moves that copy a sequence's KV to `place`. Its run stays."""
        run = self.runs[name]
        self.copied.begin(run.offset)
        return copies("swap_in", run, place, run.capacity)

    def swap_in(self, name: str, place: Extent | Runs) -> list[Move]:
        """Drop a sequence's run. Returns the moves that copy its KV to `place`."""
        moves = self.copy_in(name, place)
        self.drop(name)
        return moves

    def drop(self, name: str) -> None:
        """Free a sequence's run, once no plan in flight copies from it."""
        run = self.runs.pop(name)
        self.copied.drop(run, run.offset)

    def ran(self, moves: Iterable[Move]) -> None:
        """Record that a plan with these moves has run."""
        self.arriving.difference_update([move.target for move in moves if move.target_tier == "host"])
        self.copied.ran([move.source for move in moves if move.source_tier == "host"])

    def check(self) -> None:
        """Raise `LawBroken` unless each slot is free or has one owner."""
        self.free.check([*self.runs.values(), *self.copied.dropped.values()])

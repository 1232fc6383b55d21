"""KV that waits on the host until it is copied back (Baton, 4.2, 4.3)."""

from __future__ import annotations

from collections.abc import Iterable

from minifuse.core.places import Runs
from minifuse.core.plan import Extent, Move
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.copies import copies


class HostRuns:
    """Keeps one run of host slots for each swapped-out sequence.

    >>> host = HostRuns(8)
    >>> host.swap_out("a", Extent(40, 9), 5)  # doctest: +NORMALIZE_WHITESPACE
    [Move(kind='swap_out', source=40, target=0, num_tokens=5, source_tier='device', target_tier='host', moment='first',
     wave=0)]
    >>> host.swap_out("b", Extent(50, 9), 4) is None, host.fit([3]), host.fit([2, 2])
    (True, True, False)
    >>> host.swap_in("a", Extent(10, 9))[0].target, host.num_used
    (10, 0)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = RunAllocator(capacity)
        self.runs: dict[str, Extent] = {}  # slots on the host
        self.held: Extent | None = None  # a run that is being fetched: not free before it has landed

    def __contains__(self, name: str) -> bool:
        return name in self.runs

    @property
    def num_used(self) -> int:
        """Count the slots in use. A run that is being fetched counts on the device."""
        return self.capacity - self.free.num_free - (self.held.capacity if self.held else 0)

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
        return copies("swap_out", place, run, count)

    def swap_in(self, name: str, place: Extent | Runs) -> list[Move]:
        """Free a sequence's host run. Returns the moves that copy its KV to `place`."""
        run = self.runs[name]
        self.drop(name)
        return copies("swap_in", run, place, run.capacity)

    def drop(self, name: str) -> None:
        """Free a sequence's run, or leave that to `let_go` if the run is held."""
        run = self.runs.pop(name)
        if run != self.held:
            self.free.free(*run)

    def hold(self, name: str) -> Extent:
        """Keep a sequence's run until `let_go`, even if the sequence drops it. Returns the run."""
        self.held = self.runs[name]
        return self.held

    def holds(self, name: str) -> bool:
        """Return whether the held run is this sequence's, and has not been dropped."""
        return self.held is not None and self.runs.get(name) == self.held

    def let_go(self, name: str) -> bool:
        """Free the held run. Returns whether it was still this sequence's."""
        assert self.held is not None
        has_it = self.holds(name)
        if has_it:
            del self.runs[name]
        self.free.free(*self.held)
        self.held = None
        return has_it

    def check(self) -> None:
        """Raise `LawBroken` unless each slot is free or has one owner."""
        self.free.check({*self.runs.values(), *([self.held] if self.held else [])})

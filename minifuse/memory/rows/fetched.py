"""KV of prefilled prompts, fetched from the host before they get a row (Baton, 4.2)."""

from collections.abc import Iterable

from minifuse.core.plan import Extent, Move
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.copies import copies
from minifuse.memory.rows.host_runs import HostRuns


class Fetched:
    """Fetches runs of the host to slots [offset, offset + size) of the device, one at a time.

    Until a run has landed, its sequence can be swapped in from the host. Then, or if the sequence ends, what lands is
    dropped.

    >>> host = HostRuns(8)
    >>> _ = host.swap_out("a", Extent(0, 5), 5)
    >>> fetched = Fetched(20, 6, host)
    >>> fetched.fetch(["a"])  # doctest: +NORMALIZE_WHITESPACE
    (Move(kind='swap_in', source=0, target=20, num_tokens=5, source_tier='host', target_tier='device', moment='behind',
     wave=0),)
    >>> fetched.land()
    >>> fetched.places, host.num_used
    ({'a': Extent(offset=20, capacity=5)}, 0)

    Args:
        away: the runs on the host.
    """

    def __init__(self, offset: int, size: int, away: HostRuns) -> None:
        self.size, self.away = size, away
        self.free = RunAllocator(offset + size)
        self.others = Extent(0, offset)  # the slots before `offset`, which are never free here
        self.free.allocate(offset)
        self.places: dict[str, Extent] = {}  # where KV lies that has landed
        self.arriving: tuple[str, Extent] | None = None  # the sequence whose run is in flight, and where it will lie

    def __contains__(self, name: str) -> bool:
        return name in self.places

    @property
    def num_used(self) -> int:
        """Count the slots with KV that a sequence needs, in flight or landed."""
        dropped = self.arriving[1].capacity if self.arriving and not self.away.holds(self.arriving[0]) else 0
        return self.size - self.free.num_free - dropped

    def fetch(self, names: Iterable[str]) -> tuple[Move, ...]:
        """Return the moves that fetch the first of these sequences that is on the host.

        There are none while a run is in flight, or if there is no room.
        """
        name = None if self.arriving else next((name for name in names if name in self.away), None)
        if name is None or (offset := self.free.allocate(self.away.runs[name].capacity)) is None:
            return ()
        run = self.away.hold(name)
        place = Extent(offset, run.capacity)
        self.arriving = name, place
        return tuple([move._replace(moment="behind") for move in copies("swap_in", run, place, run.capacity)])

    def land(self) -> None:
        """Record that the run in flight has been copied."""
        assert self.arriving is not None
        (name, place), self.arriving = self.arriving, None
        if self.away.let_go(name):
            self.places[name] = place
        else:
            self.free.free(*place)

    def give_back(self, name: str) -> Extent:
        """Free a sequence's slots. Returns them."""
        place = self.places.pop(name)
        self.free.free(*place)
        return place

    def check(self) -> None:
        """Raise `LawBroken` unless each slot is free or has one owner."""
        arriving = [self.arriving[1]] if self.arriving else []
        self.free.check([self.others, *self.places.values(), *arriving])

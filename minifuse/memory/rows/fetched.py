"""KV of prefilled prompts, fetched from the host before they get a row (Baton, 4.2)."""

from collections.abc import Iterable
from typing import NamedTuple

from minifuse.core.plan import Extent, Move
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.rows.copied import Copied
from minifuse.memory.rows.host_runs import HostRuns


class Flight(NamedTuple):
    """A run of the host that is being fetched."""

    sequence: str
    run: Extent
    place: Extent  # where it will lie on the device


class Fetched:
    """Fetches runs of the host to a part of the device, one at a time.

    This part has the slots [offset, offset + size). Until a run has landed, its sequence can be swapped in from the
    host. Then, or if the sequence ends, what lands is dropped.

    >>> host = HostRuns(8)
    >>> host.ran(host.swap_out("a", Extent(0, 5), 5))
    >>> fetched = Fetched(20, 6, host)
    >>> fetched.fetch(["a"])  # doctest: +NORMALIZE_WHITESPACE
    (Move(kind='swap_in', source=0, target=20, num_tokens=5, source_tier='host', target_tier='device', moment='behind',
     wave=0),)
    >>> fetched.land([Move("swap_in", 0, 20, 5, source_tier="host")])
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
        self.copied = Copied(self.free)
        self.places: dict[str, Extent] = {}  # where KV lies that has landed
        self.flight: Flight | None = None

    def __contains__(self, name: str) -> bool:
        return name in self.places

    @property
    def num_arriving(self) -> int:
        """Count the slots of the run in flight, unless its sequence has dropped it."""
        flight = self.flight
        return flight.run.capacity if flight and self.away.runs.get(flight.sequence) == flight.run else 0

    @property
    def num_used(self) -> int:
        """Count the slots with KV that a sequence needs, in flight or landed."""
        in_flight = self.flight.place.capacity if self.flight else 0
        return self.size - self.free.num_free - self.copied.num_dropped - in_flight + self.num_arriving

    def fetch(self, names: Iterable[str]) -> tuple[Move, ...]:
        """Return the moves that fetch the first of these sequences that is on the host.

        There are none while a run is in flight, or if there is no room.
        """
        name = None if self.flight else next((name for name in names if self.away.has_arrived(name)), None)
        if name is None or (offset := self.free.allocate(self.away.runs[name].capacity)) is None:
            return ()
        run = self.away.runs[name]
        self.flight = Flight(name, run, Extent(offset, run.capacity))
        return tuple([move._replace(moment="behind") for move in self.away.copy_in(name, self.flight.place)])

    def land(self, moves: Iterable[Move]) -> None:
        """Record that the run in flight has been copied."""
        assert self.flight is not None
        if self.num_arriving:
            self.places[self.flight.sequence] = self.flight.place
            self.away.drop(self.flight.sequence)
        else:
            self.free.free(*self.flight.place)
        self.flight = None
        self.away.ran(moves)

    def embed(self, name: str) -> Extent:
        """Free a sequence's slots when the next plan, which copies them, has run.

        Returns:
            The slots.
        """
        self.copied.begin(self.places[name].offset)
        return self.give_back(name)

    def give_back(self, name: str) -> Extent:
        """Free a sequence's slots. Returns them."""
        place = self.places.pop(name)
        self.copied.drop(place, place.offset)
        return place

    def check(self) -> None:
        """Raise `LawBroken` unless each slot is free or has one owner."""
        in_flight = [self.flight.place] if self.flight else []
        self.free.check([self.others, *self.places.values(), *self.copied.dropped.values(), *in_flight])

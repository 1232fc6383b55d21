"""A padded batch whose rows change hands while it runs (Baton, 4.1 to 4.3)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.errors import LawBroken, RequestRefused, UsageError
from minifuse.layout import Rectangle
from minifuse.memory.away import Away, copies
from minifuse.memory.window import Entry, Window, shaped
from minifuse.memory.written import Written
from minifuse.options import option
from minifuse.parsing import number
from minifuse.place import Extent, Runs
from minifuse.plan import Move, Placement, Plan, Proposal, Reason, Reuse
from minifuse.report import KVUsage
from minifuse.request import Phase, Request, Sequence
from minifuse.stages import register
from minifuse.work import Span

__all__ = ["ROUNDING", "Shaped", "ShapedOptions", "ShapedRoom"]

ROUNDING = 1e-9  # slots: a part of the memory may come out a little below a whole number


class ShapedRoom:
    """Tries out an iteration: how wide the window will be after it, and how wide it may become."""

    def __init__(self, memory: Shaped) -> None:
        self.memory, self.window = memory, memory.window
        self.staying = dict(memory.window.columns)
        self.joining: list[Entry] = []
        self._extended: list[str | None] = []  # why the next tokens do not fit, once that is known

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None:
        entry = self.memory.entry(sequence, len(sequence.tokens))
        rows, _ = self.memory.division([*self.joining, entry], bool(self.staying))
        if len(self.staying) + len(self.joining) >= rows:
            return Reason("rows-full", sequence.id, f"not admitted: each of {number(rows, 'row')} has a sequence")
        why = self._full([*self.joining, entry], growing)
        if why is not None:
            return Reason("memory-full", sequence.id, f"not admitted: {why}")
        self.joining.append(entry)
        self._extended.clear()
        return None

    def extend(self, sequence: Sequence) -> Reason | None:
        if sequence.id not in self.window.rows:  # it waits for a row
            return ShapedRoom.admit(self, sequence, growing=True)
        if not self._extended:  # the same for all
            self._extended.append(self._full(self.joining, growing=True))
        (why,) = self._extended
        return None if why is None else Reason("memory-full", sequence.id, why)

    def evict(self, sequence: Sequence) -> None:
        del self.staying[sequence.id]
        self._extended.clear()

    def _full(self, joining: list[Entry], growing: bool) -> str | None:
        """Why these newcomers, beside those that stay, do not fit; None: they do.

        Args:
            growing: what is above the threshold later may be evicted then.
        """
        window, memory = self.window, self.memory
        longest = max([entry.missing for entry in joining], default=0)
        stop = window.after(longest, bool(self.staying)) if self.staying else window.stop + longest
        firsts = [spans[0].start for spans in self.staying.values()]
        width = stop - min([*firsts, *(stop - entry.length for entry in joining)], default=stop)
        new = Span(window.stop, stop)
        whole = [shaped(spans, new, runs=True)[-1].stop - spans[0].start for spans in self.staying.values()]
        widest = max([width, *whole, *(entry.most for entry in joining)])
        _, stride = memory.division(joining, bool(self.staying))
        if widest > stride:
            return f"the window would grow to {widest} columns of {stride}"
        used = (len(self.staying) + len(joining)) * (width if growing else widest) + memory.num_apart
        excess = used - memory.limit
        if excess > 0 and memory.make_room_apart(excess, {entry.name for entry in joining}) is None:
            return f"the batch would take {used} KV tokens, and the threshold is at {memory.limit}"
        return None


@dataclass(frozen=True)
class ShapedOptions:
    """The options of every memory whose rows change hands."""

    rows: int = option(
        8, "rows of the rectangle, at most: fewer where sequences need longer ones", minimum=1, batch_size=True
    )
    threshold: float = option(
        1.0, "part of the memory in use above which rows leave to the host", minimum=0.01, maximum=1
    )
    host: int | None = option(
        None, "KV tokens that the host has room for; none: as many as the device", minimum=0, maximum=10**8
    )


@register
class Shaped(Written):
    """Rows of equal length, of which a finished one is given to a newcomer while the others go on.

    How many rows there are is decided whenever none is in use.
    `insert=shape`: the newcomer's prompt is computed behind the window, and the others are padded after their token to
    its length (4.1). `insert=embed`: it ends where the others' token goes, as in 4.2, but is computed there.

    An evicted sequence keeps its KV on the host, and is embedded when it returns. The window's columns, in every row up
    to the last that has a sequence, are the memory in use: it never exceeds the `threshold` (4.3).
    """

    name = "shaped"
    offers: ClassVar[frozenset[str]] = frozenset({"rectangle"})
    evicts: ClassVar[bool] = True
    in_step: ClassVar[bool] = True  # a sequence that an iteration leaves out gets a gap, for which no room is left

    @dataclass(frozen=True)
    class Options(ShapedOptions):
        insert: str = option(
            "shape", "how a newcomer enters: behind the window, or ending with it", choices=("shape", "embed")
        )

    def __init__(self, capacity: int, options: Any = None) -> None:
        super().__init__(capacity, options)
        self.limit = int(self.options.threshold * capacity + ROUNDING)
        self.longest = int((1 - self.part_apart) * self.options.threshold * capacity + ROUNDING)  # a row, at most
        self.slots = int((1 - self.part_apart) * capacity + ROUNDING)  # of all rows
        if not self.longest:
            raise UsageError(
                f"The memory holds {capacity} KV tokens, of which memory.threshold {self.options.threshold:g} leaves "
                "no row a single one: give a higher threshold, or more --kv-memory."
            )
        self.host_capacity = capacity if self.options.host is None else self.options.host
        self.extents: dict[str, Extent | Runs] = {}
        self.window = Window(1, self.longest, self.extents, embed=self.embeds)
        self.num_batch = 0  # the window of all rows that were computed: padding, gaps and finished rows included
        self.away = Away(self.host_capacity)

    @property
    def embeds(self) -> bool:
        return bool(self.options.insert == "embed")

    @property
    def part_apart(self) -> float:
        """The part of memory that is for sequences without a row."""
        return 0.0

    @property
    def num_apart(self) -> int:
        """Slots in use in that part."""
        return 0

    def check(self, *prompts: Request) -> None:
        for request in prompts:
            if request.max_cached > self.longest:
                raise RequestRefused(
                    f"Request {request.id!r} may need a row of {request.max_cached} KV tokens, and memory has room for "
                    f"one of {self.longest} (of {self.capacity}, with {self._set_apart}): shorten the prompt, lower "
                    f"max_new_tokens{self._raise_threshold}, or raise --kv-memory."
                )

    @property
    def _set_apart(self) -> str:
        """The options that leave a row less than the memory."""
        return f"memory.threshold {self.options.threshold:g}"

    @property
    def _raise_threshold(self) -> str:
        """That this would help, for the end of a sentence, if it can be done."""
        return ", raise memory.threshold" if self.options.threshold < 1 else ""

    def division(self, joining: Collection[Entry], others: bool) -> tuple[int, int]:
        """How many rows there are and how long they are when these newcomers have joined.

        While no sequence has a row, the slots are divided anew: into as many rows as are allowed and long enough for
        every newcomer. A sequence that is longer than the rows waits until then.

        Args:
            others: whether sequences have rows that stay.
        """
        if others:
            return len(self.window.rows) + len(self.window.free), self.window.stride
        rows = min(self.options.rows, self.slots // max([entry.most for entry in joining]))
        return rows, min(self.slots // rows, self.longest)

    def room(self) -> ShapedRoom:
        return ShapedRoom(self)

    def entry(self, sequence: Sequence, stop: int) -> Entry:
        """A newcomer of which an iteration computes what is missing of the first `stop` tokens."""
        name = sequence.request.id
        return Entry(name, stop, stop - self.cached.get(name, 0), sequence.request.max_cached)

    def place(self, proposal: Proposal, now: float) -> Placement:
        joining = self._joining(proposal)
        self._check(proposal, joining)
        moves: list[Move] = []
        for sequence in proposal.evict:
            moves += self._leave(sequence.id)
        window = self.window
        running = [work.sequence for work in proposal.work if work.sequence in window.rows]
        stops = {work.sequence: work.stop for work in proposal.work}
        entries = [self.entry(sequence, stops.get(sequence.id, 0)) for sequence in joining]
        if entries and not window.rows:
            window.divide(*self.division(entries, others=False))
        computed = window.enter(entries, running)
        reused = tuple([Reuse(entry.name, 0, self.cached[entry.name]) for entry in entries if entry.name in self.away])
        for entry in entries:
            if self.cached.get(entry.name):
                moves += self._bring(entry.name)
        excess = window.height * window.width + self.num_apart - self.limit
        if excess > 0:
            moves += self._leave_apart(self.make_room_apart(excess, ()) or ())
            if window.height * window.width + self.num_apart > self.limit:
                moves += self._close_up()
        places = tuple([window.places[work.sequence] for work in proposal.work])
        return Placement(places, window.rectangle(computed), tuple(moves), (), reused)

    def make_room_apart(self, size: int, staying: Collection[str]) -> tuple[str, ...] | None:
        """The sequences without a row that can leave to the host, so that `size` slots are in use no more; None: there
        are not enough.

        Args:
            staying: those that may not leave, since they get a row.
        """
        return None

    def _leave_apart(self, names: Collection[str]) -> list[Move]:
        """Sequences without a row leave to the host."""
        return []

    def _joining(self, proposal: Proposal) -> list[Sequence]:
        """The sequences that get a row."""
        return [*proposal.admit]

    def _check(self, proposal: Proposal, joining: list[Sequence]) -> None:
        """Raise `LawBroken` if it does not fit, or evicts or works on sequences without rows, or admits others."""
        rows = self.window.rows
        allowed = {*rows, *(sequence.id for sequence in joining)}
        for sequence in proposal.evict:
            if sequence.id not in rows:
                raise LawBroken("conservation", f"{sequence.id} was to be evicted, and has no row")
            allowed.discard(sequence.id)
        for sequence in joining:
            if sequence.id in rows:
                raise LawBroken("conservation", f"{sequence.id} was admitted a second time")
        for work in proposal.work:
            if work.sequence not in allowed:
                raise LawBroken("conservation", f"work was proposed for {work.sequence}, which was never admitted")
        if left_out := allowed.difference([work.sequence for work in proposal.work]):
            raise LawBroken(
                "layout", f"{left_out} have rows, and no work: there is no room for the gap that this leaves"
            )
        room = self.room()
        for sequence in proposal.evict:
            room.evict(sequence)
        reasons = [ShapedRoom.admit(room, sequence, growing=proposal.growing) for sequence in joining]
        if full := next(filter(None, reasons), None):
            raise LawBroken("budget", f"the proposal does not fit: {full}")

    def _leave(self, name: str) -> list[Move]:
        """A sequence is evicted: its KV goes to the host, or is dropped where that has no room for it."""
        place = self.extents[name]
        self.window.leave(name)
        moves = self.away.leave(name, place, self.cached.get(name, 0))
        if moves is None:
            self.num_written -= self.cached.pop(name, 0)
        return moves or []

    def _bring(self, name: str) -> list[Move]:
        """KV that is elsewhere is copied to the row that its sequence has got."""
        return self.away.back(name, self.extents[name])

    def _close_up(self) -> list[Move]:
        """Fill the free rows between others with the last ones, so that these are computed no more."""
        moves: list[Move] = []
        while self.window.height > len(self.window.rows):
            name, before = self.window.move_last()
            moves += copies("shuffle", before, self.extents[name], self.cached[name])
        return moves

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        if plan.phase is not Phase.PREPROCESSING:
            assert isinstance(plan.shape, Rectangle)
            self.num_batch = plan.shape.rows * (plan.shape.stop - plan.shape.begin)
        return super().commit(plan, sampled, now)

    def release(self, sequence: Sequence, now: float) -> None:
        name = sequence.id
        self.num_written -= self.cached.pop(name, 0)
        if name in self.window.rows:
            self.window.leave(name)
            self.num_batch = min(self.num_batch, self.window.height * self.window.width)
        if name in self.away:
            self.away.drop(name)

    @property
    def num_used(self) -> int:
        return self.num_batch + self.num_apart

    def usage(self) -> KVUsage:
        return KVUsage(self.num_used, self.num_used, self.capacity, self.away.num_used)

    def check_integrity(self) -> None:
        super().check_integrity()
        self.away.check()
        window = self.window
        rows = [*window.rows.values(), *window.free]
        if sorted(rows) != list(range(len(rows))) or len(rows) * window.stride > self.slots:
            raise LawBroken("conservation", f"the rows {window.rows} and the free ones {window.free} are not all, once")
        used = max(self.num_batch, window.height * window.width) + self.num_apart
        if window.width > window.stride or used > self.limit:
            raise LawBroken("budget", f"{used} tokens are in use of {self.limit}, in {window.width} columns")

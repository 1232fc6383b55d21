"""A padded batch whose rows change hands while it runs (Baton, 4.1 to 4.3)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.core.errors import LawBroken, RequestRefused, UsageError
from minifuse.core.places import Reuse, Runs
from minifuse.core.plan import Extent, Move, Placement, Plan, Proposal, Reason, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Phase, Request, Sequence
from minifuse.core.stages import option
from minifuse.memory.away import Away
from minifuse.memory.copies import copies
from minifuse.memory.places import Places
from minifuse.memory.prefilled import Prefilled
from minifuse.memory.trial import Trial, settle
from minifuse.memory.window import Entry, Window, shaped
from minifuse.parsing import number
from minifuse.stages import Memory

ROUNDING = 1e-9  # slots: a part of the memory may come out a little below a whole number


class ShapedTrial(Trial):
    """Counts how wide the window becomes, and what prompts computed apart take."""

    def __init__(self, memory: Shaped) -> None:
        super().__init__()
        self.memory, self.window = memory, memory.window
        self.staying = dict(memory.window.columns)
        self.joining: dict[str, Entry] = {}  # sequences that get a row
        self.prompts: list[int] = []  # lengths of those that are computed apart
        self._extended: str | None = None  # why the next tokens do not fit, "" if they do; None: not known yet

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        if self.memory.apart and sequence.phase is Phase.RECEIVED:
            return self._take_apart(sequence)
        return self._take_row(sequence, growing)

    def _take_row(self, sequence: Sequence, growing: bool) -> Reason | None:
        entry = self.memory.entry(sequence, len(sequence.tokens))
        joining = [*self.joining.values(), entry]
        rows, _ = self.memory.division(joining, bool(self.staying))
        if len(self.staying) + len(self.joining) >= rows:
            return Reason("rows-full", sequence.id, f"not admitted: each of {number(rows, 'row')} has a sequence")
        if why := self._full(joining, growing):
            return Reason("memory-full", sequence.id, f"not admitted: {why}")
        self.joining[sequence.id] = entry
        self._extended = None
        return None

    def _take_apart(self, sequence: Sequence) -> Reason | None:
        memory, prompts = self.memory, [*self.prompts, len(sequence)]
        needed = len(prompts) * max(prompts)
        making_way = memory.make_way(needed)
        # The longest row there can be must be able to go on beside them.
        batch = max(self.window.height * (self.window.width + 1), memory.longest)
        if making_way is None or memory.prefilled.used_without(making_way) + needed + batch > memory.limit:
            text = f"there is no room to compute {number(len(prompts), 'prompt')} of {max(prompts)} tokens"
            return Reason("memory-full", sequence.id, f"not admitted: {text}")
        self.prompts = prompts
        return None

    def extend(self, sequence: Sequence) -> Reason | None:
        if sequence.id not in self.window.rows:  # it waits for a row
            return self._take_row(sequence, growing=True)
        if self._extended is None:  # the same for all
            self._extended = self._full([*self.joining.values()], growing=True)
        return Reason("memory-full", sequence.id, self._extended) if self._extended else None

    def evict(self, sequence: Sequence) -> None:
        del self.staying[sequence.id]
        self._extended = None
        self.settled.append(sequence)

    def _full(self, joining: list[Entry], growing: bool) -> str:
        """Why these newcomers do not fit beside the sequences that stay; "": they fit.

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
        used = (len(self.staying) + len(joining)) * (width if growing else widest) + memory.prefilled.num_used
        excess = used - memory.limit
        if excess > 0 and memory.make_room_apart(excess, {entry.name for entry in joining}) is None:
            return f"the batch would take {used} KV tokens, and the threshold is at {memory.limit}"
        return ""


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


class Shaped(Memory):
    """Gives the row of a finished sequence to a newcomer while the others go on.

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
        prefill: ClassVar[float] = 0.0  # no prompts are computed apart

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.options: Any = self.Options() if options is None else options
        threshold, apart = self.options.threshold, self.options.prefill
        self.limit = int(threshold * capacity + ROUNDING)
        self.longest = int((1 - apart) * threshold * capacity + ROUNDING)  # a row, at most
        self.slots = int((1 - apart) * capacity + ROUNDING)  # of all rows
        if not self.longest:
            raise UsageError(
                f"The memory holds {capacity} KV tokens, of which memory.threshold {threshold:g} leaves "
                "no row a single one: give a higher threshold, or more --kv-memory."
            )
        self.host_capacity = capacity if self.options.host is None else self.options.host
        self.books = Places[Extent | Runs]()
        self.window = Window(1, self.longest, self.books.places, embed=self.options.insert == "embed")
        self.prefilled = Prefilled(self.slots, int(apart * threshold * capacity + ROUNDING))
        self.away = Away(self.host_capacity)
        self.waiting: dict[str, Sequence] = {}  # whose prompts have been computed apart

    def check(self, *prompts: Request) -> None:
        threshold, prefill = self.options.threshold, self.options.prefill
        apart = f" and memory.prefill {prefill:g}" if prefill else ""
        for request in prompts:
            if request.max_cached > self.longest:
                raise RequestRefused(
                    f"Request {request.id!r} may need a row of {request.max_cached} KV tokens, and memory has room for "
                    f"one of {self.longest} (of {self.capacity}, with memory.threshold {threshold:g}{apart}): "
                    f"shorten the prompt, lower max_new_tokens{self._raise_threshold}, or raise --kv-memory."
                )

    @property
    def _raise_threshold(self) -> str:
        """That this would help, for the end of a sentence, if it can be done."""
        return ", raise memory.threshold" if self.options.threshold < 1 else ""

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return self.books.missing(sequence)

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

    def room(self) -> ShapedTrial:
        return ShapedTrial(self)

    def entry(self, sequence: Sequence, stop: int) -> Entry:
        """A newcomer of which an iteration computes what is missing of the first `stop` tokens."""
        name = sequence.request.id
        return Entry(name, stop, stop - self.books.cached.get(name, 0), sequence.request.max_cached)

    def place(self, proposal: Proposal, now: float) -> Placement:
        joining = self._settle(proposal)
        moves: list[Move] = []
        for sequence in proposal.evict:
            moves += self._leave(sequence.id)
        window, cached = self.window, self.books.cached
        running = [work.sequence for work in proposal.work if work.sequence in window.rows]
        stops = {work.sequence: work.stop for work in proposal.work}
        entries = [self.entry(sequence, stops[sequence.id]) for sequence in joining]
        if entries and not window.rows:
            window.divide(*self.division(entries, others=False))
        computed = window.enter(entries, running)
        reused = tuple([Reuse(entry.name, 0, cached[entry.name]) for entry in entries if entry.name in self.away])
        for entry in entries:
            if cached.get(entry.name):
                moves += self._bring(entry.name)
        if (excess := self.used - self.limit) > 0:
            for name in self.make_room_apart(excess, ()) or ():
                moves += self._leave(name)
            if self.used > self.limit:
                moves += self._close_up()
        return Placement(self.books.of(proposal.work), window.rectangle(computed), tuple(moves), (), reused)

    def _settle(self, proposal: Proposal) -> list[Sequence]:
        """The sequences that get a row: those that were computed apart, then newcomers.

        Raises:
            LawBroken: they do not fit, or a sequence that has a row is left out of the iteration.
        """
        trial = settle(proposal, ShapedTrial, self.room)
        names = [work.sequence for work in proposal.work]
        computed = [self.waiting[name] for name in names if name in self.waiting]
        for sequence in computed:
            if sequence.id not in trial.joining and (full := trial.extend(sequence)):
                raise LawBroken("budget", f"the proposal does not fit: {full}")
        joining = [*computed, *proposal.admit]
        if left_out := {*trial.staying, *(sequence.id for sequence in joining)}.difference(names):
            raise LawBroken(
                "layout", f"{left_out} have rows, and no work: there is no room for the gap that this leaves"
            )
        return joining

    def make_way(self, size: int) -> tuple[str, ...] | None:
        """Prefilled sequences to swap out to free a run of `size` slots, or None."""
        names = self.prefilled.in_the_way(size)
        return names if names is not None and self.away.fit(self.books.cached[name] for name in names) else None

    def make_room_apart(self, size: int, staying: Collection[str]) -> tuple[str, ...] | None:
        """Prefilled sequences to swap out to free `size` slots, or None.

        Args:
            staying: those that may not leave, since they get a row.
        """
        names: list[str] = []
        for name, row in reversed(self.prefilled.rows.items()):  # those that were computed last wait longest
            if size > 0 and name not in staying:
                names.append(name)
                size -= row.width
        return tuple(names) if size <= 0 and self.away.fit(self.books.cached[name] for name in names) else None

    def _leave(self, name: str) -> list[Move]:
        """Swap a sequence's KV out, or drop it if the host is full."""
        moves = self.away.leave(name, self.books.places[name], self.books.cached.get(name, 0))
        if moves is None:
            self.books.forget(name)
        self._vacate(name)
        return moves or []

    def _vacate(self, name: str) -> None:
        """A sequence gives up what it has on the device, if anything."""
        if name in self.window.rows:
            self.window.leave(name)
        elif name in self.prefilled.rows:
            self.prefilled.give_back(name)
            del self.books.places[name]

    def _bring(self, name: str) -> list[Move]:
        """KV that is elsewhere is copied to the row that its sequence has got."""
        self.waiting.pop(name, None)
        place = self.books.places[name]
        if name in self.prefilled.rows:
            return copies("embed", self.prefilled.give_back(name), place, self.books.cached[name])
        return self.away.back(name, place)

    def _close_up(self) -> list[Move]:
        """Move the last rows into free ones between others, to compute fewer rows."""
        moves: list[Move] = []
        while self.window.height > len(self.window.rows):
            name, before = self.window.move_last()
            moves += copies("shuffle", before, self.books.places[name], self.books.cached[name])
        return moves

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self.books.wrote(plan.work)
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        name = sequence.id
        self.books.forget(name)
        self._vacate(name)
        if name in self.away:
            self.away.drop(name)
        self.waiting.pop(name, None)

    @property
    def used(self) -> int:
        """Tokens in the window of all rows that are computed: padding, gaps and finished rows included."""
        return self.window.height * self.window.width + self.prefilled.num_used

    def usage(self) -> KVUsage:
        used = self.used
        return KVUsage(used, used, self.capacity, self.away.num_used)

    def check_integrity(self) -> None:
        self.away.check()
        self.prefilled.check()
        window, used = self.window, self.used
        rows = [*window.rows.values(), *window.free]
        if sorted(rows) != list(range(len(rows))) or len(rows) * window.stride > self.slots:
            raise LawBroken("conservation", f"the rows {window.rows} and the free ones {window.free} are not all, once")
        if window.width > window.stride or used > self.limit:
            raise LawBroken("budget", f"{used} tokens are in use of {self.limit}, in {window.width} columns")

"""A padded batch whose rows pass to newcomers while it runs (Baton, 4.1 to 4.3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.core.errors import LawBroken, RequestRefused, UsageError
from minifuse.core.places import Reuse, Runs
from minifuse.core.plan import Extent, Move, Placement, Plan, Proposal, Reason, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Phase, Request, Sequence
from minifuse.core.stages import option
from minifuse.io.parsing import number
from minifuse.memory.copies import copies
from minifuse.memory.places import Places
from minifuse.memory.rows.fetched import Fetched
from minifuse.memory.rows.host_runs import HostRuns
from minifuse.memory.rows.prefilled import Prefilled
from minifuse.memory.rows.window import Entry, Window
from minifuse.memory.trial import Trial, settle
from minifuse.stages import Memory

ROUNDING = 1e-9  # in slots: floating-point results may be a little below a whole number


class ShapedTrial(Trial):
    """Checks whether newcomers fit in memory.

    If prompts are computed in an iteration of their own (`memory.apart`), a new request needs slots for its prompt, and
    needs a row once the prompt is computed. Otherwise, it needs a row at once.
    """

    def __init__(self, memory: Shaped) -> None:
        super().__init__()
        self.memory = memory
        self.window = memory.window  # only read: a trial changes a copy
        self.joining: dict[str, Entry] = {}  # sequences that get a row
        self.prompts: dict[str, int] = {}  # sequences to prefill in this iteration -> length
        self.making_way: list[str] = []  # prefilled sequences that are swapped out for `prompts`
        self._extended: tuple[str, str] | None = None  # result of `_full` for running rows; None: unknown

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        if self.memory.apart and sequence.phase is Phase.RECEIVED:
            return self._take_apart(sequence)
        return self._take_row(sequence, growing)

    def _take_row(self, sequence: Sequence, growing: bool) -> Reason | None:
        name, length = sequence.id, len(sequence)
        if name in self.memory.away and not self.memory.away.has_arrived(name):
            return Reason("leaving", name, "not admitted: its KV is still being copied to the host")
        missing = length - self.memory.books.cached.get(name, 0)
        entry = Entry(name, length, missing, sequence.request.max_cached)
        code, why = self._full([*self.joining.values(), entry], growing)
        if code:
            return Reason(code, name, f"not admitted: {why}")
        self.joining[name] = entry
        self._extended = None
        return None

    def _take_apart(self, sequence: Sequence) -> Reason | None:
        memory, window = self.memory, self.memory.window
        prompts = {**self.prompts, sequence.id: len(sequence)}
        longest = max(prompts.values())
        needed = len(prompts) * longest
        leaving = memory.leaving(0, run=needed)
        freed = sum([memory.prefilled.rows[name].slots.capacity for name in leaving or ()])
        # Leave room for one more column of the batch, or for one row of the greatest length.
        batch = max(window.height * (window.width + 1), memory.longest)
        if leaving is None or memory.prefilled.num_used - freed + needed + batch > memory.limit:
            text = f"there is no room to compute {number(len(prompts), 'prompt')} of {longest} tokens"
            return Reason("memory-full", sequence.id, f"not admitted: {text}")
        self.prompts, self.making_way = prompts, leaving
        return None

    def extend(self, sequence: Sequence) -> Reason | None:
        if sequence.id not in self.memory.window.rows:  # it is prefilled and waits for a row
            return self._take_row(sequence, growing=True)
        if self._extended is None:  # the answer is the same for all rows
            self._extended = self._full([*self.joining.values()], growing=True)
        code, why = self._extended
        return Reason(code, sequence.id, why) if code else None

    def evict(self, sequence: Sequence) -> None:
        self.window = self.window.copy()
        self.window.leave(sequence.id)
        self._extended = None
        self.settled.append(sequence)

    def _full(self, joining: list[Entry], growing: bool) -> tuple[str, str]:
        """Return why newcomers do not fit, as (code, text). Both are empty if they fit.

        Args:
            growing: sequences may be evicted later, so only the columns in use now are counted.
        """
        memory, window = self.memory, self.window
        if not window.rows:
            window = window.copy()
            memory.divide(window, joining)
        if len(joining) > len(window.free):
            return "rows-full", f"each of {number(len(window.rows) + len(window.free), 'row')} has a sequence"
        window = window.copy()
        window.enter(joining)
        window.give_up()
        widths = [spans[-1].stop - spans[0].start for spans in window.columns.values()]
        widest = max([window.width, *widths])
        if widest > window.stride:
            return "memory-full", f"the window would grow to {widest} columns of {window.stride}"
        used = len(window.rows) * (window.width if growing else widest) + memory.prefilled.num_used
        excess = used - memory.limit
        if excess > 0 and memory.leaving(excess, staying=[entry.name for entry in joining]) is None:
            return "memory-full", f"the batch would take {used} KV tokens, and the threshold is at {memory.limit}"
        return "", ""


@dataclass(frozen=True)
class ShapedOptions:
    """The options of a memory whose rows pass to newcomers."""

    rows: int = option(
        8, "rows of the rectangle, at most: fewer where sequences need longer ones", minimum=1, batch_size=True
    )
    threshold: float = option(
        1.0, "part of the memory in use above which rows leave to the host", minimum=0.01, maximum=1
    )
    shrink: bool = option(
        True,
        "release rows behind the last that runs, and columns before the first; off: keep them while they fit",
    )
    host: int | None = option(
        None, "KV tokens that the host has room for; none: as many as the device", minimum=0, maximum=10**8
    )


class Shaped(Memory):
    """Gives the row of a finished sequence to a newcomer while the others go on.

    The number of rows is chosen anew whenever no row is in use. The window is the range of columns in use. With
    `insert=shape`, a newcomer's prompt is computed in new columns behind the window. The other rows have their
    next token in the first of these columns, and padding in the rest (4.1). With `insert=embed`, the prompt ends in the
    column of the other rows' next token, as in 4.2, but is computed in its row.

    An evicted sequence's KV is kept on the host, if it fits, and embedded when the sequence returns. The memory in use
    is the window's width times the number of rows up to the last occupied one. It never exceeds `threshold` (4.3).
    """

    name = "shaped"
    offers: ClassVar[frozenset[str]] = frozenset({"rectangle"})
    evicts = True
    in_step: ClassVar[bool] = True  # a row that an iteration leaves out would get a gap, and there is no room for gaps

    @dataclass(frozen=True)
    class Options(ShapedOptions):
        insert: str = option(
            "shape", "how a newcomer enters: behind the window, or ending with it", choices=("shape", "embed")
        )
        prefill: ClassVar[float] = 0.0  # no part of memory is for prefilled prompts
        prefetch: ClassVar[float] = 0.0

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.options: Any = self.Options() if options is None else options
        threshold, prefill, prefetch = self.options.threshold, self.options.prefill, self.options.prefetch
        batch = 1 - prefill - prefetch  # the part of the memory for all rows
        fetched = int(prefetch * threshold * capacity + ROUNDING)
        self.limit = int(threshold * capacity + ROUNDING) - fetched  # slots of the batch and of prefilled prompts
        self.longest = int(batch * threshold * capacity + ROUNDING)  # slots of a row, at most
        self.slots = int(batch * capacity + ROUNDING)  # slots of all rows
        if batch <= 0:
            raise UsageError(
                f"memory.prefill is {prefill:g} and memory.prefetch {prefetch:g}, and together they leave no memory "
                "for rows: give less than 1 in all."
            )
        if self.longest < 1:
            raise UsageError(
                f"The memory holds {capacity} KV tokens, of which {self._parts} leaves "
                f"no row a single one: give {'a higher threshold, or ' if threshold < 1 else ''}more --kv-memory."
            )
        self.scales = threshold < 1
        self.host_capacity = capacity if self.options.host is None else self.options.host
        if prefetch and not self.host_capacity:
            raise UsageError(
                f"memory.prefetch is {prefetch:g} and memory.host 0, which leaves nothing to fetch from: leave out "
                "memory.prefetch, or give room on the host."
            )
        self.books = Places[Extent | Runs]()
        self.window = Window(1, self.longest, embed=self.options.insert == "embed", shrink=self.options.shrink)
        self.prefilled = Prefilled(self.slots, int(prefill * threshold * capacity + ROUNDING))
        self.away = HostRuns(self.host_capacity)
        self.fetched = Fetched(self.slots + self.prefilled.size, fetched, self.away)
        self.waiting: dict[str, Sequence] = {}  # prefilled sequences without a row

    def check(self, *prompts: Request) -> None:
        for request in prompts:
            if request.max_cached > self.longest:
                raise RequestRefused(
                    f"Request {request.id!r} may need a row of {request.max_cached} KV tokens, and memory has room for "
                    f"one of {self.longest} (of {self.capacity}, with {self._parts}): "
                    f"shorten the prompt, lower max_new_tokens{self._raise_threshold}, or raise --kv-memory."
                )

    @property
    def _parts(self) -> str:
        """Name the options that divide the memory."""
        options = self.options
        apart = [f"memory.{name} {part:g}" for name in ("prefill", "prefetch") if (part := getattr(options, name))]
        return " and ".join([f"memory.threshold {options.threshold:g}", *apart])

    @property
    def _raise_threshold(self) -> str:
        """Return part of a sentence: advice to raise the threshold, if that is possible."""
        return ", raise memory.threshold" if self.options.threshold < 1 else ""

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return self.books.missing(sequence)

    def divide(self, window: Window, joining: Collection[Entry]) -> None:
        """Choose the number and length of rows for newcomers, if no row is in use.

        There are `options.rows` rows, or fewer if a newcomer needs a longer row. A later sequence that does not fit in
        a row waits until no row is in use.
        """
        if joining and not window.rows:
            rows = min(self.options.rows, self.slots // max([entry.most for entry in joining]))
            window.divide(rows, min(self.slots // rows, self.longest))

    def leaving(self, size: int, run: int = 0, staying: Collection[str] = ()) -> list[str] | None:
        """Choose prefilled sequences to swap out until `size` slots are free, or return None.

        Args:
            run: number of adjacent slots that must be free afterwards.
            staying: sequences that must not be chosen, since they get a row.
        """
        rows, free, names, cached = self.prefilled.rows, self.prefilled.free.copy(), list[str](), self.books.cached
        wanted = free.num_free + size
        computed = [name for name in reversed(rows) if name in cached]  # the last prefilled waits longest
        others = iter([name for name in computed if name not in staying])
        while free.num_free < wanted or free.longest < run:
            name = next(others, None)
            if name is None:
                return None
            free.free(*rows[name].slots)
            names.append(name)
        return names if self.away.fit([cached[name] for name in names]) else None

    def room(self) -> ShapedTrial:
        return ShapedTrial(self)

    def place(self, proposal: Proposal, now: float) -> Placement:
        entries = self._settle(proposal)
        moves = self._leave([sequence.id for sequence in proposal.evict])
        window, places, cached = self.window, self.books.places, self.books.cached
        self.divide(window, entries)
        computed = window.enter(entries)
        if entries:  # otherwise all stay where they are
            places |= {name: window.place(name) for name in window.rows}
        reused: list[Reuse] = []
        for name, *_ in entries:  # KV that lies elsewhere is copied to the row
            self.waiting.pop(name, None)
            if (apart := self._apart(name)) is not None:
                moves += copies("embed", apart.embed(name), places[name], cached[name])
            elif name in self.away:
                reused.append(Reuse(name, 0, cached[name]))
                moves += self.away.swap_in(name, places[name])
        if self.used > self.limit:
            window.give_up()
        if (excess := self.used - self.limit) > 0:
            moves += self._leave(self.leaving(excess) or ())
            if self.used > self.limit:
                moves += self._close_up()
        return Placement(self.books.of(proposal.work), window.rectangle(computed), tuple(moves), (), tuple(reused))

    def _settle(self, proposal: Proposal) -> list[Entry]:
        """Return the sequences that get a row: prefilled ones first, then newcomers.

        Raises:
            LawBroken: they do not fit, or a sequence that has a row is left out of the iteration.
        """
        trial = settle(proposal, ShapedTrial, self.room)
        names = [work.sequence for work in proposal.work]
        if trial.prompts:
            raise LawBroken("layout", f"{[*trial.prompts]} are computed apart, and not in the phase preprocessing")
        computed = [self.waiting[name] for name in names if name in self.waiting]
        for sequence in computed:
            if sequence.id not in trial.joining and (full := trial.extend(sequence)):
                raise LawBroken("budget", f"the proposal does not fit: {full}")
        joining = [sequence.id for sequence in (*computed, *proposal.admit)]
        if left_out := {*trial.window.rows, *joining}.difference(names):
            raise LawBroken(
                "layout", f"{left_out} have rows, and no work: there is no room for the gap that this leaves"
            )
        return [trial.joining[name] for name in joining]

    def _leave(self, names: Iterable[str]) -> list[Move]:
        """Swap the KV of sequences out, or drop it if the host is full."""
        moves: list[Move] = []
        for name in names:
            copied = self.away.swap_out(name, self.books.places[name], self.books.cached.get(name, 0))
            if copied is None:
                self.books.forget(name)
            moves += copied or ()
            self._vacate(name)
        return moves

    def _vacate(self, name: str) -> None:
        """Free a sequence's slots on the device, if it has any."""
        self.books.places.pop(name, None)
        if name in self.window.rows:
            self.window.leave(name)
        elif (apart := self._apart(name)) is not None:
            apart.give_back(name)

    def _apart(self, name: str) -> Prefilled | Fetched | None:
        """Return what keeps a sequence's KV on the device, outside the rows."""
        return next((store for store in (self.prefilled, self.fetched) if name in store), None)

    def _close_up(self) -> list[Move]:
        """Move sequences from the last rows to free rows before them, to compute fewer rows."""
        moves: list[Move] = []
        while self.window.height > len(self.window.rows):
            name = self.window.move_last()
            before, after = self.books.places[name], self.window.place(name)
            moves += copies("shuffle", before, after, self.books.cached[name])
            self.books.places[name] = after
        return moves

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self.books.wrote(plan.work)
        self.away.ran(plan.moves)
        for store in (self.prefilled, self.fetched):
            store.copied.ran([move.source for move in plan.moves if move.source_tier == "device"])
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
        """Count the slots in use: the window in every computed row, and prefilled prompts."""
        return self.window.height * self.window.width + self.prefilled.num_used

    def usage(self) -> KVUsage:
        used = self.used + self.fetched.num_used
        return KVUsage(used, used, self.capacity, self.away.num_used - self.fetched.num_arriving)

    def check_integrity(self) -> None:
        self.away.check()
        self.prefilled.check()
        self.fetched.check()
        window, used = self.window, self.used
        rows = [*window.rows.values(), *window.free]
        if sorted(rows) != list(range(len(rows))) or len(rows) * window.stride > self.slots:
            raise LawBroken("conservation", f"the rows {window.rows} and the free ones {window.free} are not all, once")
        if window.width > window.stride or used > self.limit:
            raise LawBroken("budget", f"{used} tokens are in use of {self.limit}, in {window.width} columns")

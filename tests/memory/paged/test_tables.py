"""Block tables against a model without blocks, which knows the text last written in each slot.

Several plans are in flight at a time and end in any order; the moves and writes of a plan happen when it ends. So a
block that is read too early, freed too early or overwritten by another sequence shows as a wrong text.
"""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from helpers import asks
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from minifuse.core.plan import Move, Work
from minifuse.core.request import Sequence
from minifuse.io.parsing import number
from minifuse.memory.paged.paged import PagedTrial
from minifuse.memory.paged.tables import Tables

Slot = tuple[str, int]  # of the "device" or of the "host"
Text = tuple[int, ...]
BEGINNING = (0, 1, 1, 0, 1, 0, 0, 1)
PROMPTS = st.builds(
    lambda shared, own: BEGINNING[:shared] + own,
    st.sampled_from([7, 5, 8, 3, 0]),
    st.sampled_from([(0,), (1,), (0, 1), (1, 1, 0)]),
)
TIERS = {"copy": ("device", "device"), "swap_in": ("host", "device"), "swap_out": ("device", "host")}


@dataclass
class Flight:
    """A plan that has been decided and has not run yet."""

    admitted: list[str] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)  # as they were when the plan was made

    @property
    def names(self) -> set[str]:
        return {*self.admitted, *self.evicted, *(work.sequence for work in self.work)}

    def copies(self) -> list[tuple[Slot, Slot]]:
        """The source and the target of every slot copied."""
        return [
            ((TIERS[move.kind][0], move.source + i), (TIERS[move.kind][1], move.target + i))
            for move in self.moves
            for i in range(move.num_tokens)
        ]

    def sources(self, tier: str, size: int) -> Counter[int]:
        """Blocks that must be held until the moves have been made, as often as they are copied from.

        Blocks that are swapped out are left out: their owner has given them up, and no other plan is in flight.
        """
        kind = "copy" if tier == "device" else "swap_in"
        return Counter(
            block
            for move in self.moves
            if move.kind == kind
            for block in range(move.source // size, (move.source + move.num_tokens - 1) // size + 1)
        )


class TablesAgainstTexts(RuleBasedStateMachine):
    @initialize(
        size=st.sampled_from([4, 3, 2, 1]),
        capacity=st.sampled_from([20, 14, 30, 10, 40]),
        host=st.sampled_from([20, 10, 6, 0]),
        swap=st.booleans(),
        share=st.sampled_from([True, True, False]),
        watermark=st.integers(0, 2),
    )
    def begin(self, size: int, capacity: int, host: int, swap: bool, share: bool, watermark: int) -> None:
        self.size, self.share, self.watermark = size, share, watermark
        self.num_blocks, self.num_host = capacity // size, host // size if swap else 0
        self.tables = Tables(self.num_blocks, self.num_host, size, share=share)
        self.contents: dict[Slot, Text] = {}
        self.sequences: dict[str, Sequence] = {}  # waiting, running or suspended
        self.cached: dict[str, int] = {}  # of sequences with KV on either tier
        self.whole: dict[str, int] = {}  # blocks set aside for each sequence on the device, taken or not
        self.lifelong: set[str] = set()  # sequences on the device with blocks for their longest answer
        self.away: set[str] = set()
        self.flights: list[Flight] = []
        self.count = 0

    # --- what the model knows

    def blocks_of(self, tokens: int) -> int:
        return (tokens + self.size - 1) // self.size

    def in_flight(self) -> set[str]:
        return {name for flight in self.flights for name in flight.names}

    def idle(self) -> list[str]:
        """Sequences on the device that no plan in flight works on."""
        return [name for name in self.whole if name not in self.in_flight()]

    def extent(self, name: str) -> int:
        """Tokens that it has KV for, or will have when the plans in flight have run."""
        return max([self.cached[name], *(w.stop for f in self.flights for w in f.work if w.sequence == name)])

    def table_length(self, name: str) -> int:
        return self.blocks_of(self.extent(name))

    def available(self) -> int:
        held = {block for pages in self.tables.blocks.pages.values() for block in pages.blocks}
        held |= {block for flight in self.flights for block in flight.sources("device", self.size)}
        return self.num_blocks - len(held) - self.promised()

    def promised(self) -> int:
        return sum(max(0, whole - self.table_length(name)) for name, whole in self.whole.items())

    def text(self, name: str, token: int) -> Text:
        return tuple(self.sequences[name].tokens[: token + 1])

    def slot(self, table: tuple[int, ...] | list[int], token: int) -> int:
        return table[token // self.size] * self.size + token % self.size

    def shared(self, newcomer: Sequence) -> int:
        """Tokens of the longest common beginning with a sequence whose KV is in place; never the newcomer's last."""
        best = 0
        for name in self.whole if self.share else ():
            if any(name in flight.admitted and self._arrives(flight, name) for flight in self.flights):
                continue
            both = zip(newcomer.tokens[:-1], self.sequences[name].tokens[: self.cached[name]], strict=False)
            best = max(best, next((i for i, (a, b) in enumerate(both) if a != b), self._shorter(newcomer, name)))
        return best

    def _shorter(self, newcomer: Sequence, name: str) -> int:
        return min(len(newcomer) - 1, self.cached[name])

    def _arrives(self, flight: Flight, name: str) -> bool:
        """Whether some of its KV is still to be copied to its blocks by this plan."""
        mine = {("device", self.slot(flight.tables[name], i)) for i in range(self.cached[name])}
        return any(target in mine for _, target in flight.copies())

    # --- plans

    def _fill_queue(self, data: Any) -> None:
        """Keep some requests waiting. (As a rule, hypothesis would leave this out of every second example.)"""
        while len(self.sequences) < 4:
            name, self.count = f"s{self.count}", self.count + 1
            self.sequences[name] = Sequence(asks(name, data.draw(PROMPTS), data.draw(st.integers(2, 9))))

    @rule(data=st.data())
    def plan(self, data: Any) -> None:
        """Admit some sequences and give some on the device work. A policy that evicts has one worker."""
        if len(self.flights) > 2 or any(flight.evicted for flight in self.flights):
            self.run(data)
        self._fill_queue(data)
        self._plan(data, Flight())

    @rule(data=st.data())
    def plan_with_evictions(self, data: Any) -> None:
        """A policy that evicts has one worker: no other plan is in flight."""
        while self.flights:
            self.run(data)
        self._fill_queue(data)
        flight = Flight()
        some = st.lists(st.sampled_from(sorted(self.whole)), min_size=1, max_size=2, unique=True)
        for name in data.draw(some) if self.whole else ():
            self._evict(name, flight)
        self._plan(data, flight)

    def _evict(self, name: str, flight: Flight) -> None:
        needed = self.blocks_of(self.cached[name])
        taken = sum(self.blocks_of(self.cached[other]) for other in self.away)
        kept = 0 < needed <= self.num_host - taken
        table, moves = list(self.tables.blocks.pages[name].blocks), self.tables.evict(name)
        del self.whole[name]
        self.lifelong.discard(name)
        flight.evicted.append(name)
        flight.moves += moves
        assert sum(move.num_tokens for move in moves) == (self.cached[name] if kept else 0)
        assert {move.kind for move in moves} <= {"swap_out"}
        if kept:
            self.away.add(name)
            copied = dict(Flight(moves=moves).copies())
            for i in range(self.cached[name]):
                source, target = ("device", self.slot(table, i)), ("host", self.slot(self.tables.away[name], i))
                assert copied[source] == target
        else:
            del self.cached[name]
        assert (name in self.tables.away, self.tables.cached.get(name)) == (kept, self.cached.get(name))

    def _plan(self, data: Any, flight: Flight) -> None:
        self.flights.append(flight)
        busy = bool(self.whole)
        outside = [n for n in self.sequences if n not in self.whole and n not in self.in_flight()]
        for name in data.draw(st.lists(st.sampled_from(outside), max_size=2, unique=True)) if outside else ():
            if not self._admit(name, flight, growing=data.draw(st.booleans()), busy=busy):
                break
            if data.draw(st.integers(0, 4)):  # not every newcomer has work in the same plan
                self._work(name, flight, data)
        for name in self.idle():
            if data.draw(st.integers(0, 3)):
                self._work(name, flight, data)
        if not flight.names:
            self.flights.remove(flight)
        self._check_targets(flight)

    def _admit(self, name: str, flight: Flight, *, growing: bool, busy: bool) -> bool:
        sequence, away = self.sequences[name], name in self.away
        shared = 0 if away else self.shared(sequence)
        assert self.tables.cached.get(name, self.tables.alike(sequence)[1]) == (self.cached[name] if away else shared)
        whole = self.blocks_of(len(sequence) if growing else sequence.request.max_cached)
        needed = whole - shared // self.size
        fits = needed <= self.available() - (self.watermark if growing and busy else 0)
        trial = self._trial(self.watermark if busy else 0)
        reason = trial.admit(sequence, growing=growing)
        if not fits:
            lacks = f"not admitted: needs {number(needed, 'block')} of {self.size} KV tokens"
            assert reason is not None
            assert reason.text.startswith(lacks)
            return False
        assert reason is None
        moves = self.tables.admit(sequence, trial.count.whole[name], *trial.alike[name])
        self.whole[name] = whole
        self.cached.setdefault(name, shared)
        self.away.discard(name)
        if not growing:
            self.lifelong.add(name)
        flight.admitted.append(name)
        flight.moves += moves
        flight.tables[name] = self.tables.blocks.pages[name].blocks
        copied = self.cached[name] if away else shared % self.size
        assert sum(move.num_tokens for move in moves) == copied
        assert {move.kind for move in moves} <= {"swap_in" if away else "copy"}
        return True

    def _work(self, name: str, flight: Flight, data: Any) -> None:
        """Compute all its missing tokens, or a piece of them."""
        start, length = self.cached[name], len(self.sequences[name])
        stop = length if data.draw(st.integers(0, 2)) else data.draw(st.integers(start + 1, length))
        short = self.blocks_of(stop) - max(self.whole[name], self.table_length(name))
        if short > self.available():
            assert name not in self.lifelong, f"{name} was promised all its blocks"
            assert self._trial().count.extend_to(name, stop) is not None
            return
        assert self._trial().count.extend_to(name, stop) is None
        if stop > len(self.tables.blocks.pages[name].blocks) * self.size:
            self.tables.grow(name, stop)
        flight.work.append(Work(name, start, stop))
        flight.tables[name] = self.tables.blocks.pages[name].blocks

    def _trial(self, kept: int = 0) -> PagedTrial:
        trial = PagedTrial(self.tables, 0)
        trial.kept = kept
        return trial

    def _check_targets(self, mine: Flight) -> None:
        """The slots a plan writes belong to no other sequence, unless for the same token of the same text."""
        written = {target: None for _, target in mine.copies()} | {
            ("device", self.slot(mine.tables[work.sequence], i)): self.text(work.sequence, i)
            for work in mine.work
            for i in range(work.start, work.stop)
        }
        for other in self.flights:
            if other is not mine:
                assert not {source for source, _ in other.copies()} & written.keys(), "another plan has yet to copy it"
        needed = {name: {self.slot(table, i): i for i in range(self.extent(name))} for name, table in self._tables()}
        for (tier, slot), text in written.items():
            for name, tokens in needed.items() if tier == "device" else ():
                if name not in mine.names and slot in tokens:
                    assert self.text(name, tokens[slot]) == text, f"slot {slot} is {name}'s"

    def _tables(self) -> list[tuple[str, list[int]]]:
        return [(name, list(pages.blocks)) for name, pages in self.tables.blocks.pages.items()]

    # --- their end

    @rule(data=st.data())
    def run(self, data: Any) -> None:
        """One of the plans in flight, not always the first, runs now: moves in order, writes, reads; then it ends."""
        if not self.flights:
            return
        flight = self.flights.pop(data.draw(st.integers(0, len(self.flights) - 1)))
        for source, target in flight.copies():
            assert source in self.contents, f"{source} was never written"
            self.contents[target] = self.contents[source]
        for name, start, stop, _ in flight.work:
            for i in range(start, stop):
                self.contents["device", self.slot(flight.tables[name], i)] = self.text(name, i)
        for name, start, stop, _ in flight.work:
            for i in range(stop):
                read = self.contents.get(("device", self.slot(flight.tables[name], i)))
                assert read == self.text(name, i), f"{name} reads {read} for its token {i}"
            self.tables.wrote([Work(name, start, stop)])
            self.cached[name] = stop
        for name in {*flight.admitted, *(work.sequence for work in flight.work)}:
            self.tables.arrived(name)
        for name, _, stop, _ in flight.work:
            sequence = self.sequences[name]
            if stop == len(sequence):
                sequence.tokens.append(data.draw(st.integers(0, 1)))
                if sequence.why_finished():
                    self._forget(name)

    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        """A sequence without a plan in flight, on the device, on the host or waiting, is abandoned."""
        idle = sorted(self.sequences.keys() - self.in_flight())
        if len(idle) > 3:
            self._forget(data.draw(st.sampled_from(idle)))

    def _forget(self, name: str) -> None:
        self.tables.release(name)
        self.away.discard(name)
        self.lifelong.discard(name)
        for books in (self.sequences, self.cached, self.whole):
            books.pop(name, None)

    @rule()
    def try_out(self) -> None:
        """A trial leaves the books as they are."""
        before, trial = pickle.dumps(vars(self.tables)), self._trial()
        evicted = [*self.tables.blocks.pages][:2]
        for name in evicted:
            trial.evict(self.sequences[name])
        for sequence in self.sequences.values():
            if sequence.id not in self.tables.blocks.pages and trial.admit(sequence, growing=True):
                break
        for name in self.tables.blocks.pages.keys() - {*evicted}:
            trial.extend(self.sequences[name])
        assert pickle.dumps(vars(self.tables)) == before

    # --- invariants

    @invariant()
    def every_sequence_reads_its_own_text(self) -> None:
        if not hasattr(self, "tables"):
            return
        moving = self.in_flight()
        away = [(name, list(table)) for name, table in self.tables.away.items()]
        for tier, books in (("device", self._tables()), ("host", away)):
            for name, table in books:
                for i in range(0 if name in moving else self.cached[name]):
                    read = self.contents.get((tier, self.slot(table, i)))
                    assert read == self.text(name, i), f"{name} would read {read} for its token {i} on the {tier}"

    @invariant()
    def blocks_are_conserved(self) -> None:
        if not hasattr(self, "tables"):
            return
        tables = self.tables
        tables.check()
        assert tables.blocks.pages.keys() == self.whole.keys()
        assert tables.away.keys() == self.away
        assert tables.cached == self.cached
        on_device, on_host = [table for _, table in self._tables()], [*tables.away.values()]
        for pool, books, tier in ((tables.device, on_device, "device"), (tables.host, on_host, "host")):
            held = Counter(block for table in books for block in table)
            for flight in self.flights:
                held += flight.sources(tier, self.size)
            assert {block: pool.holders[block] for block in held} == held
            assert pool.num_free == pool.num_blocks - len(held)
            pool.check(held.elements())
        for name, table in self._tables():
            assert len(table) == self.table_length(name), f"{name} has {table} for {self.extent(name)} tokens"
        assert tables.blocks.num_promised == self.promised()
        assert tables.num_available == self.available() >= 0
        written = {self.slot(table, i) for name, table in self._tables() for i in range(self.cached[name])}
        assert tables.num_written == len(written)

    @invariant()
    def promises_can_be_kept(self) -> None:
        """Every sequence with blocks set aside could take them all now, in any order."""
        if not hasattr(self, "tables") or not self.lifelong:
            return
        for order in (sorted(self.lifelong), sorted(self.lifelong, reverse=True)):
            trial = self._trial()
            for name in order:
                assert trial.count.extend_to(name, self.sequences[name].request.max_cached) is None

    def teardown(self) -> None:
        """When all sequences have left, no block is held."""
        if not hasattr(self, "tables"):
            return
        for name in list(self.sequences):
            self.tables.release(name)
        for name in self.in_flight():
            self.tables.arrived(name)
        assert self.tables.device.num_free == self.num_blocks
        assert self.tables.host.num_free == self.num_host
        assert not self.tables.blocks.num_promised


TestTablesAgainstTexts = TablesAgainstTexts.TestCase
TestTablesAgainstTexts.settings = settings(max_examples=75, stateful_step_count=40, deadline=None, derandomize=True)

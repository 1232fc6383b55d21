"""The books of paged memory against naive ones, which copy and compare everything, in random operations."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from helpers import asks
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory.paged.naive_tables import NaiveTables, NoRoom

from minifuse.core.errors import LawBroken
from minifuse.core.plan import Move, Proposal, Work
from minifuse.core.request import Sequence
from minifuse.memory import Paged
from minifuse.memory.paged.tables import Tables

BEGINNINGS = ((0, 1, 1, 0, 1, 0, 0, 1), (0, 1, 1, 0, 0, 0, 0, 1))
TEXTS = st.builds(
    lambda begins, shared, own: begins[:shared] + own,
    st.sampled_from(BEGINNINGS),
    st.sampled_from([8, 5, 3, 6, 0]),
    st.sampled_from([(0,), (1,), (0, 1)]),
)
Books = Tables | NaiveTables


def state_of(books: Books) -> dict[str, Any]:
    """Everything that the books say, in the order in which they say it."""
    naive = isinstance(books, NaiveTables)
    tables = books.blocks if naive else {name: pages.blocks for name, pages in books.blocks.pages.items()}
    if isinstance(books, NaiveTables):
        waiting = {"copied": books.copied, "returned": books.returned}
    else:
        waiting = {
            kind: {
                name: blocks
                for name, sources in books.sources.items()
                if (blocks := [block for tier, block in sources if tier is pool])
            }
            for kind, pool in (("copied", books.device), ("returned", books.host))
        }
    named = {"blocks": tables, "away": books.away, **waiting}
    return {
        **{kind: [(name, list(held)) for name, held in held_by.items()] for kind, held_by in named.items()},
        "sequences": list(books.sequences),
        "cached": books.cached,
        "promised": dict(books.promised if naive else books.blocks.promised),
        "free": books.free if naive else books.device.free,
        "host free": books.host_free if naive else books.host.free,
        "available": books.num_available,
        "written": books.num_written() if naive else books.num_written,
        "away tokens": sum(books.cached[name] for name in books.away) if naive else books.num_away,
    }


class TablesAgainstNaiveOnes(RuleBasedStateMachine):
    @initialize(
        size=st.sampled_from([3, 4, 2, 1]),
        blocks=st.integers(3, 16),
        host=st.integers(0, 6),
        swap=st.booleans(),
        share=st.sampled_from([True, True, False]),
        watermark=st.integers(0, 2),
    )
    def begin(self, size: int, blocks: int, host: int, swap: bool, share: bool, watermark: int) -> None:
        how: dict[str, Any] = {"preemption": "swap", "host": host} if swap and host >= size else {}
        self.memory = Paged(blocks * size, Paged.Options(size, share=share, watermark=watermark / blocks, **how))
        self.memory.watermark = watermark
        self.tables = self.memory.tables
        num_host = host // size if how else 0
        self.naive = NaiveTables(blocks, num_host, size, swap=bool(how), share=share, watermark=watermark)
        self.waiting: list[Sequence] = []
        self.count = 0

    def proposal(self, data: Any) -> Proposal:
        """Evict, admit and work on some sequences at random."""
        naive = self.naive
        self.ask(data)
        some = st.lists(st.sampled_from(sorted(naive.blocks)), max_size=2, unique=True)
        evict = tuple([naive.sequences[name] for name in data.draw(some)]) if naive.blocks else ()
        outside = [sequence for sequence in self.waiting if sequence.id not in naive.blocks]
        admit = tuple(data.draw(st.lists(st.sampled_from(outside), max_size=3, unique_by=lambda s: s.id)))
        for sequence in admit:
            assert self.memory.missing(sequence)[0].start == naive.cached.get(sequence.id, naive.alike(sequence)[1])
        rest = [naive.sequences[name] for name in naive.blocks if naive.sequences[name] not in evict]
        work = [self.work(sequence, data) for sequence in (*rest, *admit) if data.draw(st.integers(0, 3))]
        return Proposal(tuple(work), admit, evict=evict, growing=data.draw(st.booleans()))

    def work(self, sequence: Sequence, data: Any) -> Work:
        ((start, length),) = self.memory.missing(sequence)
        stop = length if data.draw(st.integers(0, 2)) else data.draw(st.integers(min(start + 1, length), length))
        return Work(sequence.id, start, stop)

    def plainly(self, books: NaiveTables, proposal: Proposal) -> list[Move]:
        """Place a proposal in naive books. Raise `NoRoom` if it does not fit."""
        moves: list[Move] = []
        busy, expected = bool(books.blocks), {sequence.id: books.alike(sequence)[1] for sequence in proposal.admit}
        for sequence in proposal.evict:
            moves += books.evict(sequence.id)
        for sequence in proposal.admit:
            if sequence.id not in books.cached and books.alike(sequence)[1] < expected[sequence.id]:
                raise NoRoom("it would miss more")
            moves += books.admit(sequence, growing=proposal.growing, busy=busy)
        for name, start, stop, _ in proposal.work:
            moves += books.grow(name, start, stop)
        return moves

    def ask(self, data: Any) -> None:
        while len(self.waiting) < 6:
            self.waiting.append(Sequence(asks(f"s{self.count}", data.draw(TEXTS), 6)))
            self.count += 1

    @rule(data=st.data())
    def try_out(self, data: Any) -> None:
        """A trial leaves the books as they are, byte for byte."""
        proposal, before = self.proposal(data), pickle.dumps(vars(self.tables))
        room = self.memory.room()
        for sequence in proposal.evict:
            room.evict(sequence)
        for sequence in proposal.admit:
            room.admit(sequence, growing=proposal.growing)
        assert pickle.dumps(vars(self.tables)) == before

    @rule(data=st.data())
    def place(self, data: Any) -> None:
        """A proposal is placed whole or, if a part of it finds no room, not at all."""
        proposal, copy = self.proposal(data), self.naive.copy()
        before = pickle.dumps(vars(self.tables))
        try:
            moves = self.plainly(copy, proposal)
        except NoRoom:
            with pytest.raises(LawBroken, match="does not fit"):
                self.memory.place(proposal, 0.0)
            assert pickle.dumps(vars(self.tables)) == before
            return
        assert list(self.memory.place(proposal, 0.0).moves) == moves
        self.naive = copy

    @rule(data=st.data())
    def complete(self, data: Any) -> None:
        """A plan has run: its copies have arrived, and its work is written."""
        if not self.naive.blocks:
            return
        some = st.lists(st.sampled_from(sorted(self.naive.blocks)), min_size=1, unique=True)
        for name in data.draw(some):
            sequence, kept = self.naive.sequences[name], self.naive.cached[name]
            stop = max(kept, min(len(self.naive.blocks[name]) * self.naive.size, len(sequence)))
            if not data.draw(st.integers(0, 3)):
                stop = data.draw(st.integers(kept, stop))
            self.tables.wrote([Work(name, kept, stop)])
            self.naive.wrote(name, stop)
            for books in (self.tables, self.naive):
                books.arrived(name)
            if stop == len(sequence) < sequence.request.max_length - 1:
                sequence.tokens.append(data.draw(st.integers(0, 1)))

    @rule(data=st.data())
    def release(self, data: Any) -> None:
        held = [sequence for sequence in self.waiting if sequence.id in self.naive.sequences]
        if not held:
            return
        sequence = data.draw(st.sampled_from(held))
        self.waiting.remove(sequence)
        for books in (self.tables, self.naive):
            books.release(sequence.id)

    def teardown(self) -> None:
        """When all have left, nothing is held."""
        for sequence in self.waiting if hasattr(self, "tables") else ():
            self.tables.release(sequence.id)
            self.naive.release(sequence.id)
        if hasattr(self, "tables"):
            assert state_of(self.tables) == state_of(self.naive)
            assert (self.tables.num_written, self.tables.device.num_free) == (0, self.tables.device.num_blocks)
            assert not self.tables.prefixes.root.children

    @invariant()
    def both_say_the_same(self) -> None:
        if hasattr(self, "tables"):
            self.tables.check()
            assert state_of(self.tables) == state_of(self.naive)


TestTablesAgainstNaiveOnes = TablesAgainstNaiveOnes.TestCase
TestTablesAgainstNaiveOnes.settings = settings(max_examples=50, stateful_step_count=30, deadline=None, derandomize=True)

"""The books of paged memory against naive ones, which copy and compare everything, in random operations."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from helpers import asks
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory.naive_tables import NaiveTables

from minifuse.memory.tables import NoRoom, Tables
from minifuse.memory.trial import Trial
from minifuse.request import Sequence
from minifuse.work import Work

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
    tables = books.blocks if naive else {name: pages.blocks for name, pages in books.pages.items()}
    named = {"blocks": tables, "away": books.away, "copied": books.copied, "returned": books.returned}
    return {
        **{kind: [(name, list(held)) for name, held in held_by.items()] for kind, held_by in named.items()},
        "sequences": list(books.sequences),
        "cached": books.cached,
        "promised": books.promised,
        "free": books.free if naive else books.device.free,
        "host free": books.host_free if naive else books.host.free,
        "available": books.num_available,
        "written": books.num_written(),
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
    def begin(self, size: int, blocks: int, host: int, **how: Any) -> None:
        self.tables = Tables(blocks, host, size, **how)
        self.naive = NaiveTables(blocks, host, size, **how)
        self.waiting: list[Sequence] = []
        self.count = 0

    def both(self, tables: Tables, naive: NaiveTables, what: Callable[[Any], Any]) -> bool:
        """Do the same to both. Returns whether there was room."""
        answers: list[Any] = []
        for books in (tables, naive):
            try:
                answers.append(what(books))
            except NoRoom as full:
                answers.append(str(full))
        new, plain = answers
        if isinstance(plain, str):
            assert plain in new.replace(" for running requests", "")
            return False
        assert new == plain
        return True

    def change(self, tables: Tables, naive: NaiveTables, data: Any) -> bool:
        """Admit, grow or evict at random. Returns whether there was room."""
        waiting = [sequence for sequence in self.waiting if sequence.id not in naive.blocks]
        kind = data.draw(
            st.sampled_from(["admit"] * 3 * bool(waiting) + ["grow", "grow", "evict"] * bool(naive.blocks))
        )
        if kind == "admit":
            sequence, growing = data.draw(st.sampled_from(waiting)), data.draw(st.booleans())
            assert tables.num_cached(sequence) == naive.cached.get(sequence.id, naive.alike(sequence)[1])
            busy = bool(naive.blocks)
            assert (tables.num_on_device > 0) == busy
            return self.both(tables, naive, lambda books: books.admit(sequence, growing=growing, busy=busy))
        name = data.draw(st.sampled_from(sorted(naive.blocks)))
        if kind == "evict":
            return self.both(tables, naive, lambda books: books.evict(name))
        start, length = naive.cached[name], len(naive.sequences[name])
        stop = length if data.draw(st.integers(0, 2)) else data.draw(st.integers(min(start + 1, length), length))
        return self.both(tables, naive, lambda books: books.grow(name, start, stop))

    def ask(self, data: Any) -> None:
        while len(self.waiting) < 6:
            self.waiting.append(Sequence(asks(f"s{self.count}", data.draw(TEXTS), 6)))
            self.count += 1

    @rule(data=st.data())
    def try_out(self, data: Any) -> None:
        """A trial agrees with a copy, and leaves the books as they are, byte for byte."""
        self.ask(data)
        before = pickle.dumps(vars(self.tables))
        trial, copy = Trial(self.tables), self.naive.copy()
        for _ in range(data.draw(st.integers(1, 5))):
            self.change(trial, copy, data)
        assert trial.num_available == copy.num_available
        assert pickle.dumps(vars(self.tables)) == before

    @rule(data=st.data())
    def place(self, data: Any) -> None:
        """Changes are made, all of them or, if one finds no room, none."""
        self.ask(data)
        before = pickle.dumps(vars(self.tables))
        trial, copy = Trial(self.tables), self.naive.copy()
        if all(self.change(trial, copy, data) for _ in range(data.draw(st.integers(1, 4)))):
            trial.make()
            self.naive = copy
        else:
            assert pickle.dumps(vars(self.tables)) == before

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
            assert (self.tables.num_written(), self.tables.device.num_free) == (0, self.tables.device.num_blocks)
            assert not self.tables.prefixes.root.children

    @invariant()
    def both_say_the_same(self) -> None:
        if hasattr(self, "tables"):
            self.tables.check()
            assert state_of(self.tables) == state_of(self.naive)


TestTablesAgainstNaiveOnes = TablesAgainstNaiveOnes.TestCase
TestTablesAgainstNaiveOnes.settings = settings(max_examples=50, stateful_step_count=30, deadline=None, derandomize=True)

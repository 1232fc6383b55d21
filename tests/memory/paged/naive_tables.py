"""Block tables that are copied whole and texts that are compared whole, for the books of paged memory to agree with."""

from __future__ import annotations

from copy import deepcopy

from minifuse.core.parsing import number
from minifuse.core.plan import Move
from minifuse.core.request import Sequence

__all__ = ["NaiveTables", "NoRoom"]


class NoRoom(Exception):
    """Something does not fit now."""


class NaiveTables:
    """As `memory.paged.tables.Tables`, in the plainest way: no sum is kept, every question looks at everything."""

    def __init__(self, num_blocks: int, num_host: int, size: int, *, swap: bool, share: bool, watermark: int) -> None:
        self.size, self.swap, self.share, self.watermark = size, swap, share, watermark
        self.num_blocks = num_blocks
        self.free = list(range(num_blocks - 1, -1, -1))
        self.host_free = list(range(num_host - 1, -1, -1))
        self.sequences: dict[str, Sequence] = {}
        self.blocks: dict[str, list[int]] = {}
        self.away: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.promised: dict[str, int] = {}
        self.copied: dict[str, list[int]] = {}
        self.returned: dict[str, list[int]] = {}

    def copy(self) -> NaiveTables:
        twin = NaiveTables(0, 0, self.size, swap=self.swap, share=self.share, watermark=self.watermark)
        for name, value in vars(self).items():
            setattr(twin, name, dict(value) if name == "sequences" else deepcopy(value))
        return twin

    def holders(self, block: int) -> int:
        return sum(held.count(block) for books in (self.blocks, self.copied) for held in books.values())

    def give_back(self, block: int) -> None:
        """Called when a holder has been removed."""
        if not self.holders(block):
            self.free.append(block)

    @property
    def num_available(self) -> int:
        return len(self.free) - sum(self.promised.values())

    def blocks_of(self, num_tokens: int) -> int:
        return (num_tokens + self.size - 1) // self.size

    def alike(self, newcomer: Sequence) -> tuple[str, int]:
        best = ("", 0)
        for name in self.blocks if self.share else ():
            if name not in self.copied and name not in self.returned:
                ours, theirs = newcomer.tokens[:-1], self.sequences[name].tokens[: self.cached[name]]
                same = 0
                while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
                    same += 1
                best = max(best, (name, same), key=lambda found: found[1])  # of equals the first
        return best

    def admit(self, sequence: Sequence, *, growing: bool, busy: bool) -> list[Move]:
        name, away = sequence.id, self.away.get(sequence.id, [])
        parent, shared = ("", 0) if name in self.cached else self.alike(sequence)
        needed = self.blocks_of(len(sequence) if growing else sequence.request.max_cached) - shared // self.size
        if needed > self.num_available - (self.watermark if growing and busy else 0):
            raise NoRoom(f"needs {number(needed, 'block')}, {self.num_available} are free")
        self.sequences[name] = sequence
        self.blocks[name] = self.blocks.get(parent, [])[: self.blocks_of(shared)]
        self.blocks[name] += [self.free.pop() for _ in away]
        self.cached.setdefault(name, shared)
        self.promised[name] = needed - len(away)
        if not away:
            return self.grow(name, shared, shared + 1) if shared % self.size else []
        self.returned[name] = self.away.pop(name)
        return self.moves("swap_in", self.returned[name], self.blocks[name], self.cached[name])

    def is_shared(self, block: int) -> bool:
        return sum(table.count(block) for table in self.blocks.values()) > 1

    def grow(self, name: str, start: int, stop: int) -> list[Move]:
        table, moves = self.blocks[name], []
        last = min(self.blocks_of(stop), len(table))
        shared = [i for i in range(start // self.size, last) if self.is_shared(table[i])]
        needed = max(0, self.blocks_of(stop) - len(table)) + len(shared)
        if needed - self.promised[name] > self.num_available:
            raise NoRoom(f"needs {number(needed, 'block')}, {self.num_available} are free")
        for i in shared:
            source, table[i] = table[i], self.free.pop()
            self.copied.setdefault(name, []).append(source)
            if (kept := min(self.cached[name] - i * self.size, self.size)) > 0:
                moves.append(Move("copy", source * self.size, table[i] * self.size, kept))
        table += [self.free.pop() for _ in range(needed - len(shared))]
        self.promised[name] = max(0, self.promised[name] - needed)
        return moves

    def evict(self, name: str) -> list[Move]:
        table = self.blocks.pop(name)
        del self.promised[name]
        for block in table:
            self.give_back(block)
        needed = self.blocks_of(self.cached[name])
        if not self.swap or not needed or needed > len(self.host_free):
            del self.cached[name], self.sequences[name]
            return []
        self.away[name] = [self.host_free.pop() for _ in range(needed)]
        return self.moves("swap_out", table, self.away[name], self.cached[name])

    def wrote(self, name: str, stop: int) -> None:
        self.cached[name] = stop

    def arrived(self, name: str) -> None:
        for block in self.copied.pop(name, ()):
            self.give_back(block)
        self.host_free += self.returned.pop(name, [])

    def release(self, name: str) -> None:
        self.arrived(name)
        for block in self.blocks.pop(name, ()):
            self.give_back(block)
        self.host_free += self.away.pop(name, [])
        for books in (self.cached, self.promised, self.sequences):
            books.pop(name, None)

    def moves(self, kind: str, sources: list[int], targets: list[int], num_tokens: int) -> list[Move]:
        """Token by token; a token that follows the one before it on both sides is of the same move."""
        found: list[Move] = []
        for token in range(num_tokens):
            block, within = divmod(token, self.size)
            source, target = (blocks[block] * self.size + within for blocks in (sources, targets))
            last = found[-1] if found else Move("embed", -9, -9, 0)
            if (last.source + last.num_tokens, last.target + last.num_tokens) == (source, target):
                found[-1] = last._replace(num_tokens=last.num_tokens + 1)
            else:
                tiers = ("host", "device") if kind == "swap_in" else ("device", "host")
                found.append(Move(kind, source, target, 1, *tiers))  # type: ignore[arg-type]
        return found

    def num_written(self) -> int:
        return len(
            {
                table[token // self.size] * self.size + token % self.size
                for name, table in self.blocks.items()
                for token in range(self.cached[name])
            }
        )

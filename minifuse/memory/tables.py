"""Block tables: who holds which blocks, on the device and on the host, and the copies that follow from a change."""

from __future__ import annotations

from typing import Literal

from minifuse.memory.blocks import BlockPool
from minifuse.plan import Move
from minifuse.request import Sequence

__all__ = ["NoRoom", "Tables"]


class NoRoom(Exception):
    """Something does not fit now, as the sentence says. Nothing has changed."""


class Tables:
    """The books of paged memory. Every change happens whole or, with `NoRoom`, not at all.

    A block that is still to be copied from is held until the copy has been made (`arrived`): whoever it belonged to may
    have left by then.

    Args:
        size: slots in a block.
        swap: keep the KV of those who are evicted on the host, as far as there is room for it.
        share: let prompts that begin alike hold the same blocks.
        watermark: blocks that newcomers leave free for those who run.
    """

    def __init__(self, num_blocks: int, num_host: int, size: int, *, swap: bool, share: bool, watermark: int) -> None:
        self.size, self.swap, self.share, self.watermark = size, swap, share, watermark
        self.device = BlockPool(num_blocks)
        self.host = BlockPool(num_host)
        self.sequences: dict[str, Sequence] = {}  # everybody who has a place in either tier
        self.blocks: dict[str, list[int]] = {}  # the block table of each one on the device
        self.away: dict[str, list[int]] = {}  # the host blocks of each one that was swapped out
        self.cached: dict[str, int] = {}  # leading tokens whose KV is kept, in the one tier or the other
        self.promised: dict[str, int] = {}  # blocks set aside for each one and not taken yet
        self.copied: dict[str, list[int]] = {}  # device blocks that each one's last plan copies from
        self.returned: dict[str, list[int]] = {}  # host blocks that each one's last plan copies from

    def copy(self) -> Tables:
        """The same books, to be changed at will."""
        twin = Tables(0, 0, self.size, swap=self.swap, share=self.share, watermark=self.watermark)
        twin.device, twin.host = self.device.copy(), self.host.copy()
        twin.sequences, twin.cached, twin.promised = dict(self.sequences), dict(self.cached), dict(self.promised)
        for name in ("blocks", "away", "copied", "returned"):
            setattr(twin, name, {key: list(blocks) for key, blocks in getattr(self, name).items()})
        return twin

    @property
    def num_promised(self) -> int:
        return sum(self.promised.values())

    @property
    def num_available(self) -> int:
        """Blocks of the device that are neither held nor promised."""
        return self.device.num_free - self.num_promised

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-num_tokens // self.size)

    def num_cached(self, sequence: Sequence) -> int:
        """Leading tokens that need not be computed: its own, or, of a newcomer, those it would share."""
        if sequence.id in self.cached:
            return self.cached[sequence.id]
        return self._alike(sequence)[1]

    def _alike(self, newcomer: Sequence) -> tuple[str, int]:
        """Who has the longest beginning of a newcomer's tokens on the device, and its length: not the last token."""
        best = ("", 0)
        for name in self.blocks if self.share else ():
            if name in self.copied or name in self.returned:
                continue  # what it has is still on its way
            ours, theirs = newcomer.tokens, self.sequences[name].tokens
            limit = min(self.cached[name], len(ours) - 1, len(theirs))  # of one that has ended, not what came after
            if limit > best[1]:
                same = next((i for i in range(limit) if ours[i] != theirs[i]), limit)
                best = max(best, (name, same), key=lambda found: found[1])
        return best

    def admit(self, sequence: Sequence, *, growing: bool, busy: bool) -> list[Move]:
        """Give a newcomer, or someone who comes back, what it has KV for, and promise it what it will need.

        A block that it shares in part is copied at once: its first token of its own goes there.

        Args:
            growing: promise blocks up to its next token, and not for its longest possible answer.
            busy: others are here already, for whom the watermark is kept.

        Raises:
            NoRoom: there are not enough blocks.
        """
        name = sequence.id
        away = self.away.get(name, [])
        parent, shared = ("", 0) if name in self.cached else self._alike(sequence)
        whole = self.blocks_of(len(sequence) if growing else sequence.request.max_cached)
        needed = whole - shared // self.size  # of a block that is shared in part it will need a copy
        available = self.num_available - (self.watermark if growing and busy else 0)
        if needed > available:
            kept = f", {self.watermark} of them kept for those who run" if growing and busy and self.watermark else ""
            raise NoRoom(
                f"not admitted: needs {needed} blocks of {self.size} KV tokens, {self.num_available} are free{kept}"
            )
        self.sequences[name] = sequence
        table = self.blocks[name] = self.blocks.get(parent, [])[: self.blocks_of(shared)]
        for block in table:
            self.device.share(block)
        for _ in away:
            table.append(self.device.take())
        self.cached[name] = self.cached.get(name, shared)
        self.promised[name] = needed - len(away)
        if not away:
            return self.grow(name, shared, shared + 1) if shared % self.size else []
        self.returned[name] = self.away.pop(name)
        return self._moves("swap_in", self.returned[name], table, self.cached[name])

    def grow(self, name: str, start: int, stop: int) -> list[Move]:
        """Get ready for the KV of tokens [start, stop): new blocks at the end, and copies of those others hold too.

        >>> # blocks of 4; b has shared a's 6 tokens, and is about to write its 7th in their second block, 1:
        >>> # it takes a block of its own, say 2, and the plan copies the two tokens of block 1 there first:
        >>> # Move("copy", source=4, target=8, num_tokens=2)

        Raises:
            NoRoom: there are not enough blocks.
        """
        table = self.blocks[name]
        shared = [
            i for i in range(start // self.size, min(self.blocks_of(stop), len(table))) if self._is_shared(table[i])
        ]
        needed = max(0, self.blocks_of(stop) - len(table)) + len(shared)
        promised = self.promised.get(name, 0)
        if needed - promised > self.num_available:
            raise NoRoom(f"has no room for its next token: needs {needed} blocks, {self.num_available} are free")
        moves: list[Move] = []
        for i in shared:
            source, table[i] = table[i], self.device.take()
            self.copied.setdefault(name, []).append(source)
            if (kept := min(self.cached[name] - i * self.size, self.size)) > 0:
                moves.append(Move("copy", source * self.size, table[i] * self.size, kept))
        table += [self.device.take() for _ in range(needed - len(shared))]
        self.promised[name] = max(0, promised - needed)
        return moves

    def _is_shared(self, block: int) -> bool:
        """Whether several have it in their tables: one who only copies from it is not disturbed by what is added."""
        copying = sum(sources.count(block) for sources in self.copied.values())
        return self.device.num_holders(block) - copying > 1

    def evict(self, name: str) -> list[Move]:
        """Take everything that someone has on the device; what it is swapped out to, or nothing, is what it keeps."""
        table, cached = self.blocks.pop(name), self.cached[name]
        self.promised.pop(name, None)
        for block in table:
            self.device.give_back(block)
        needed = self.blocks_of(cached)
        if not self.swap or not cached or needed > self.host.num_free:
            del self.cached[name], self.sequences[name]
            return []
        self.away[name] = [self.host.take() for _ in range(needed)]
        return self._moves("swap_out", table, self.away[name], cached)

    def arrived(self, name: str) -> None:
        """The copies of its last plan have been made."""
        for block in self.copied.pop(name, ()):
            self.device.give_back(block)
        for block in self.returned.pop(name, ()):
            self.host.give_back(block)

    def release(self, name: str) -> None:
        """It is gone, wherever it was."""
        self.arrived(name)
        for block in self.blocks.pop(name, ()):
            self.device.give_back(block)
        for block in self.away.pop(name, ()):
            self.host.give_back(block)
        for books in (self.cached, self.promised, self.sequences):
            books.pop(name, None)

    def _moves(
        self, kind: Literal["swap_in", "swap_out"], sources: list[int], targets: list[int], num_tokens: int
    ) -> list[Move]:
        """Copies of so many tokens, block by block; neighbours that stay neighbours move together."""
        moves: list[Move] = []
        size = self.size
        for i, (source, target) in enumerate(zip(sources, targets, strict=False)):
            tokens = min(size, num_tokens - i * size)
            last = moves[-1] if moves else None
            if last and (last.source + last.num_tokens, last.target + last.num_tokens) == (
                source * size,
                target * size,
            ):
                moves[-1] = last._replace(num_tokens=last.num_tokens + tokens)
            elif tokens > 0:
                moves.append(Move(kind, source * size, target * size, tokens))
        return moves

    def num_written(self) -> int:
        """Slots of the device with KV in them, those of a shared block counted once."""
        if sum(map(len, self.blocks.values())) + sum(map(len, self.copied.values())) == (
            self.device.num_blocks - self.device.num_free
        ):
            return sum(self.cached[name] for name in self.blocks)
        filled: dict[int, int] = {}
        for name in self.blocks:
            for i, block in enumerate(self.blocks[name]):
                tokens = min(self.size, self.cached[name] - i * self.size)
                filled[block] = max(filled.get(block, 0), tokens)
        return sum(filled.values())

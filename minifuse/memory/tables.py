"""Block tables of all sequences, on the device and on the host, and the copies that a change of them takes.

See Kwon et al., vLLM (SOSP 2023), 4.2 to 4.5: block tables, copy-on-write, swapping and recomputation.
"""

from __future__ import annotations

from typing import Literal

from minifuse.memory.blocks import BlockPool
from minifuse.plan import Move, Tier
from minifuse.request import Sequence

__all__ = ["NoRoom", "Tables"]

TIERS: dict[str, tuple[Tier, Tier]] = {"swap_in": ("host", "device"), "swap_out": ("device", "host")}


class NoRoom(Exception):
    """Something does not fit now, as the message says. Nothing has changed."""


class Tables:
    """The books of paged memory. Every change happens completely or, with `NoRoom`, not at all.

    A block that a plan copies from is held until the copy has been made (`arrived`), even if its sequence is released
    before that.

    Args:
        size: slots in a block.
        swap: keep the KV of evicted sequences on the host, as far as there is room.
        share: let prompts with a common beginning hold the same blocks.
        watermark: blocks that newcomers leave free for running sequences.
    """

    def __init__(self, num_blocks: int, num_host: int, size: int, *, swap: bool, share: bool, watermark: int) -> None:
        self.size, self.swap, self.share, self.watermark = size, swap, share, watermark
        self.device = BlockPool(num_blocks)
        self.host = BlockPool(num_host)
        self.sequences: dict[str, Sequence] = {}  # all that have KV in either tier
        self.blocks: dict[str, list[int]] = {}  # sequence -> block table on the device
        self.away: dict[str, list[int]] = {}  # sequence -> host blocks that it was swapped out to
        self.cached: dict[str, int] = {}  # sequence -> leading tokens whose KV is kept in its tier
        self.promised: dict[str, int] = {}  # sequence -> blocks set aside for it and not taken yet
        self.copied: dict[str, list[int]] = {}  # sequence -> device blocks that its last plan copies from
        self.returned: dict[str, list[int]] = {}  # sequence -> host blocks that its last plan copies from

    def copy(self) -> Tables:
        """An independent copy of the books."""
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
        """Blocks that so many tokens take: 6 tokens in blocks of 4 take 2."""
        return -(-num_tokens // self.size)

    def num_cached(self, sequence: Sequence) -> int:
        """Leading tokens whose KV need not be computed: it has them, or would share them as a newcomer."""
        if sequence.id in self.cached:
            return self.cached[sequence.id]
        return self._alike(sequence)[1]

    def _alike(self, newcomer: Sequence) -> tuple[str, int]:
        """The sequence that has the longest beginning of a newcomer's tokens on the device, and its length, or ("", 0).

        The newcomer's last token is never shared: it must be computed, for the next one is sampled from it.
        """
        best = ("", 0)
        for name in self.blocks if self.share else ():
            if name in self.copied or name in self.returned:
                continue  # its blocks are still being copied to
            ours, theirs = newcomer.tokens, self.sequences[name].tokens
            limit = min(self.cached[name], len(ours) - 1, len(theirs))  # its KV may go beyond the end of its answer
            if limit > best[1]:
                same = next((i for i in range(limit) if ours[i] != theirs[i]), limit)
                if same > best[1]:
                    best = (name, same)
        return best

    def admit(self, sequence: Sequence, *, growing: bool, busy: bool) -> list[Move]:
        """Admit a newcomer or a swapped-out sequence: give it blocks for the KV it has, and promise what it will need.

        The last block of a shared beginning is copied at once if it is shared in part: the newcomer writes there next.

        Args:
            growing: promise blocks up to the next token only, not for the longest possible answer.
            busy: other sequences are on the device, for which the watermark is kept.

        Raises:
            NoRoom: there are not enough blocks.
        """
        name = sequence.id
        away = self.away.get(name, [])
        parent, shared = ("", 0) if name in self.cached else self._alike(sequence)
        whole = self.blocks_of(len(sequence) if growing else sequence.request.max_cached)
        needed = whole - shared // self.size  # a block shared in part is copied, so it counts as needed
        available = self.num_available - (self.watermark if growing and busy else 0)
        if needed > available:
            kept = (
                f", {self.watermark} of them kept for running requests" if growing and busy and self.watermark else ""
            )
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
        """Provide for the KV of tokens [start, stop): new blocks at the end, copies of shared ones (copy-on-write).

        >>> # blocks of 4; b shares the 6 tokens of a, and will write its 7th into their second block, 1:
        >>> # it takes a block of its own, say 2, and the plan first copies the two tokens of block 1 there:
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
        """Whether several tables have it. Holders that only copy from it are not counted: they ignore added tokens."""
        copying = sum(sources.count(block) for sources in self.copied.values())
        return self.device.num_holders(block) - copying > 1

    def evict(self, name: str) -> list[Move]:
        """Free all device blocks of a sequence. Its KV is swapped out if the host has room, otherwise dropped."""
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
        """Free the blocks that the last plan of a sequence has copied from."""
        for block in self.copied.pop(name, ()):
            self.device.give_back(block)
        for block in self.returned.pop(name, ()):
            self.host.give_back(block)

    def release(self, name: str) -> None:
        """Free everything that a sequence has, in both tiers."""
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
        """Copies of `num_tokens` tokens, block by block; blocks adjacent in both tiers are one move.

        >>> # blocks of 4, 6 tokens, from blocks [3, 4]: to [0, 1] one move of 6 tokens, to [1, 0] moves of 4 and 2
        """
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
                moves.append(Move(kind, source * size, target * size, tokens, *TIERS[kind]))
        return moves

    def num_written(self) -> int:
        """Slots of the device that hold KV; those of a shared block count once."""
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

"""Block tables of all sequences, on the device and on the host, and the copies that a change of them takes.

See Kwon et al., vLLM (SOSP 2023), 4.2 to 4.5: block tables, copy-on-write, swapping and recomputation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from minifuse.errors import LawBroken
from minifuse.memory.blocks import BlockPool
from minifuse.memory.prefixes import Prefixes
from minifuse.parsing import number
from minifuse.place import Pages
from minifuse.plan import Move, Tier
from minifuse.request import Sequence
from minifuse.work import Work

__all__ = ["NoRoom", "Tables"]

TIERS: dict[str, tuple[Tier, Tier]] = {"swap_in": ("host", "device"), "swap_out": ("device", "host")}


class NoRoom(Exception):
    """Something does not fit now, as the message says. Nothing has changed."""


class Tables:
    """The books of paged memory. Every change happens completely or, with `NoRoom`, not at all.

    A block that a plan copies from is held until the copy has been made (`arrived`), even if its sequence is released
    before that. Sums are kept beside the books, so that no question takes longer for more sequences or blocks. What
    one sequence has is a tuple, made anew when it changes: an unchanged table is the same object in every plan.

    What is only tried out is done to a `Trial` of the books (`minifuse.memory.trial`).

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
        self.pages: dict[str, Pages] = {}  # sequence -> block table on the device
        self.away: dict[str, tuple[int, ...]] = {}  # sequence -> host blocks that it was swapped out to
        self.cached: dict[str, int] = {}  # sequence -> leading tokens whose KV is kept in its tier
        self.promised: dict[str, int] = {}  # sequence -> blocks set aside for it and not taken yet
        self.copied: dict[str, tuple[int, ...]] = {}  # sequence -> device blocks that its last plan copies from
        self.returned: dict[str, tuple[int, ...]] = {}  # sequence -> host blocks that its last plan copies from
        self.copying: dict[int, int] = {}  # device block -> how many sequences' last plans copy from it
        self.prefixes = Prefixes()  # of the sequences on the device, with `share`
        self.num_promised = 0  # the sum of `promised`
        self.num_kept = 0  # the sum of `cached` on the device; on the host it is
        self.num_away = 0

    @property
    def num_on_device(self) -> int:
        """Sequences on the device."""
        return len(self.pages)

    @property
    def num_available(self) -> int:
        """Blocks of the device that are neither held nor promised."""
        return len(self.device.free) - self.num_promised

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks that so many tokens take: 6 tokens in blocks of 4 take 2."""
        return -(-num_tokens // self.size)

    def num_cached(self, sequence: Sequence) -> int:
        """Leading tokens whose KV need not be computed: it has them, or would share them as a newcomer."""
        cached = self.cached.get(sequence.id)
        return self._alike(sequence)[1] if cached is None else cached

    def _alike(self, newcomer: Sequence) -> tuple[str, int]:
        """The sequence that has the longest beginning of a newcomer's tokens on the device, and its length, or ("", 0).

        Of several the one admitted first. The newcomer's last token is never shared: it must be computed, for the next
        one is sampled from it.
        """
        return self._longest(newcomer.tokens, len(newcomer) - 1) if self.share else ("", 0)

    def _longest(self, tokens: list[int], stop: int) -> tuple[str, int]:
        """As `Prefixes.longest`, of the sequences whose KV is in their blocks."""
        return self.prefixes.longest(tokens, stop, self._has_arrived if self.copied or self.returned else None)

    def _has_arrived(self, name: str) -> bool:
        """Whether all of its KV is in its blocks: none is still to be copied there."""
        return name not in self.copied and name not in self.returned

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
        away = self.away.get(name, ())
        parent, shared = ("", 0) if name in self.cached else self._alike(sequence)
        whole = self.blocks_of(len(sequence) if growing else sequence.request.max_cached)
        needed = whole - shared // self.size  # a block shared in part is copied, so it counts as needed
        available = self.num_available - (self.watermark if growing and busy else 0)
        if needed > available:
            kept = (
                f", {self.watermark} of them kept for running requests" if growing and busy and self.watermark else ""
            )
            lacks = f"needs {number(needed, 'block')} of {self.size} KV tokens, {self.num_available} are free{kept}"
            raise NoRoom(f"not admitted: {lacks}")
        self.sequences[name] = sequence
        table = self.pages[parent].blocks[: self.blocks_of(shared)] if shared else ()
        for block in table:
            self.device.share(block)
        table += tuple([self.device.take() for _ in away])
        self.pages[name] = Pages(table, self.size)
        cached = self.cached[name] = self.cached.get(name, shared)
        self.num_kept += cached
        self._promise(name, needed - len(away))
        moves: list[Move] = []
        if away:
            self.num_away -= cached
            self.returned[name] = self.away.pop(name)
            moves = self._moves("swap_in", away, table, cached)
        elif shared % self.size:
            moves = self.grow(name, shared, shared + 1)
        self._join(name)
        return moves

    def grow(self, name: str, start: int, stop: int) -> list[Move]:
        """Provide for the KV of tokens [start, stop): new blocks at the end, copies of shared ones (copy-on-write).

        >>> # blocks of 4; b shares the 6 tokens of a, and will write its 7th into their second block, 1:
        >>> # it takes a block of its own, say 2, and the plan first copies the two tokens of block 1 there:
        >>> # Move("copy", source=4, target=8, num_tokens=2)

        Raises:
            NoRoom: there are not enough blocks.
        """
        table, size = self.pages[name].blocks, self.size
        new = -(-stop // size) - len(table)
        shared = self._shared(table, start // size, new) if self.share else ()
        if new <= 0 and not shared:
            return []  # as in most iterations
        needed = max(0, new) + len(shared)
        promised = self.promised.get(name, 0)
        if needed - promised > self.num_available:
            raise NoRoom(
                f"has no room for its next token: needs {number(needed, 'block')}, {self.num_available} are free"
            )
        moves: list[Move] = []
        taken = [self.device.take() for _ in range(needed)]
        if shared:
            blocks = list(table)
            for i, target in zip(shared, taken, strict=False):
                source, blocks[i] = blocks[i], target
                self.copied[name] = (*self.copied.get(name, ()), source)
                self.copying[source] = self.copying.get(source, 0) + 1
                if (kept := min(self.cached[name] - i * size, size)) > 0:
                    moves.append(Move("copy", source * size, target * size, kept))
            table = tuple(blocks)
        self.pages[name] = Pages((*table, *taken[len(shared) :]), size)
        self._promise(name, max(0, promised - needed))
        return moves

    def _shared(self, table: tuple[int, ...], first: int, new: int) -> list[int]:
        """Which of a table's blocks, from `first` on to where `new` ones follow (or, if negative, end), are shared."""
        return [i for i in range(first, len(table) + min(new, 0)) if self._is_shared(table[i])]

    def _is_shared(self, block: int) -> bool:
        """Whether several tables have it. Holders that only copy from it are not counted: they ignore added tokens."""
        holders = self.device.num_holders(block)
        return holders > 1 and holders - self.copying.get(block, 0) > 1

    def _promise(self, name: str, count: int) -> None:
        self.num_promised += count - self.promised.get(name, 0)
        self.promised[name] = count

    def evict(self, name: str) -> list[Move]:
        """Free all device blocks of a sequence. Its KV is swapped out if the host has room, otherwise dropped."""
        table, cached = self._leave(name), self.cached[name]
        needed = self.blocks_of(cached)
        if not self.swap or not cached or needed > self.host.num_free:
            del self.cached[name], self.sequences[name]
            return []
        away = self.away[name] = tuple([self.host.take() for _ in range(needed)])
        self.num_away += cached
        return self._moves("swap_out", table, away, cached)

    def _join(self, name: str) -> None:
        """A sequence has been admitted."""
        if self.share:
            self.prefixes.extend(name, self.sequences[name].tokens, self.cached[name])

    def _forget(self, name: str) -> None:
        """A sequence leaves the device."""
        if self.share:
            self.prefixes.remove(name)

    def _leave(self, name: str) -> tuple[int, ...]:
        """Free a sequence's blocks on the device, and those promised to it. Returns its block table."""
        table = self.pages.pop(name).blocks
        self.num_promised -= self.promised.pop(name, 0)
        self.num_kept -= self.cached[name]
        self._forget(name)
        for block in table:
            self.device.give_back(block)
        return table

    def wrote(self, work: Iterable[Work]) -> None:
        """The KV of this work has been written."""
        cached = self.cached
        for name, _, stop, _ in work:
            self.num_kept += stop - cached[name]
            cached[name] = stop
            if self.share:
                self.prefixes.extend(name, self.sequences[name].tokens, stop)

    def arrived(self, name: str) -> None:
        """Free the blocks that the last plan of a sequence has copied from."""
        for block in self.copied.pop(name, ()):
            self.device.give_back(block)
            self.copying[block] -= 1
            if not self.copying[block]:
                del self.copying[block]
        for block in self.returned.pop(name, ()):
            self.host.give_back(block)

    def release(self, name: str) -> None:
        """Free everything that a sequence has, in both tiers."""
        self.arrived(name)
        if name in self.pages:
            self._leave(name)
        if name in self.away:
            self.num_away -= self.cached[name]
            for block in self.away.pop(name):
                self.host.give_back(block)
        self.cached.pop(name, None)
        self.sequences.pop(name, None)

    def _moves(
        self,
        kind: Literal["swap_in", "swap_out"],
        sources: tuple[int, ...],
        targets: tuple[int, ...],
        num_tokens: int,
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
        """Slots of the device that hold KV; those of a shared block count once.

        A block that several tables have is full, since one shared in part is copied. So of the tokens that the
        sequences have, a block's number is too many for each table beyond the first that has it.

        >>> # blocks of 4: a has 6 tokens in (0, 1), b 9 in (0, 2, 3): 6 + 9 - 4 slots
        """
        shared = self.device.num_shared
        if self.copying:  # what is only copied from belongs to no table
            only = sum(self.device.num_holders(block) == count for block, count in self.copying.items())
            shared += only - sum(self.copying.values())
        return self.num_kept - shared * self.size

    def check(self) -> None:
        """Raise `LawBroken` unless every block has the holders that the books say, and the sums are theirs."""
        tables = [pages.blocks for pages in self.pages.values()]
        self.device.check(block for held in (*tables, *self.copied.values()) for block in held)
        self.host.check(block for books in (self.away, self.returned) for held in books.values() for block in held)
        if self.num_available < 0:
            raise LawBroken("conservation", f"blocks {self.promised} are promised, and {self.device.num_free} are free")
        on_device, on_host = self.pages.keys(), self.away.keys()
        if self.cached.keys() != on_device | on_host or on_device & on_host:
            raise LawBroken("conservation", "a sequence has KV in no tier, or in both")
        if self.share and self.prefixes.ends.keys() != on_device:
            raise LawBroken("conservation", "the prefix tree has a sequence that is not on the device, or lacks one")
        for name, cached in self.cached.items():
            table = self.pages[name].blocks if name in self.pages else self.away[name]
            if cached > len(table) * self.size:
                raise LawBroken("conservation", f"{name} reaches beyond its blocks")
        sums = {
            "num_promised": sum(self.promised.values()),
            "num_kept": sum(self.cached[name] for name in on_device),
            "num_away": sum(self.cached[name] for name in on_host),
        }
        for name, right in sums.items():
            if getattr(self, name) != right:
                raise LawBroken("conservation", f"{name} is {getattr(self, name)} and should be {right}")

"""Block tables on the device and on the host, and the copies that changes take.

See Kwon et al., vLLM (SOSP 2023), 4.2 to 4.5: block tables, copy-on-write, swapping and recomputation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from minifuse.core.errors import LawBroken
from minifuse.core.places import Pages
from minifuse.core.plan import Move, Tier, Work
from minifuse.core.request import Sequence
from minifuse.memory.blocks import BlockPool
from minifuse.memory.prefixes import Prefixes

__all__ = ["Tables"]

TIERS: dict[str, tuple[Tier, Tier]] = {"swap_in": ("host", "device"), "swap_out": ("device", "host")}


class Tables:
    """The books of paged memory. What is done here has been tried: see `minifuse.memory.paged.PagedTrial`.

    A block that a plan copies from is held until the copy has been made (`arrived`), even if its sequence is released
    before that. Sums are kept beside the books, so that no question takes longer for more sequences or blocks. What
    one sequence has is a tuple, made anew when it changes: an unchanged table is the same object in every plan.

    Args:
        size: slots in a block.
        swap: keep the KV of evicted sequences on the host, as far as there is room.
        share: let prompts with a common beginning hold the same blocks.
    """

    def __init__(self, num_blocks: int, num_host: int, size: int, *, swap: bool, share: bool) -> None:
        self.size, self.swap, self.share = size, swap, share
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
    def num_available(self) -> int:
        """Blocks of the device that are neither held nor promised."""
        return len(self.device.free) - self.num_promised

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks that so many tokens take: 6 tokens in blocks of 4 take 2."""
        return -(-num_tokens // self.size)

    def num_cached(self, sequence: Sequence) -> int:
        """Leading tokens that a sequence has, or would share as a newcomer."""
        cached = self.cached.get(sequence.id)
        return self.alike(sequence)[1] if cached is None else cached

    def alike(self, newcomer: Sequence, gone: Collection[str] = ()) -> tuple[str, int]:
        """The sequence with the longest common prefix on the device, and its length, or ("", 0).

        Of several the one admitted first. The newcomer's last token is never shared: it must be computed, for the next
        one is sampled from it.

        Args:
            gone: sequences that do not count.
        """
        if not self.share or newcomer.id in self.cached:
            return "", 0
        every = not (gone or self.copied or self.returned)
        eligible = None if every else lambda name: name not in gone and self._has_arrived(name)
        return self.prefixes.longest(newcomer.tokens, len(newcomer) - 1, eligible)

    def _has_arrived(self, name: str) -> bool:
        """Whether all KV of a sequence is in its blocks, with no copy pending."""
        return name not in self.copied and name not in self.returned

    def admit(self, sequence: Sequence, whole: int, parent: str, shared: int) -> list[Move]:
        """Admit a sequence: give it blocks for the KV it has, and promise the rest.

        The last block of a shared beginning is copied at once if it is shared in part: the newcomer writes there next.

        >>> # blocks of 4; b shares the 6 tokens of a, and will write its 7th into their second block, 1:
        >>> # it takes a block of its own, say 2, and the plan first copies the two tokens of block 1 there:
        >>> # Move("copy", source=4, target=8, num_tokens=2)

        Args:
            whole: blocks that it has and is promised in all.
            parent, shared: as from `alike`.
        """
        name = sequence.id
        away = self.away.pop(name, ())
        table = self.pages[parent].blocks[: self.blocks_of(shared)] if shared else ()
        for block in table:
            self.device.share(block)
        table += tuple([self.device.take() for _ in away])
        moves: list[Move] = []
        cached = self.cached[name] = self.cached.get(name, shared)
        if away:
            self.num_away -= cached
            self.returned[name] = away
            moves = self._moves("swap_in", away, table, cached)
        elif shared % self.size:
            source, target = table[-1], self.device.take()
            table = (*table[:-1], target)
            self.copied[name] = (source,)
            self.copying[source] = self.copying.get(source, 0) + 1
            moves = [Move("copy", source * self.size, target * self.size, shared % self.size)]
        self.sequences[name] = sequence
        self.pages[name] = Pages(table, self.size)
        self.num_kept += cached
        self._promise(name, whole - len(table))
        if self.share:
            self.prefixes.extend(name, sequence.tokens, cached)
        return moves

    def grow(self, name: str, stop: int) -> None:
        """Take new blocks at the end of a table, to hold `stop` tokens."""
        table = self.pages[name].blocks
        new = self.blocks_of(stop) - len(table)
        self.pages[name] = Pages((*table, *[self.device.take() for _ in range(new)]), self.size)
        self._promise(name, max(0, self.promised.get(name, 0) - new))

    def _promise(self, name: str, count: int) -> None:
        self.num_promised += count - self.promised.get(name, 0)
        self.promised[name] = count

    def evict(self, name: str) -> list[Move]:
        """Free a sequence's device blocks; swap its KV out if the host has room."""
        cached = self.cached[name]
        table = self._leave(name)
        needed = self.blocks_of(cached)
        if not self.swap or not cached or needed > self.host.num_free:
            del self.cached[name], self.sequences[name]
            return []
        away = self.away[name] = tuple([self.host.take() for _ in range(needed)])
        self.num_away += cached
        return self._moves("swap_out", table, away, cached)

    def _leave(self, name: str) -> tuple[int, ...]:
        """Free a sequence's blocks and promises on the device. Returns its block table."""
        table = self.pages.pop(name).blocks
        self.num_promised -= self.promised.pop(name, 0)
        self.num_kept -= self.cached[name]
        if self.share:
            self.prefixes.remove(name)
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

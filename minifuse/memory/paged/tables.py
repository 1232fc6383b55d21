"""Block tables on the device and the host, and the copies that changes require.

See Kwon et al., vLLM (SOSP 2023), 4.2 to 4.5: block tables, copy-on-write, swapping and recomputation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable

from minifuse.core.errors import LawBroken
from minifuse.core.places import Pages
from minifuse.core.plan import Move, Work
from minifuse.core.request import Sequence
from minifuse.memory.blocks import BlockBooks, BlockPool, check_sums
from minifuse.memory.copies import copies
from minifuse.memory.paged.prefixes import Prefixes


class Tables:
    """Keeps the block tables of paged memory on both tiers.

    A block that a plan copies from is held until the copy has been made (`arrived`), even if the block's own sequence
    is released earlier. Each change also updates the sums, so no query takes longer with more sequences or blocks.
    A `PagedTrial` has tried each change before it is made here.

    Args:
        num_host: blocks of the host, for the KV of evicted sequences.
        size: slots in a block.
        share: whether prompts with a common prefix hold the same blocks.
    """

    def __init__(self, num_blocks: int, num_host: int, size: int, *, share: bool) -> None:
        self.blocks = BlockBooks(size)
        self.share = share
        self.device = BlockPool(num_blocks)
        self.host = BlockPool(num_host)
        self.sequences: dict[str, Sequence] = {}  # all sequences with KV in either tier
        self.away: dict[str, tuple[int, ...]] = {}  # sequence -> host blocks that it was swapped out to
        self.cached: dict[str, int] = {}  # sequence -> leading tokens whose KV is kept in the sequence's tier
        # sequence -> blocks, in either tier, from which its latest plan copies
        self.sources: dict[str, list[tuple[BlockPool, int]]] = defaultdict(list)
        self.prefixes = Prefixes()  # of the sequences on the device, with `share`
        self.num_written = 0  # slots of the device that hold KV
        self.num_away = 0  # the sum of `cached` on the host

    @property
    def num_available(self) -> int:
        """Count the blocks of the device that can be taken and are not promised."""
        return len(self.device.free) - self.blocks.num_promised

    def alike(self, newcomer: Sequence, gone: Collection[str] = ()) -> tuple[str, int]:
        """Return the sequence with the longest common prefix, and the prefix's length; or ("", 0).

        Sequences with a pending copy are ignored. If several share the longest prefix, the first admitted is returned.
        The newcomer's last token is never shared: it must be computed, since the next token is sampled from it.

        Args:
            gone: sequences to ignore, too.
        """
        if not self.share or newcomer.id in self.cached:
            return "", 0
        return self.prefixes.longest(newcomer.tokens, len(newcomer) - 1, self.sources.keys() | gone)

    def prefix_blocks(self, parent: str, shared: int) -> tuple[int, ...]:
        """Return the blocks of a sequence that hold its first `shared` tokens."""
        return self.blocks.pages[parent].blocks[: self.blocks.blocks_of(shared)] if shared else ()

    def admit(self, sequence: Sequence, whole: int, parent: str, shared: int) -> list[Move]:
        """Admit a sequence: give it blocks for the KV it has, and promise the rest.

        If a shared prefix ends within a block, the block is copied at once, since the newcomer writes to it next.

        >>> # blocks of 4; a has 6 tokens in blocks 0 and 1. b shares them, and would write its 7th token into block 1.
        >>> # So b takes a block of its own, say 2, and the plan first copies the two tokens of block 1 to block 2:
        >>> # Move("copy", source=4, target=8, num_tokens=2)

        Args:
            whole: the total number of the sequence's blocks, held or promised.
            parent, shared: as returned by `alike`.
        """
        name = sequence.id
        away = self.away.pop(name, ())
        size = self.blocks.size
        table = self.prefix_blocks(parent, shared)
        for block in table:
            self.device.share(block)
        table += tuple([self.device.take() for _ in away])
        moves: list[Move] = []
        cached = self.cached.setdefault(name, shared)
        if away:
            self.num_away -= cached
            self.sources[name] += [(self.host, block) for block in away]
            moves = copies("swap_in", Pages(away, size), Pages(table, size), cached)
        elif shared % size:
            source, target = table[-1], self.device.take()
            table = (*table[:-1], target)
            self.sources[name].append((self.device, source))
            moves = [Move("copy", source * size, target * size, shared % size)]
        self.sequences[name] = sequence
        self.blocks.pages[name] = Pages(table, size)
        self.num_written += cached - shared // size * size
        self.blocks.promise(name, whole - len(table))
        if self.share:
            self.prefixes.extend(name, sequence.tokens, cached)
        return moves

    def grow(self, name: str, stop: int) -> None:
        """Take the blocks that a table lacks to hold `stop` tokens."""
        lacking = self.blocks.blocks_of(stop) - len(self.blocks.pages[name].blocks)
        if lacking > 0:
            self.blocks.append(name, [self.device.take() for _ in range(lacking)])

    def evict(self, name: str) -> list[Move]:
        """Free a sequence's device blocks; swap its KV out if the host has room."""
        cached = self.cached[name]
        pages = self._leave(name)
        needed = self.blocks.blocks_of(cached)
        if not cached or needed > self.host.num_free:
            del self.cached[name], self.sequences[name]
            return []
        away = self.away[name] = tuple([self.host.take() for _ in range(needed)])
        self.num_away += cached
        return copies("swap_out", pages, Pages(away, self.blocks.size), cached)

    def _leave(self, name: str) -> Pages:
        """Free a sequence's blocks and promises on the device. Returns its block table."""
        pages = self.blocks.close(name)
        for block in pages.blocks:
            self.device.give_back(block)
        self.num_written -= self.cached[name]
        if self.share:
            self.prefixes.remove(name)
            # A block that another table holds is full, since a partly shared one is copied. Its slots stay written.
            sources = [source for sources in self.sources.values() for source in sources]
            copying = Counter([block for pool, block in sources if pool is self.device])
            stay = [block for block in pages.blocks if self.device.holders[block] > copying[block]]
            self.num_written += len(stay) * self.blocks.size
        return pages

    def wrote(self, work: Iterable[Work]) -> None:
        """Record that a plan has written the KV of its work."""
        cached, num_written = self.cached, 0
        for name, _, stop, _ in work:
            num_written += stop - cached[name]
            cached[name] = stop
            if self.share:
                self.prefixes.extend(name, self.sequences[name].tokens, stop)
        self.num_written += num_written

    def arrived(self, name: str) -> None:
        """Free the blocks from which a sequence's latest plan has copied."""
        for pool, block in self.sources.pop(name, ()):
            pool.give_back(block)

    def release(self, name: str) -> None:
        """Free a sequence's blocks in both tiers, and forget the sequence."""
        self.arrived(name)
        if name in self.blocks.pages:
            self._leave(name)
        if name in self.away:
            self.num_away -= self.cached[name]
            for block in self.away.pop(name):
                self.host.give_back(block)
        self.cached.pop(name, None)
        self.sequences.pop(name, None)

    def check(self) -> None:
        """Raise `LawBroken` unless pools and tables agree on each block, and the sums are right."""
        self.blocks.check(self.num_available)
        pages, size = self.blocks.pages, self.blocks.size
        held = [(self.device, block) for table in pages.values() for block in table.blocks]
        held += [(self.host, block) for blocks in self.away.values() for block in blocks]
        held += [source for sources in self.sources.values() for source in sources]
        for tier in (self.device, self.host):
            tier.check(block for pool, block in held if pool is tier)
        on_device, on_host = pages.keys(), self.away.keys()
        if self.cached.keys() != on_device | on_host or on_device & on_host:
            raise LawBroken("conservation", "a sequence has KV in no tier, or in both")
        if self.share and self.prefixes.ends.keys() != on_device:
            raise LawBroken("conservation", "the prefix tree has a sequence that is not on the device, or lacks one")
        for name, cached in self.cached.items():
            table = pages[name].blocks if name in pages else self.away[name]
            if cached > len(table) * size:
                raise LawBroken("conservation", f"{name} reaches beyond its blocks")
        written = {slot for name in on_device for slot in pages[name].slots(0, self.cached[name])}
        away = sum(self.cached[name] for name in on_host)
        check_sums(num_written=(self.num_written, len(written)), num_away=(self.num_away, away))

"""Keeps KV's blocks on the device and its consecutive slots on the host (FluidInfer, 4.1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Seq

from minifuse.core.errors import LawBroken
from minifuse.core.places import Pages
from minifuse.core.plan import Extent, Moment, Move
from minifuse.core.report import KVUsage
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.blocks import BlockBooks
from minifuse.memory.contiguous import RunTrial
from minifuse.memory.places import Places


class WaveBooks:
    """Gives sequences a home on the host, and blocks while they are on the device.

    KV goes to the host once: what was offloaded stays at home, and only later tokens are offloaded the next time.

    Args:
        num_blocks: blocks of the device.
        num_host: blocks of the host.
        size: slots in a block.
    """

    def __init__(self, num_blocks: int, num_host: int, size: int) -> None:
        self.num_blocks, self.size = num_blocks, size
        self.host = RunAllocator(num_host * size)
        self.homes = Places[Extent]()  # slots on the host, for the longest answer of each sequence, in whole blocks
        self.backed: dict[str, int] = {}  # sequence -> leading tokens whose KV is on the host
        self.blocks = BlockBooks(size)  # of the sequences whose KV is on the device
        self.free = deque(range(num_blocks))  # the blocks that were freed first are taken first

    def take(self, name: str, num_blocks: int, promised: int = 0) -> None:
        """Give a sequence more blocks of the device: those that were freed first.

        Args:
            promised: blocks to set aside, these included, if the sequence has none yet.
        """
        if name not in self.blocks.pages:
            self.blocks.pages[name] = Pages((), self.size)
            self.blocks.promise(name, promised)
        self.blocks.append(name, [self.free.popleft() for _ in range(num_blocks)])

    def give_back(self, name: str) -> None:
        """Free the device blocks of a sequence, and those promised to it."""
        self.free.extend(self.blocks.close(name).blocks)

    def at_home(self, name: str) -> Pages:
        """Return a sequence's place on the host."""
        home = self.homes.places[name]
        first = home.offset // self.size
        return Pages(tuple(range(first, first + home.capacity // self.size)), self.size, "host")

    def room(self) -> RunTrial:
        """Return a trial that finds homes for newcomers."""
        return RunTrial(self.host, " on the host", self.size)

    def upload(self, name: str, pages: Pages, stop: int, wave: int) -> list[Move]:
        """Return the moves that copy a sequence's first `stop` tokens to `pages`, before a wave."""
        home = self.homes.places[name].offset
        return [
            Move("upload", home + first, slot, length, "host", pages.tier, "before", wave)
            for first, slot, length in runs(pages, 0, stop)
        ]

    def offload(self, name: str, pages: Pages, stop: int, moment: Moment, wave: int) -> list[Move]:
        """Return the moves that copy a sequence's new tokens before `stop` to the host."""
        home, start = self.homes.places[name].offset, self.backed.get(name, 0)
        self.backed[name] = stop
        return [
            Move("offload", slot, home + first, length, pages.tier, "host", moment, wave)
            for first, slot, length in runs(pages, start, stop)
        ]

    def release(self, name: str) -> None:
        """Forget a sequence, on both tiers."""
        if name in self.blocks.pages:
            self.give_back(name)
        if (home := self.homes.release(name)) is not None:
            self.host.free(*home)
            self.backed.pop(name, None)

    def usage(self, capacity: int) -> KVUsage:
        """Count the tokens in memory, whose device has `capacity` slots."""
        here = sum([self.homes.cached.get(name, 0) for name in self.blocks.pages])  # tokens with KV on the device
        reserved = (self.num_blocks - len(self.free) + self.blocks.num_promised) * self.size
        return KVUsage(here, reserved, capacity, self.homes.num_written - here)

    def check(self) -> None:
        """Raise `LawBroken` unless free + owned = total on both tiers, and nothing overlaps."""
        self.host.check(self.homes.places.values())
        self.blocks.check(len(self.free) - self.blocks.num_promised)
        held = [block for pages in self.blocks.pages.values() for block in pages.blocks]
        if sorted([*held, *self.free]) != list(range(self.num_blocks)):
            raise LawBroken("conservation", f"blocks {held} are held and {list(self.free)} free of {self.num_blocks}")


def runs(pages: Pages, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield tokens [start, stop) in runs of consecutive slots.

    A run is (first token, slot of that token, length).

    >>> list(runs(Pages((4, 5, 2), 4), 2, 11))
    [(2, 18, 6), (8, 8, 3)]
    """
    size, blocks = pages.size, pages.blocks
    first = start
    while first < stop:
        last = first // size
        while (last + 1) * size < stop and blocks[last + 1] == blocks[last] + 1:
            last += 1
        end = min((last + 1) * size, stop)
        yield first, blocks[first // size] * size + first % size, end - first
        first = end


def take_turns(needs: Seq[int], limit: int, num_blocks: int) -> list[tuple[int, int]]:
    """Return each sequence's wave and first block in the slots that layers share.

    Even waves fill the slots from their beginning, odd ones from their end: while a wave is attended, the next one is
    uploaded, in the same layer or the next.

    >>> take_turns([3, 3, 2, 2], limit=6, num_blocks=12)  # two waves: 3 + 3 from the beginning, 2 + 2 from the end
    [(0, 0), (0, 3), (1, 10), (1, 8)]

    Args:
        needs: number of blocks of each sequence.
        limit: number of blocks of a wave; at least the largest need.
        num_blocks: number of shared blocks.
    """
    wave, taken, found = 0, 0, []
    for count in needs:
        if taken and taken + count > limit:
            wave, taken = wave + 1, 0
        found.append((wave, num_blocks - taken - count if wave % 2 else taken))
        taken += count
    return found

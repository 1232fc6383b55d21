"""Rotates KV that exceeds the device through it, in waves (FluidInfer, Fig. 8)."""

from __future__ import annotations

from collections.abc import Collection

from minifuse.core.places import Pages
from minifuse.core.plan import Move, Placement, Plan, Proposal, Span
from minifuse.core.report import KVUsage
from minifuse.memory.contiguous import RunTrial
from minifuse.memory.trial import settle
from minifuse.memory.waves.books import WaveBooks
from minifuse.memory.waves.division import staying_and_wave


class Rotation:
    """Attends every admitted sequence in every iteration; the device holds two waves.

    The first sequences of an iteration keep their KV on the device if two waves of the other sequences still fit there.
    The others take turns, in waves, in the rest of the device. While one wave is attended, the KV that the previous
    wave wrote is offloaded, and the KV of the next wave is uploaded, layer by layer. Blocks are reused in the order in
    which they were freed, so a wave does not wait for the previous one, unless a single sequence needs more than half
    of the room. KV is uploaded whenever a wave needs it. If everything fits, nothing is moved.

    >>> # 8 blocks of 1 token on the device, buffer=0. With this iteration's token, a has 3 tokens, b 2, c 4 and d 3.
    >>> # None can stay, since two waves of 4 are to fit.
    >>> #   wave 0: a, blocks 0 to 2        before: upload 2 tokens    after: offload the third
    >>> #   wave 1: b, blocks 3 and 4       before: upload 1 token     after: offload the second
    >>> #   wave 2: c, blocks 5 to 7 and 0  before: upload 3 tokens    after: offload the fourth
    >>> #   wave 3: d, blocks 1, 2 and 3    before: upload 2 tokens    after: offload the third

    Args:
        any_stays: whether the first sequences may stay on the device.
        buffer: the part of the device that each of two waves may have, if no sequence needs more.
    """

    def __init__(self, books: WaveBooks, capacity: int, any_stays: bool, buffer: float) -> None:
        self.books, self.capacity = books, capacity
        self.any_stays, self.least = any_stays, int(buffer * books.num_blocks)

    def room(self) -> RunTrial:
        return self.books.room()

    def place(self, proposal: Proposal) -> Placement:
        books = self.books
        trial = settle(proposal, RunTrial, self.room)
        books.host = trial.allocator
        books.homes.places |= trial.extents
        work, pages = proposal.work, books.blocks.pages
        needs = [books.blocks.blocks_of(item.stop) for item in work]
        needed = sum(needs)
        num_staying, limit = self._divide(needs, needed)
        moves = self._clear({item.sequence for item in work[:num_staying]}, needed)
        places: list[Pages] = []
        waves: list[Span] = []
        begin = taken = 0
        leaving: list[str] = []
        for index, (item, blocks) in enumerate(zip(work, needs, strict=True)):
            name = item.sequence
            lacks = blocks - (len(pages[name].blocks) if name in pages else 0)
            uploads = item.start > 0 and name not in pages
            # The first wave attends only to KV on the device, so it starts at once while the second is uploaded.
            if index > begin and (taken + lacks > limit or (uploads and not waves)):
                self._give_back(leaving)
                waves.append(Span(begin, index))
                begin, taken, leaving = index, 0, []
            if lacks:
                books.take(name, lacks)
            taken += lacks
            if uploads:
                moves += books.upload(name, pages[name], item.start, len(waves))
            places.append(pages[name])
            if index >= num_staying:
                moves += books.offload(name, pages[name], item.stop, "after", len(waves))
                leaving.append(name)
        self._give_back(leaving)
        return Placement(tuple(places), None, tuple(moves), (*waves, Span(begin, len(work))) if waves else ())

    def _divide(self, needs: list[int], needed: int) -> tuple[int, int]:
        """Return how many leading pieces of work stay, and the wave size in blocks. All stay if they fit."""
        num_blocks = self.books.num_blocks
        if self.any_stays and needed <= num_blocks:
            return len(needs), num_blocks
        return staying_and_wave(needs, num_blocks, self.least, self.any_stays)

    def _clear(self, staying: Collection[str], needed: int) -> list[Move]:
        """Before the first wave, offload sequences not in `staying`, unless all fit together.

        Args:
            needed: number of blocks that all work needs.
        """
        books, pages = self.books, self.books.blocks.pages
        others = [name for name in pages if name not in staying]
        held = sum([len(pages[name].blocks) for name in others])
        if needed + held <= books.num_blocks:
            return []
        moves: list[Move] = []
        for name in others:
            moves += books.offload(name, pages[name], books.homes.cached[name], "before", 0)
        self._give_back(others)
        return moves

    def _give_back(self, names: list[str]) -> None:
        """Free the device blocks of sequences whose KV is on the host."""
        for name in names:
            self.books.give_back(name)

    def wrote(self, plan: Plan, sampled: Collection[str]) -> None:
        """Record what a plan has written."""
        self.books.homes.wrote(plan.work)

    def release(self, name: str) -> None:
        """Forget a sequence."""
        self.books.release(name)

    def usage(self) -> KVUsage:
        return self.books.usage(self.capacity)

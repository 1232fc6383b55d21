"""Chunks in blocks of two tiers: copied ahead, reclaimed lazily, dropped (Pensieve)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from minifuse.core.plan import Move
from minifuse.memory.blocks import BlockPool, check_sums
from minifuse.memory.tiered.chunks import Chunk, Idle, Owner
from minifuse.memory.tiered.eviction import Eviction

AT_ONCE = 16  # at most 1/16 of the device's blocks are copied ahead at once: the link carries one at a time anyway


class Tiers:
    """Records where every chunk lies, and chooses the block to give out next.

    An idle chunk lies on the device, on both tiers, or on the host. `take` returns a block of the device: a free block
    if there is one; otherwise the block of a chunk on both tiers, which stays on the host; otherwise the block of a
    chunk on the device only, which is swapped out while the plan waits, or dropped. Of several chunks, the one of
    least value loses its block. Each change also updates the sums.

    Args:
        num_device, num_host: blocks of each tier.
        size: tokens in a block; a block holds one chunk.
    """

    def __init__(self, num_device: int, num_host: int, size: int, eviction: Eviction) -> None:
        self.size = size
        self.device, self.host = BlockPool(num_device), BlockPool(num_host)
        self.on_device, self.on_both, self.on_host = (Idle(eviction, size) for _ in range(3))
        self.by_host_block: dict[int, Chunk] = {}  # host block -> chunk that is being copied from or to it
        self.alike: dict[bytes, Chunk] = {}  # digest of the text up to a chunk's end -> the chunk to share
        self.emptied: list[Owner] = []  # owners that have lost a chunk, perhaps their last
        self.num_used = 0  # tokens on the device that admitted sequences use
        self.blocks_used = 0  # blocks of the device that hold these tokens
        self.num_kept = 0  # other tokens on the device
        self.num_kept_on_host = 0  # tokens that are only on the host

    @property
    def num_available(self) -> int:
        """Count the blocks of the device that are free or may be reclaimed now."""
        return self.device.num_free + len(self.on_device) + len(self.on_both)

    # --- chunks that are used, and left

    def use(self, chunk: Chunk) -> None:
        """Add a user to a chunk, which then cannot be reclaimed.

        A chunk on the device gives up its copy on the host, since the chunk may grow.
        """
        if chunk.is_idle:
            self._pool(chunk).remove(chunk)
            if chunk.device is not None:
                self._free_on_host(chunk)
        self._count(chunk, -1)
        chunk.users += 1
        self._count(chunk, 1)

    def leave(self, chunk: Chunk, now: float) -> None:
        """Remove a user of a chunk. An unused chunk without owner or KV is freed."""
        self._count(chunk, -1)
        chunk.users -= 1
        self._count(chunk, 1)
        if chunk.users:
            return
        chunk.active_s = now
        if chunk.arriving or not chunk.owners or not chunk.num_tokens:
            chunk.arriving = False  # interrupted: the plan that moves its KV will never complete
            self.free(chunk)
        elif chunk.is_idle:
            self._pool(chunk).add(chunk)

    def touch(self, chunk: Chunk, now: float) -> None:
        """Restart a chunk's idle time: its conversation became active at time `now`."""
        if chunk.is_idle:
            self._pool(chunk).remove(chunk)
        chunk.active_s = now
        if chunk.is_idle:
            self._pool(chunk).add(chunk)

    def wrote(self, chunk: Chunk, num_tokens: int) -> None:
        """Record that a chunk in use has the KV of its first `num_tokens` tokens."""
        self.num_used += num_tokens - chunk.num_tokens
        chunk.num_tokens = num_tokens

    def _count(self, chunk: Chunk, sign: int) -> None:
        """Add a chunk to the sums (`sign` 1) or subtract it (-1)."""
        tokens = sign * chunk.num_tokens
        if chunk.device is None:
            self.num_kept_on_host += tokens
        elif chunk.users:
            self.num_used += tokens
            self.blocks_used += sign
        else:
            self.num_kept += tokens

    def _pool(self, chunk: Chunk) -> Idle:
        if chunk.device is None:
            return self.on_host
        return self.on_device if chunk.host is None else self.on_both

    # --- blocks

    def take(self, now: float, moves: list[Move]) -> int:
        """Take a block of the device, from an idle chunk if none is free.

        Args:
            moves: receives a swap-out if this needs one.

        Raises:
            LawBroken: no block can be taken.
        """
        if self.device.free:
            return self.device.take()
        if (chunk := self.on_both.lowest(now)) is not None:
            self.on_both.remove(chunk)
            block = self._move_to_host(chunk)
            self.on_host.add(chunk)
            return block
        if (chunk := self.on_device.lowest(now)) is not None:
            self.on_device.remove(chunk)
            if self._find_host_block(chunk, now, moves):
                moves.append(self._swap_out(chunk))
                chunk.arriving = True
                return self._move_to_host(chunk)
            self.free(chunk)
        return self.device.take()

    def _move_to_host(self, chunk: Chunk) -> int:
        """Take away and return the device block of a chunk with a host block."""
        block = chunk.device
        assert block is not None
        self._lay(chunk, None)
        return block

    def _lay(self, chunk: Chunk, block: int | None) -> None:
        """Set a chunk's block of the device (or None), and update the sums."""
        self._count(chunk, -1)
        chunk.device = block
        self._count(chunk, 1)

    def _free_on_host(self, chunk: Chunk) -> None:
        if chunk.host is not None:
            self.host.give_back(chunk.host)
            chunk.host = None

    def fetch(self, chunk: Chunk, now: float, moves: list[Move]) -> int:
        """Return a chunk's device block; if there is none, take one and swap in."""
        if chunk.device is not None:
            return chunk.device
        block = self.take(now, moves)
        self._lay(chunk, block)
        if chunk.host is not None:
            source, target = chunk.host * self.size, block * self.size
            moves.append(Move("swap_in", source, target, chunk.num_tokens, source_tier="host"))
            self.by_host_block[chunk.host] = chunk
            chunk.host, chunk.arriving = None, True
        return block

    def _find_host_block(self, chunk: Chunk, now: float, moves: list[Move]) -> bool:
        """Give a chunk a host block, unless all chunks on the host are worth more.

        If no host block is free, a chunk of lower value is dropped. If this plan was to swap that chunk out, the move
        is removed from `moves`.

        Returns:
            Whether the chunk has a host block now.
        """
        if not self.host.free:
            move = next((move for move in moves if move.moment == "first" and move.target_tier == "host"), None)
            arriving = None if move is None else self.by_host_block[move.target // self.size]
            others = [other for other in (self.on_host.lowest(now), arriving) if other is not None]
            lowest = min(others, key=lambda other: self.on_host.value(other, now), default=chunk)
            if self.on_host.value(lowest, now) >= self.on_device.value(chunk, now):
                return False
            if lowest is arriving:
                assert move is not None
                moves.remove(move)
                del self.by_host_block[move.target // self.size]
                lowest.arriving = False
                self.free(lowest)
            else:
                self.drop(lowest)
        chunk.host = self.host.take()
        return True

    def drop(self, chunk: Chunk) -> None:
        """Forget an idle chunk: its KV will be computed again."""
        self._pool(chunk).remove(chunk)
        self.free(chunk)

    def free(self, chunk: Chunk) -> None:
        """Remove a chunk from its owners; free its blocks unless a copy is in flight.

        The chunk must be in no pool. If a copy is in flight, `landed` frees the blocks.
        """
        for owner in chunk.owners:
            del owner.chunks[chunk.index]
        self.emptied += chunk.owners
        chunk.owners.clear()
        if chunk.copying or chunk.arriving:
            return
        self._count(chunk, -1)
        chunk.num_tokens = 0
        if self.alike.get(chunk.digest) is chunk:
            del self.alike[chunk.digest]
        if chunk.device is not None:
            self.device.give_back(chunk.device)
            chunk.device = None
        self._free_on_host(chunk)

    # --- copies ahead of time

    def copy_ahead(self, threshold: int, spare: int, now: float) -> list[Move]:
        """Copy chunks to the host until `threshold` device blocks are free or backed up.

        Copies in flight count as made. Only a few blocks are copied at once, since a block that is being copied cannot
        be reclaimed.

        Args:
            spare: blocks that are available and not promised; at most so many are copied.
        """
        moves: list[Move] = []
        at_once = max(1, self.device.num_blocks // AT_ONCE)
        lacking = threshold - self.device.num_free - len(self.on_both)
        copying = sum(chunk.copying for chunk in self.by_host_block.values())
        for _ in range(min(min(lacking, at_once) - copying, spare)):
            chunk = self.on_device.lowest(now)
            if chunk is None or not self._find_host_block(chunk, now, moves):
                break  # all chunks on the host are worth more
            self.on_device.remove(chunk)
            moves.append(self._swap_out(chunk)._replace(moment="behind"))
            chunk.copying = True
        return moves

    def _swap_out(self, chunk: Chunk) -> Move:
        assert chunk.device is not None
        assert chunk.host is not None
        self.by_host_block[chunk.host] = chunk
        return Move("swap_out", chunk.device * self.size, chunk.host * self.size, chunk.num_tokens, target_tier="host")

    def landed(self, moves: Iterable[Move]) -> None:
        """Record that these copies between the tiers have completed."""
        for move in moves:
            if move.target_tier == "device":
                block = move.source // self.size
                self.by_host_block.pop(block).arriving = False
                self.host.give_back(block)
                continue
            chunk = self.by_host_block.pop(move.target // self.size)
            if chunk.copying and (chunk.users or chunk.num_tokens != move.num_tokens):  # used again, or grown meanwhile
                self._free_on_host(chunk)
            chunk.copying = chunk.arriving = False
            if not chunk.owners:
                self.free(chunk)
            elif chunk.is_idle:
                self._pool(chunk).add(chunk)

    # --- integrity

    def check(self, owners: Iterable[Owner]) -> None:
        """Raise `LawBroken` unless each block is free or has one chunk, and sums match."""
        listed = {chunk for owner in owners for chunk in owner.chunks.values()}
        chunks = listed | set(self.by_host_block.values())
        self.device.check(chunk.device for chunk in chunks if chunk.device is not None)
        departing = (block for block, chunk in self.by_host_block.items() if chunk.host != block)
        self.host.check(chain((chunk.host for chunk in chunks if chunk.host is not None), departing))
        idle = [chunk for chunk in listed if chunk.is_idle]
        idle_on_host = sum(chunk.device is None for chunk in idle)
        used = [chunk.num_tokens for chunk in chunks if chunk.device is not None and chunk.users]
        kept = [chunk.num_tokens for chunk in chunks if chunk.device is not None and not chunk.users]
        on_host = [chunk.num_tokens for chunk in chunks if chunk.device is None]
        check_sums(
            num_used=(self.num_used, sum(used)),
            blocks_used=(self.blocks_used, len(used)),
            num_kept=(self.num_kept, sum(kept)),
            num_kept_on_host=(self.num_kept_on_host, sum(on_host)),
            num_available=(self.num_available, self.device.num_free + len(idle) - idle_on_host),
            idle_on_host=(len(self.on_host), idle_on_host),
        )

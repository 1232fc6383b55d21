"""Keeps more KV than the device holds, and uploads it in waves (FluidInfer, 4.1)."""

from collections import deque
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

from minifuse.core.errors import LawBroken, RequestRefused, UsageError
from minifuse.core.places import Pages
from minifuse.core.plan import Extent, Move, Placement, Plan, Proposal, Span
from minifuse.core.report import KVUsage
from minifuse.core.request import Request, Sequence
from minifuse.core.stages import option
from minifuse.memory.allocator import RunAllocator
from minifuse.memory.blocks import BlockBooks, check_host, check_size
from minifuse.memory.contiguous import RunTrial
from minifuse.memory.places import Places
from minifuse.memory.trial import settle
from minifuse.memory.waves.division import even_waves, staying_and_wave
from minifuse.stages import Memory

BUFFER = 0.125  # part of the device for each of two waves, by default
HOST_TIMES = 8  # the host's room by default, as a multiple of the device's


class Waves(Memory):
    """Gives each admitted sequence room on the host; the device holds two waves.

    The first sequences of an iteration keep their KV on the device if two waves of the other sequences still fit there.
    The others take turns, in waves, in the rest of the device. While one wave is attended, the KV that the previous
    wave wrote is offloaded, and the KV of the next wave is uploaded, layer by layer. Blocks are reused in the order in
    which they were freed, so a wave does not wait for the previous one, unless a single sequence needs more than half
    of the room. KV goes to the host once, when its sequence leaves the device, and is uploaded whenever a wave needs
    it. If everything fits, nothing is moved.

    With `turns=layers`, the layers of the model use the device in turn. With L layers, the device then holds the KV of
    L times as many tokens, but of one layer only. Waves are L times as large, no sequence stays, and a request is
    served even if its KV of all layers exceeds the device.

    >>> # 8 blocks of 1 token on the device, buffer=0. With this iteration's token, a has 3 tokens, b 2, c 4 and d 3.
    >>> # None can stay, since two waves of 4 are to fit.
    >>> #   wave 0: a, blocks 0 to 2        before: upload 2 tokens    after: offload the third
    >>> #   wave 1: b, blocks 3 and 4       before: upload 1 token     after: offload the second
    >>> #   wave 2: c, blocks 5 to 7 and 0  before: upload 3 tokens    after: offload the fourth
    >>> #   wave 3: d, blocks 1, 2 and 3    before: upload 2 tokens    after: offload the third
    """

    name = "waves"
    offers: ClassVar[frozenset[str]] = frozenset({"pages"})
    one_plan: ClassVar[bool] = True

    @dataclass(frozen=True)
    class Options:
        block_size: int = option(16, "tokens in a block of the device", minimum=1)
        host: int | None = option(
            None,
            f"KV tokens that the host has room for; none: {HOST_TIMES} times the device's",
            minimum=1,
            maximum=10**8,
        )
        turns: str = option(
            "rest",
            "what takes turns where the device does not hold all KV: the rest, while the first sequences stay; all "
            "sequences, as in the paper; or layers too, each of which has all of the device",
            choices=("rest", "sequences", "layers"),
        )
        buffer: float | None = option(
            None,
            f"part of the device that each of two waves may have, if no sequence needs more; none: {BUFFER:g}, or with "
            "turns=layers a half",
            minimum=0,
            maximum=0.5,
        )
        layers: int | None = option(
            None, "the model's number of layers, for turns=layers; none: as the model has", minimum=1, offered=True
        )

        def __post_init__(self) -> None:
            if self.turns == "layers" and self.buffer is not None:
                raise UsageError(
                    f"memory.buffer is {self.buffer:g} and memory.turns is layers, where each wave has half of the "
                    "device: leave memory.buffer out."
                )
            if self.turns != "layers" and self.layers is not None:
                raise UsageError(
                    f"memory.layers is {self.layers} and memory.turns is {self.turns}, where every layer has its own "
                    "part of the device: leave memory.layers out, or give memory.turns=layers."
                )

    def __init__(self, capacity: int, options: Any = None) -> None:
        self.capacity = capacity
        self.options = self.Options() if options is None else options
        self.size: int = self.options.block_size
        if self.options.turns == "layers" and self.options.layers is None:
            raise UsageError("memory.turns is layers, and how many there are is not known: give memory.layers.")
        self.layers_in_turn: int = self.options.layers or 1
        self.num_blocks = capacity * self.layers_in_turn // self.size
        check_size(self.num_blocks, capacity, self.size)
        num_host = (self.options.host or HOST_TIMES * capacity) // self.size
        check_host(num_host, self.options.host, self.size)
        self.host_capacity = num_host * self.size
        self.host = RunAllocator(self.host_capacity)
        self.homes = Places[Extent]()  # slots on the host, for the longest answer of each sequence, in whole blocks
        self.backed: dict[str, int] = {}  # sequence -> leading tokens whose KV is on the host
        self.blocks = BlockBooks(self.size)  # of the sequences whose KV is on the device
        self.free = deque(range(self.num_blocks))  # the blocks that were freed first are taken first

    def check(self, *prompts: Request) -> None:
        most = max(prompts, key=lambda prompt: prompt.max_cached)
        blocks = self.blocks.blocks_of(most.max_cached)
        if blocks > self.num_blocks:
            of_layers, instead = "", ", or give memory.turns=layers, so that it holds one layer at a time"
            if self.layers_in_turn > 1:
                of_layers, instead = ", of one layer,", ""
            tokens = -(-blocks * self.size // self.layers_in_turn)
            raise RequestRefused(
                f"Request {most.id!r} may need {blocks} blocks of {self.size} KV tokens{of_layers} on the device, "
                f"where attention reads them, and it has {self.num_blocks}: shorten the prompt, lower max_new_tokens, "
                f"raise --kv-memory to hold {tokens} tokens{instead}."
            )
        needed = sum(self.blocks.blocks_of(prompt.max_cached) for prompt in prompts) * self.size
        if needed > self.host_capacity:
            raise RequestRefused(
                f"Request {prompts[0].group or prompts[0].id!r} may need KV for {needed} tokens on the host, which "
                f"holds {self.host_capacity}: shorten the prompt, lower max_new_tokens, or raise memory.host."
            )

    def missing(self, sequence: Sequence) -> tuple[Span, ...]:
        return self.homes.missing(sequence)

    def room(self) -> RunTrial:
        return RunTrial(self.host, " on the host", self.size)

    # --- the plan of an iteration

    def place(self, proposal: Proposal, now: float) -> Placement:
        trial = settle(proposal, RunTrial, self.room)
        self.host = trial.allocator
        self.homes.places |= trial.extents
        work, pages = proposal.work, self.blocks.pages
        needs = [self.blocks.blocks_of(item.stop) for item in work]
        needed = sum(needs)
        num_staying, limit = self._divide(needs, needed)
        moves = self._clear({item.sequence for item in work[:num_staying]}, needed)
        places: list[Pages] = []
        waves: list[Span] = []
        begin = taken = 0
        leaving: list[str] = []
        for index, (item, blocks) in enumerate(zip(work, needs, strict=True)):
            name = item.sequence
            have = pages[name].blocks if name in pages else ()
            lacks, uploads = blocks - len(have), item.start > 0 and not have
            # The first wave attends only to KV on the device, so it starts at once while the second is uploaded.
            if index > begin and (taken + lacks > limit or (uploads and not waves and self.layers_in_turn == 1)):
                self._give_back(leaving)
                waves.append(Span(begin, index))
                begin, taken, leaving = index, 0, []
            if lacks:
                pages[name] = Pages((*have, *self._take(lacks, taken, len(waves))), self.size)
            taken += lacks
            if uploads:
                moves += self._upload(name, item.start, len(waves))
            places.append(pages[name])
            if index >= num_staying:
                moves += self._offload(name, item.stop, "after", len(waves))
                leaving.append(name)
        self._give_back(leaving)
        return Placement(tuple(places), None, tuple(moves), (*waves, Span(begin, len(work))) if waves else ())

    def _divide(self, needs: list[int], needed: int) -> tuple[int, int]:
        """Return how many leading pieces of work stay, and the wave size in blocks.

        All stay if they fit; none stays if layers take turns.
        """
        if self.layers_in_turn > 1:
            return 0, even_waves(needs, self.num_blocks)
        any_stays = self.options.turns == "rest"
        if any_stays and needed <= self.num_blocks:
            return len(needs), self.num_blocks
        least = int((BUFFER if self.options.buffer is None else self.options.buffer) * self.num_blocks)
        return staying_and_wave(needs, self.num_blocks, least, any_stays)

    def _clear(self, staying: Collection[str], needed: int) -> list[Move]:
        """Before the first wave, offload sequences not in `staying`, unless all fit together.

        Args:
            needed: number of blocks that all work needs.
        """
        pages = self.blocks.pages
        others = [name for name in pages if name not in staying]
        held = sum([len(pages[name].blocks) for name in others])
        if needed + held <= self.num_blocks:
            return []
        moves: list[Move] = []
        for name in others:
            moves += self._offload(name, self.homes.cached[name], "before", 0)
        self._give_back(others)
        return moves

    def _upload(self, name: str, stop: int, wave: int) -> list[Move]:
        """Return the moves that upload a sequence's first `stop` tokens for a wave."""
        home = self.homes.places[name].offset
        return [
            Move("upload", home + first, slot, length, "host", moment="before", wave=wave)
            for first, slot, length in _runs(self.blocks.pages[name], 0, stop)
        ]

    def _offload(self, name: str, stop: int, moment: Any, wave: int) -> list[Move]:
        """Return the moves that offload a sequence's tokens before `stop` that the host lacks."""
        home, start = self.homes.places[name].offset, self.backed.get(name, 0)
        self.backed[name] = stop
        return [
            Move("offload", slot, home + first, length, target_tier="host", moment=moment, wave=wave)
            for first, slot, length in _runs(self.blocks.pages[name], start, stop)
        ]

    def _take(self, count: int, taken: int, wave: int) -> Seq[int]:
        """Take the `count` blocks freed first, for a wave that already has `taken` blocks.

        If layers take turns, all blocks are free when a wave begins. Even waves fill the device from its beginning,
        odd ones from its end, so that the last wave of a layer and the first of the next use different halves.
        """
        if self.layers_in_turn == 1:
            return [self.free.popleft() for _ in range(count)]
        first = self.num_blocks - taken - count if wave % 2 else taken
        return range(first, first + count)

    def _give_back(self, names: list[str]) -> None:
        """Free the device blocks of sequences whose KV is on the host."""
        for name in names:
            pages = self.blocks.pages.pop(name)
            if self.layers_in_turn == 1:
                self.free.extend(pages.blocks)

    def commit(self, plan: Plan, sampled: Collection[str], now: float) -> KVUsage:
        self.homes.wrote(plan.work)
        return self.usage()

    def release(self, sequence: Sequence, now: float) -> None:
        name = sequence.id
        if name in self.blocks.pages:
            self._give_back([name])
        if (home := self.homes.release(name)) is not None:
            self.host.free(*home)
            self.backed.pop(name, None)

    def usage(self) -> KVUsage:
        here = sum([self.homes.cached.get(name, 0) for name in self.blocks.pages])  # tokens with KV on the device
        reserved = (self.num_blocks - len(self.free)) * self.size
        return KVUsage(here, reserved, self.capacity, self.homes.num_written - here)

    def check_integrity(self) -> None:
        self.host.check(self.homes.places.values())
        held = [block for pages in self.blocks.pages.values() for block in pages.blocks]
        if sorted([*held, *self.free]) != list(range(self.num_blocks)):
            raise LawBroken("conservation", f"blocks {held} are held and {list(self.free)} free of {self.num_blocks}")


def _runs(pages: Pages, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield tokens [start, stop) in runs of consecutive slots.

    A run is (first token, slot of that token, length).

    >>> list(_runs(Pages((4, 5, 2), 4), 2, 11))
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

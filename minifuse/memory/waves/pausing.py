"""Runs as many sequences as can be attended without delay; the newest pause (back-pressure)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby

from minifuse.core.errors import LawBroken
from minifuse.core.places import Pages, Reuse
from minifuse.core.plan import Move, Placement, Plan, Proposal, Reason, Span, Work
from minifuse.core.report import KVUsage
from minifuse.core.request import Sequence
from minifuse.memory.blocks import BlockCount
from minifuse.memory.contiguous import RunTrial
from minifuse.memory.trial import Trial, settle
from minifuse.memory.waves.books import WaveBooks, take_turns
from minifuse.memory.waves.division import even_waves

SPARE = 16  # a sequence comes up if a part in so many of the device stays free: sequences need it to grow
RESERVE = 100  # newcomers leave a part in so many of the device to running sequences


@dataclass(frozen=True, slots=True)
class Beyond:
    """Describes how KV beyond the device is attended.

    Attributes:
        tier: "host": the host attends it. "shared": each layer's passes through slots that the layers share.
        limit: tokens of it in an iteration, at most; 0: none.
        num_shared: blocks that the layers share.
        split: minimum tokens attended by the host for two passes: the device computes one half of the batch while the
            host attends the other; None: never.
    """

    tier: str = "host"
    limit: int = 0
    num_shared: int = 0
    split: int | None = None


class PausingTrial(Trial):
    """Counts free blocks, and the tokens that are attended beyond the device.

    If the device has no block left, the newest sequence that decodes there goes beyond the device. If that would exceed
    what can be attended beyond it, there is no room, and the policy evicts.
    """

    def __init__(self, way: Pausing) -> None:
        super().__init__()
        self.way, self.books = way, way.books
        blocks = self.books.blocks
        self.count = BlockCount(blocks, len(self.books.free) - blocks.num_promised, "block")
        self.beyond: dict[str, int] = dict(way.beyond)
        self.left = way.more.limit - sum(self.beyond.values())  # tokens that may still be attended beyond the device
        self.gone: set[str] = set()  # evicted sequences
        self.kept = self.books.num_blocks // RESERVE if blocks.pages or self.beyond else 0
        self.newest = way.newest()

    def take(self, sequence: Sequence, growing: bool) -> Reason | None:
        name, is_new = sequence.id, sequence.id not in self.books.homes.places
        if is_new and (full := self.homes.find(sequence)):
            return full
        if full := self._take_room(sequence, growing):
            if is_new:
                self.homes.allocator.free(*self.homes.extents.pop(name))
            return full
        self.kept = self.books.num_blocks // RESERVE
        return None

    @cached_property
    def homes(self) -> RunTrial:
        """Return the homes of newcomers on the host; only made if there are any."""
        return self.books.room()

    def _take_room(self, sequence: Sequence, growing: bool) -> Reason | None:
        """Set aside room on the device or beyond it, or return why there is none."""
        name, length = sequence.id, len(sequence)
        tokens = length if growing else sequence.request.max_cached
        decodes = 0 < self.books.homes.cached.get(name, 0) == length - 1
        moved: list[str] = []  # sequences that go beyond the device for this one
        while full := self.count.claim(sequence, 0, growing, self.kept):
            # The host attends no prompts, which are bound by arithmetic.
            if (decodes or self.way.more.tier == "shared") and self._fits_beyond(tokens):
                self._put_beyond(name, tokens)
                break
            too_large = self.books.blocks.blocks_of(tokens) > self.books.num_blocks
            if too_large or (other := self._make_room()) is None:
                self._back_to_device(moved)
                return self._told(full)
            moved.append(other)
        return None

    def extend(self, sequence: Sequence) -> Reason | None:
        return self.extend_to(sequence.request.id, len(sequence.tokens))

    def extend_to(self, name: str, length: int) -> Reason | None:
        """Set aside what a running sequence lacks for `length` tokens, or return why not."""
        if name not in self.beyond:
            pages = self.books.blocks.pages.get(name)
            if pages is not None and length <= len(pages.blocks) * self.books.size:
                return None  # the usual case
            moved: list[str] = []  # sequences that go beyond the device for this one
            while full := self.count.extend_to(name, length):
                if (other := self._make_room()) is None:
                    self._back_to_device(moved)
                    return self._told(full)
                if other == name:
                    break
                moved.append(other)
            else:
                return None
        more = length - self.beyond[name]
        if more > self.left or self._is_too_long(length):
            return self._bring_up(name, length)
        if more > 0:
            self.left -= more
            self.beyond[name] = length
        return None

    def evict(self, sequence: Sequence) -> None:
        self.settled.append(sequence)
        self.gone.add(sequence.id)
        if sequence.id in self.beyond:
            self.left += self.beyond.pop(sequence.id)
            self.newest = self.way.newest()  # one that was too long may fit beyond the device now
        elif sequence.id in self.books.blocks.pages:
            self._leave_device(sequence.id)
        else:  # this trial brought it up
            self.count.free += self.count.whole.pop(sequence.id)

    def grow(self, work: Seq[Work]) -> None:
        """Set aside what work lacks. Raise `LawBroken` if there is no room."""
        for name, _, stop, _ in work:
            if full := self.extend_to(name, stop):
                raise LawBroken("budget", f"the proposal does not fit: {full}")

    def fill_device(self, names: Seq[str]) -> None:
        """Bring up sequences from beyond the device, in order, while enough room stays free."""
        spare = self.books.num_blocks // SPARE
        for name in names:
            if name in self.beyond and name in self.way.beyond:
                if self.count.free - self.books.blocks.blocks_of(self.beyond[name]) < spare:
                    return
                self._bring_up(name, self.beyond[name])

    def _make_room(self) -> str | None:
        """Let the newest sequence that decodes on the device go beyond it. Returns its name, or None."""
        blocks, cached = self.books.blocks, self.books.homes.cached
        for name in self.newest:
            if name in self.beyond or name in self.gone:
                continue
            tokens = self.count.whole_of(name) * blocks.size if blocks.promised[name] else cached[name] + 1
            if self._fits_beyond(tokens):
                self._leave_device(name)
                self._put_beyond(name, tokens)
                return name
        return None

    def _fits_beyond(self, tokens: int) -> bool:
        return tokens <= self.left and not self._is_too_long(tokens)

    def _is_too_long(self, tokens: int) -> bool:
        """Return whether one sequence may not have so many tokens beyond the device."""
        return self.books.blocks.blocks_of(tokens) > self.way.longest

    def _put_beyond(self, name: str, tokens: int) -> None:
        self.beyond[name] = tokens
        self.left -= tokens

    def _leave_device(self, name: str) -> None:
        """Count the blocks of a sequence as free."""
        self.count.free += self.count.whole_of(name)

    def _back_to_device(self, names: list[str]) -> None:
        """Undo that sequences have left the device."""
        for name in names:
            self.left += self.beyond.pop(name)
            self.count.free -= self.count.whole_of(name)
        self.newest = self.way.newest()

    def _bring_up(self, name: str, length: int) -> Reason | None:
        """Set aside blocks of the device for a sequence beyond it, or return why not."""
        needed = self.books.blocks.blocks_of(length)
        if needed > self.count.free:
            text = f"has no room for its next token: needs {needed} blocks on the device, {self.count.free} are free"
            return self._told(Reason("memory-full", name, text))
        self.left += self.beyond.pop(name)
        self.count.free -= needed
        self.count.whole[name] = needed
        return None

    def _told(self, full: Reason) -> Reason:
        """Add to a reason what limits the tokens beyond the device."""
        more = self.way.more
        if not more.limit:
            return full
        if more.tier == "host":
            said = f"the host attends {more.limit} KV tokens at most, of answers alone, {self.left} are left"
        else:
            said = f"layers share slots for {more.num_shared * self.books.size} tokens of each sequence, and take "
            said += f"{more.limit} in an iteration at most, {self.left} are left"
        return full._replace(text=f"{full.text}; {said}")


@dataclass(eq=False)
class Pausing:
    """Keeps running sequences on the device, and attends KV beyond it within a limit.

    A sequence that is evicted pauses: its KV goes to the host, and it goes on later with a single token. The KV of
    sequences beyond the device lies on the host, too. They are attended there, beside the device, or pass through the
    slots that layers share.
    """

    books: WaveBooks
    capacity: int
    more: Beyond
    # Running sequences beyond the device, and the tokens that are counted for each.
    beyond: dict[str, int] = field(default_factory=dict)
    # Running sequences: first those without work in the last plan, then those of the plan, in order.
    order: dict[str, None] = field(default_factory=dict)
    decoding: set[str] = field(default_factory=set)  # sequences whose last plan has sampled a token
    at_home: dict[str, Pages] = field(default_factory=dict)  # of sequences that the host attends

    @property
    def longest(self) -> int:
        """Return how many blocks a sequence beyond the device may have."""
        return self.more.num_shared if self.more.tier == "shared" else self.books.num_blocks

    def newest(self) -> Iterator[str]:
        """Yield the sequences that decode on the device, the newest first."""
        pages = self.books.blocks.pages
        return (name for name in reversed(self.order) if name in self.decoding and name in pages)

    def room(self) -> PausingTrial:
        return PausingTrial(self)

    def place(self, proposal: Proposal) -> Placement:
        work = proposal.work
        trial = settle(proposal, PausingTrial, self.room)
        trial.grow(work)
        mine = dict.fromkeys([item.sequence for item in work])
        others = dict.fromkeys([name for name in self.order if name not in mine and name not in trial.gone])
        self.order = others | mine
        if not proposal.admit:
            trial.fill_device([*self.order])
        moves = self._leave(proposal, trial)
        came_up = [name for name in self.beyond if name not in trial.beyond and name not in trial.gone]
        self.beyond = trial.beyond
        if proposal.admit:
            self.books.host = trial.homes.allocator
            self.books.homes.places |= trial.homes.extents
        newcomers = [sequence.id for sequence in proposal.admit]
        moves += self._enter([name for name in (*came_up, *newcomers) if name not in self.beyond], trial)
        for name, _, stop, _ in work:
            if (pages := self.books.blocks.pages.get(name)) is not None and stop > pages.capacity:
                self.books.take(name, self.books.blocks.blocks_of(stop) - len(pages.blocks))
        places, in_tiers = self._places(work, moves)
        waves, passes = self._halves(work, in_tiers)
        found = [(name, self.books.homes.cached.get(name, 0)) for name in newcomers]
        reused = tuple([Reuse(name, 0, count) for name, count in found if count])
        return Placement(tuple(places), None, tuple(moves), waves if len(waves) > 1 else (), reused, passes)

    def _leave(self, proposal: Proposal, trial: PausingTrial) -> list[Move]:
        """Offload the sequences that pause or go beyond the device, and free their blocks."""
        books, moves = self.books, list[Move]()
        for name in [*[sequence.id for sequence in proposal.evict], *trial.beyond]:
            if (pages := books.blocks.pages.get(name)) is not None:
                moves += books.offload(name, pages, books.homes.cached.get(name, 0), "before", 0)
                books.give_back(name)
        return moves

    def _enter(self, names: list[str], trial: PausingTrial) -> list[Move]:
        """Give sequences blocks of the device, and upload the KV that they have."""
        books, moves = self.books, list[Move]()
        for name in names:
            cached = books.homes.cached.get(name, 0)
            books.take(name, books.blocks.blocks_of(cached), promised=trial.count.whole[name])
            moves += books.upload(name, books.blocks.pages[name], cached, 0)
        return moves

    def _places(self, work: Seq[Work], moves: list[Move]) -> tuple[list[Pages], list[Span]]:
        """Return each piece's place, and the waves: neighbours that are attended in one tier."""
        places, waves = list[Pages](), list[Span]()
        for is_beyond, group in groupby(work, lambda item: item.sequence in self.beyond):
            items = [*group]
            if is_beyond and self.more.tier == "shared":
                self._pass_through(items, places, waves, moves)
                continue
            waves.append(Span(len(places), len(places) + len(items)))
            places += [self._home(item) if is_beyond else self.books.blocks.pages[item.sequence] for item in items]
        return places, waves

    def _home(self, item: Work) -> Pages:
        """Return the place on the host where a piece of work writes its KV."""
        self.books.backed[item.sequence] = item.stop
        if item.sequence not in self.at_home:
            self.at_home[item.sequence] = self.books.at_home(item.sequence)
        return self.at_home[item.sequence]

    def _pass_through(self, items: list[Work], places: list[Pages], waves: list[Span], moves: list[Move]) -> None:
        """Let sequences pass through the shared slots; appends to places, waves and moves."""
        books, first, size = self.books, len(waves), self.books.size
        needs = [books.blocks.blocks_of(item.stop) for item in items]
        turns = take_turns(needs, even_waves(needs, self.more.num_shared), self.more.num_shared)
        for item, needed, (turn, block) in zip(items, needs, turns, strict=True):
            if first + turn == len(waves):
                waves.append(Span(len(places), len(places)))
            pages = Pages(tuple(range(block, block + needed)), size, "shared")
            moves += books.upload(item.sequence, pages, item.start, first + turn)
            moves += books.offload(item.sequence, pages, item.stop, "after", first + turn)
            places.append(pages)
            waves[-1] = Span(waves[-1].start, len(places))

    def _halves(self, work: Seq[Work], waves: list[Span]) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
        """Divide work into two passes, each with half of the tokens that the host attends.

        Returns:
            The waves, of which none belongs to both passes, and the passes; () if there is one.
        """
        on_host = [index for index, item in enumerate(work) if item.sequence in self.beyond]
        before = [*accumulate([work[index].stop for index in on_host], initial=0)]
        if self.more.split is None or len(on_host) < 2 or before[-1] < self.more.split:
            return tuple(waves), ()
        _, cut = min(
            (abs(2 * tokens - before[-1]), index) for tokens, index in zip(before[1:-1], on_host[1:], strict=True)
        )
        ends = sorted({cut, *[stop for _, stop in waves]})
        return tuple(map(Span, [0, *ends[:-1]], ends)), (Span(0, cut), Span(cut, len(work)))

    def wrote(self, plan: Plan, sampled: Collection[str]) -> None:
        """Record what a plan has written, and which sequences decode."""
        self.books.homes.wrote(plan.work)
        self.decoding.update(sampled)

    def release(self, name: str) -> None:
        """Forget a sequence."""
        self.order.pop(name, None)
        self.beyond.pop(name, None)
        self.at_home.pop(name, None)
        self.decoding.discard(name)
        self.books.release(name)

    def usage(self) -> KVUsage:
        return self.books.usage(self.capacity)

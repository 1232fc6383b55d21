"""The memory of Pensieve, which asks the student what is taken next."""

from minifuse.labs.engine import OfStudent
from minifuse.labs.submission import StudentFault
from minifuse.memory.tiered.chunks import Chunk
from minifuse.memory.tiered.eviction import LeastRecentlyUsed
from minifuse.memory.tiered.owners import Owners
from minifuse.memory.tiered.profile import ASSUMED, Profile
from minifuse.memory.tiered.tiered import Tiered
from minifuse.memory.tiered.tiers import Tiers
from minifuse.stages import register
from minifuse.techniques import mix, technique

__all__ = ["OPEN_ROW", "ROW", "Kept", "Valued", "ask_take", "ask_victims"]

TAKEN = tuple[str, int | None, int | None]


def ask_victims(work, profile, size, chunks, now, count) -> list[int]:
    """The student's victims, which are so many different places in the list."""
    found = work.call("victims", profile, size, chunks, now, count, form=list[int])
    right = min(count, len(chunks))
    if len(found) != right or len({*found}) != right or not all(0 <= place < len(chunks) for place in found):
        raise StudentFault(
            f"victims of {len(chunks)} chunks with count {count} returned {found}: return {right} different places, "
            f"from 0 to {len(chunks) - 1}."
        )
    return found


def ask_take(work, profile, size, tiers, now) -> list:
    """The student's choice, which is possible."""
    what, chunk, dropped = found = work.call("take", profile, size, tiers, now, form=TAKEN)
    pools = {"free": None, "reclaim": "both", "swap_out": "device", "drop": "device"}

    def fault(wanted: str) -> StudentFault:
        return StudentFault(f"take with {told(tiers)} returned {tuple(found)}: {wanted}.")

    if what not in pools:
        raise fault(f"begin with one of {', '.join(pools)}")
    if (pool := pools[what]) is None:
        if not tiers["free"] or (chunk, dropped) != (None, None):
            raise fault("no block is free" if not tiers["free"] else "no chunk has to do with a free block")
        return found
    if chunk is None or not 0 <= chunk < len(tiers[pool]):
        raise fault(f"the second is a place in {pool!r}, which has {len(tiers[pool])} chunks")
    if dropped is not None and (what != "swap_out" or not 0 <= dropped < len(tiers["host"])):
        raise fault("the third is a place in 'host', and only with swap_out; or None")
    if what == "swap_out" and dropped is None and not tiers["host_free"]:
        raise fault("the host has no free block")
    return found


def told(tiers: dict) -> str:
    """What lies where, in short."""
    return ", ".join(f"{name} {tiers[name] if isinstance(tiers[name], int) else shown(tiers[name])}" for name in tiers)


def shown(chunks: list) -> str:
    return str(chunks) if len(chunks) < 5 else f"({len(chunks)} chunks)"


class Pool:
    """Idle chunks of one place, of which `choose` finds the one that goes first."""

    def __init__(self, choose) -> None:
        self.chunks: dict[Chunk, None] = {}
        self.choose = choose

    def __len__(self) -> int:
        return len(self.chunks)

    def add(self, chunk: Chunk) -> None:
        self.chunks[chunk] = None

    def remove(self, chunk: Chunk) -> None:
        del self.chunks[chunk]

    def lowest(self, now: float) -> Chunk | None:
        chunks = [*self.chunks]
        return chunks[self.choose(chunks, now)] if chunks else None


def plain(chunks) -> list[list]:
    """Chunks as the student has them."""
    return [[chunk.owners[0].name.split()[-1], chunk.index, chunk.active_s] for chunk in chunks]


class ValuedTiers(Tiers):
    """Two tiers, whose blocks are taken as the student decides."""

    def __init__(self, work, profile: Profile, num_device: int, num_host: int, size: int) -> None:
        super().__init__(num_device, num_host, size, LeastRecentlyUsed())
        self.judge = work
        self.profile = {name: [*one] if name != "other" else one for name, one in profile._asdict().items()}
        self.on_device, self.on_both, self.on_host = (Pool(self.first) for _ in range(3))

    def first(self, chunks: list, now: float) -> int:
        return ask_victims(self.judge, self.profile, self.size, plain(chunks), now, 1)[0]

    def decide(self, free, both, device, host, now):
        """The student's choice among these."""
        tiers = {"free": free, "both": plain(both), "device": plain(device)}
        tiers |= {"host_free": self.host.num_free, "host": plain(host)}
        return ask_take(self.judge, self.profile, self.size, tiers, now)

    def take(self, now, moves) -> int:
        both, device, host = [*self.on_both.chunks], [*self.on_device.chunks], self._on_host(moves)
        if not (self.device.free or both or device):
            return super().take(now, moves)  # which tells of it
        what, place, dropped = self.decide(self.device.num_free, both, device, host, now)
        if what == "free":
            return self.device.take()
        if what == "reclaim":
            self.on_both.remove(both[place])
            block = self._move_to_host(both[place])
            self.on_host.add(both[place])
            return block
        chunk = device[place]
        self.on_device.remove(chunk)
        if what == "drop":
            self.free(chunk)
            return self.device.take()
        self._give_host_block(chunk, None if dropped is None else host[dropped], moves)
        moves.append(self._swap_out(chunk))
        chunk.arriving = True
        return self._move_to_host(chunk)

    def _on_host(self, moves) -> list[Chunk]:
        """What lies on the host alone, and what this plan takes there."""
        return [*self.on_host.chunks, *self._leaving(moves)]

    def _leaving(self, moves) -> dict:
        """The chunks that this plan takes to the host, and their moves. Targets of other moves are on the device."""
        leaving = [move for move in moves if move.moment == "first" and move.target_tier == "host"]
        return {self.by_host_block[move.target // self.size]: move for move in leaving}

    def _give_host_block(self, chunk, dropped, moves) -> None:
        if dropped is not None and dropped in self.on_host.chunks:
            self.drop(dropped)
        elif dropped is not None:  # the plan was to copy it: it is not copied
            move = self._leaving(moves)[dropped]
            moves.remove(move)
            del self.by_host_block[move.target // self.size]
            dropped.arriving = False
            self.free(dropped)
        chunk.host = self.host.take()

    def _find_host_block(self, chunk, now, moves) -> bool:
        """For a copy ahead of time."""
        host = self._on_host(moves)
        what, _, dropped = self.decide(0, [], [chunk], host, now)
        if what == "swap_out":
            self._give_host_block(chunk, None if dropped is None else host[dropped], moves)
        return what == "swap_out"


@register
class Valued(OfStudent, Tiered):
    """KV in chunks on two tiers: what goes, and from where, is the student's to decide."""

    name = "lab-valued"

    def __init__(self, capacity, options=None) -> None:
        super().__init__(capacity, options)
        if self.options.eviction == "lru":
            return  # a scenario that asks for another rule has it
        given = self.options.profile
        profile = ASSUMED if given is None else Profile.read(given, chunk=self.options.chunk)
        blocks = self.tiers.device.num_blocks, self.tiers.host.num_blocks
        self.tiers = ValuedTiers(self.work, profile, *blocks, self.tiers.size)
        self.books = Owners(self.tiers, share=self.options.share, keep=self.options.keep)


ROW = mix(technique("pensieve"), memory="lab-valued")


class Talk:
    """What is known of a conversation: requests that have begun, and the pauses between them."""

    def __init__(self) -> None:
        self.requests = 0
        self.ended_s: float | None = None
        self.pauses: list[float] = []

    def begin(self, now: float) -> None:
        self.requests += 1
        if self.ended_s is not None:
            self.pauses.append(now - self.ended_s)


class KeptTiers(Tiers):
    """The device alone: the chunk goes first for which `values` gives the least. Many chunks are asked for at once."""

    def __init__(self, values, num_device: int, num_host: int, size: int) -> None:
        super().__init__(num_device, num_host, size, LeastRecentlyUsed())
        self.values, self.now, self.known = values, -1.0, {}
        self.on_device, self.on_both, self.on_host = (Pool(self.first) for _ in range(3))

    def first(self, chunks: list, now: float) -> int:
        if now != self.now:
            self.now, self.known = now, {}
        new = [chunk for chunk in chunks if chunk not in self.known]
        self.known |= dict(zip(new, self.values(new, now), strict=True)) if new else {}
        return min(range(len(chunks)), key=lambda place: (self.known[chunks[place]], chunks[place].index))

    def _find_host_block(self, chunk, now, moves) -> bool:
        return False


@register
class Kept(OfStudent, Tiered):
    """The memory of the open task: KV that is kept on the device alone, in chunks that `value_of` puts in an order."""

    name = "lab-kept"

    def __init__(self, capacity, options=None) -> None:
        super().__init__(capacity, options)
        blocks = self.tiers.device.num_blocks, self.tiers.host.num_blocks
        self.tiers = KeptTiers(self.values, *blocks, self.tiers.size)
        self.books = Owners(self.tiers, share=False, keep=self.options.keep)
        self.talks: dict[str, Talk] = {}

    def place(self, proposal, now):
        for sequence in proposal.admit:
            self.talks.setdefault(f"conversation {sequence.request.conversation}", Talk()).begin(now)
        return super().place(proposal, now)

    def release(self, sequence, now) -> None:
        self.talks[f"conversation {sequence.request.conversation}"].ended_s = now
        super().release(sequence, now)

    def values(self, chunks: list, now: float) -> list[float]:
        """The values of these chunks now, by `value_of`."""
        facts = [self.facts(chunk, now) for chunk in chunks]
        return self.value_of(facts)

    def facts(self, chunk, now: float) -> dict:
        """A chunk as `kept_for` has it."""
        owner = chunk.owners[0]
        talk = self.talks[owner.name]
        return {
            "conversation": owner.name.split()[-1],
            "index": chunk.index,
            "context": (chunk.index + 1) * self.tiers.size,
            "idle_s": now - chunk.active_s,
            "tokens": owner.end,
            "requests": talk.requests,
            "pauses": talk.pauses,
        }

    def value_of(self, facts: list[dict]) -> list[float]:
        found = self.work.call("kept_for", facts, form=list[float])
        if len(found) != len(facts) or not all(one == one for one in found):
            raise StudentFault(f"kept_for of {len(facts)} chunks returned {found!s:.100}: return a number for each.")
        return found


OPEN_ROW = mix(technique("pensieve"), memory="lab-kept")

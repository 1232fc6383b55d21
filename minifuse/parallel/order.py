"""Messages from rank 0 to the followers: plans and a few tokens, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from minifuse.core.places import Pages
from minifuse.core.plan import Place, Plan, Tier, Work
from minifuse.core.request import Request, Sequence
from minifuse.trace.step import BlockTables

if TYPE_CHECKING:
    from minifuse.attention.batch import AttentionBackend
    from minifuse.model.text.load import TextSource


class Setup(NamedTuple):
    """Describes a follower's shard and how to compute it; sent once to each follower."""

    source: TextSource
    attention: AttentionBackend
    capacity: int  # KV memory in tokens; a rank holds the KV of its own heads
    size: int  # how many ranks there are
    host_capacity: int = 0  # of the host tier, in tokens
    shared_capacity: int = 0  # slots that layers share (`Memory.shared_capacity`)
    host_dtype: str = "auto"  # of KV on the host (`Memory.host_dtype`)
    seed: int = 0  # of random weights
    timeout_s: float = 60.0  # how long rank 0 waits for the others to join; with NCCL, also of a collective
    rank: int = 0
    local_rank: int = 0  # among the ranks of its machine: the number of its device
    host: str = "127.0.0.1"  # of rank 0
    port: int = 0  # of the store where the ranks join
    dtype: str = "float32"
    device: str = "cpu"  # or cuda
    threads: int = 1


class Update(NamedTuple):
    """Sends followers a sequence's new tokens and, the first time, its request."""

    sequence: str
    request: Request | None
    tokens: tuple[int, ...]


class Order(NamedTuple):
    """A plan to compute, updates of the sequences that it reads, and the finished sequences.

    The plan's block tables are sent as `Grown`. `landed` lists steps that only moved KV and have completed on rank 0;
    the follower first waits until it has completed these steps, too.
    """

    plan: Plan
    updates: tuple[Update, ...]
    finished: tuple[str, ...]
    landed: tuple[int, ...] = ()


class Grown(NamedTuple):
    """An update of a block table: keep its first `kept` blocks, then append `new`."""

    kept: int
    new: tuple[int, ...]
    size: int
    tier: Tier


class Ledger:
    """Records what the followers know of one worker's sequences: their tokens and block tables.

    Every worker has its own ledger, so that the orders of one worker do not depend on those of another.
    """

    def __init__(self) -> None:
        self._sent: dict[str, tuple[Sequence, int]] = {}  # each sequence, and how many of its tokens were sent
        self._tables = BlockTables()

    def order(self, plan: Plan, sequences: Mapping[str, Sequence]) -> Order:
        """Make the order to compute `plan`; `sequences` has all unfinished sequences."""
        finished = tuple(name for name in self._sent if name not in sequences)
        for name in finished:
            self._drop(name)
        names = dict.fromkeys(work.sequence for work in plan.work)
        updates = tuple(self._update(sequences[name]) for name in names)
        places: Any = tuple(map(self._grown, plan.work, plan.places))
        return Order(replace(plan, reasons=(), places=places), updates, finished)  # followers read no reasons

    def _drop(self, name: str) -> None:
        self._sent.pop(name, None)
        self._tables.last.pop(name, None)

    def _update(self, sequence: Sequence) -> Update:
        known, count = self._sent.get(sequence.id, (None, 0))
        is_known = known is sequence  # not a sequence of the same name in an earlier run
        if not is_known:
            self._drop(sequence.id)
            count = len(sequence.request.prompt)
        self._sent[sequence.id] = sequence, len(sequence)
        return Update(sequence.id, None if is_known else sequence.request, tuple(sequence.tokens[count:]))

    def _grown(self, work: Work, place: Place) -> Place | Grown:
        if not isinstance(place, Pages):
            return place
        kept, new, *_ = self._tables.told(work.sequence, place)
        return Grown(kept, tuple(new), place.size, place.tier)


class Known:
    """Holds what a follower knows of one worker's sequences."""

    def __init__(self) -> None:
        self.sequences: dict[str, Sequence] = {}
        self._tables = BlockTables()

    def plan(self, order: Order) -> Plan:
        """Update the sequences; return the order's plan with complete block tables."""
        for name in order.finished:
            self._drop(name)
        for name, request, tokens in order.updates:
            if request is not None:
                self._drop(name)
                self.sequences[name] = Sequence(request)
            self.sequences[name].tokens += tokens
        return replace(order.plan, places=tuple(map(self._whole, order.plan.work, order.plan.places)))

    def _drop(self, name: str) -> None:
        self.sequences.pop(name, None)
        self._tables.last.pop(name, None)

    def _whole(self, work: Work, place: Place | Grown) -> Place:
        if not isinstance(place, Grown):
            return place
        blocks, *_ = self._tables.whole(work.sequence, list(place))
        return Pages(tuple(blocks), place.size, place.tier)

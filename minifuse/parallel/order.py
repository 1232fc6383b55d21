"""What rank 0 tells the followers. Nothing here imports torch: an order holds a plan and a few tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from minifuse.plan import Plan
from minifuse.request import Request, Sequence

if TYPE_CHECKING:
    from minifuse.attention.batch import AttentionBackend
    from minifuse.model.text.load import TextSource

__all__ = ["Ledger", "News", "Order", "Setup", "follow"]


@dataclass(frozen=True, slots=True)
class Setup:
    """All that a follower needs to build its shard, once."""

    rank: int
    size: int
    port: int  # of the store where the ranks meet, on this machine
    source: TextSource
    dtype: str
    device: str  # cpu, or cuda: then rank r has device r
    seed: int  # of random weights
    capacity: int  # KV memory in tokens
    host_capacity: int  # and that of its second tier
    attention: AttentionBackend
    threads: int
    timeout_s: float  # of a collective


class News(NamedTuple):
    """What has become of a sequence: tokens that it has got since the last order, and at first the request itself."""

    sequence: str
    request: Request | None
    tokens: tuple[int, ...]


class Order(NamedTuple):
    """A plan to be computed, what is new of the sequences it reads, and which sequences may be forgotten."""

    plan: Plan
    news: tuple[News, ...]
    gone: tuple[str, ...]


class Ledger:
    """What followers know of the sequences that one worker serves.

    Every worker has its own, so that orders of different workers need not be heard in the order they were given.
    """

    def __init__(self) -> None:
        self._told: dict[str, tuple[Sequence, int]] = {}  # the sequence, and how many of its tokens were sent

    def order(self, plan: Plan, sequences: Mapping[str, Sequence]) -> Order:
        """The order to compute `plan`; `sequences` are all that are not finished."""
        gone = tuple(name for name in self._told if name not in sequences)
        for name in gone:
            del self._told[name]
        names = dict.fromkeys(work.sequence for work in plan.work)
        news = tuple(self._news(sequences[name]) for name in names)
        return Order(replace(plan, admitted=(), reasons=()), news, gone)  # these are for people

    def _news(self, sequence: Sequence) -> News:
        known, count = self._told.get(sequence.id, (None, 0))
        met = known is sequence  # and not a namesake of another run
        if not met:
            count = len(sequence.request.prompt)
        self._told[sequence.id] = sequence, len(sequence)
        return News(sequence.id, None if met else sequence.request, tuple(sequence.tokens[count:]))


def follow(order: Order, sequences: dict[str, Sequence]) -> None:
    """Bring a follower's copy of the sequences up to date, before it computes the order's plan."""
    for name in order.gone:
        del sequences[name]
    for name, request, tokens in order.news:
        if request is not None:
            sequences[name] = Sequence(request)
        sequences[name].tokens += tokens

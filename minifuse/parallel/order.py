"""Messages from rank 0 to the followers: plans and a few tokens, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from minifuse.core.plan import Plan
from minifuse.core.request import Request, Sequence

if TYPE_CHECKING:
    from minifuse.attention.batch import AttentionBackend
    from minifuse.model.text.load import TextSource


class Setup(NamedTuple):
    """Says what the ranks compute: sent once to each follower, which builds its shard."""

    source: TextSource
    attention: AttentionBackend
    capacity: int  # KV memory in tokens; a rank holds the KV of its own heads
    size: int  # how many ranks there are
    host_capacity: int = 0  # of the host tier, in tokens
    layers_in_turn: int = 1  # layers that share the device (`Memory.layers_in_turn`)
    seed: int = 0  # of random weights
    timeout_s: float = 60.0  # how long rank 0 waits for the others to join, and with NCCL a rank in a collective
    # `launch` fills in the rest.
    rank: int = 0
    port: int = 0  # of the store where the ranks join, on this machine
    dtype: str = ""
    device: str = ""  # cpu or cuda, where rank r has device r
    threads: int = 1


class Update(NamedTuple):
    """Tokens that a sequence got since the last order reading it; at first, its request."""

    sequence: str
    request: Request | None
    tokens: tuple[int, ...]


class Order(NamedTuple):
    """A plan to compute, updates of the sequences it reads, and the finished sequences.

    `landed` are steps without work, sent before, that must have landed on the follower too before it goes on.
    """

    plan: Plan
    updates: tuple[Update, ...]
    finished: tuple[str, ...]
    landed: tuple[int, ...] = ()


class Ledger:
    """Records the tokens that the followers have of one worker's sequences.

    Every worker has its own ledger, so that orders of different workers may be carried out in any order.
    """

    def __init__(self) -> None:
        self._sent: dict[str, tuple[Sequence, int]] = {}  # each sequence, and how many of its tokens were sent

    def order(self, plan: Plan, sequences: Mapping[str, Sequence]) -> Order:
        """Make the order to compute `plan`; `sequences` are all unfinished ones."""
        finished = tuple(name for name in self._sent if name not in sequences)
        for name in finished:
            del self._sent[name]
        names = dict.fromkeys(work.sequence for work in plan.work)
        updates = tuple(self._update(sequences[name]) for name in names)
        return Order(replace(plan, reasons=()), updates, finished)  # followers do not read them

    def _update(self, sequence: Sequence) -> Update:
        known, count = self._sent.get(sequence.id, (None, 0))
        is_known = known is sequence  # not a sequence of the same name in an earlier run
        if not is_known:
            count = len(sequence.request.prompt)
        self._sent[sequence.id] = sequence, len(sequence)
        return Update(sequence.id, None if is_known else sequence.request, tuple(sequence.tokens[count:]))


def update_sequences(order: Order, sequences: dict[str, Sequence]) -> None:
    """Bring a follower's sequences up to date before it computes the order's plan."""
    for name in order.finished:
        del sequences[name]
    for name, request, tokens in order.updates:
        if request is not None:
            sequences[name] = Sequence(request)
        sequences[name].tokens += tokens

"""Counts a plan's messages without sending them, and times them (Flover, VI-E). Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from minifuse.core.measured import Messages
from minifuse.core.plan import Plan
from minifuse.model.text.shape import TextShape


class Collectives(Protocol):
    """Tells how long ranks take for a collective."""

    def sum_s(self, num_bytes: float) -> float: ...  # of summing so many bytes of each rank
    def gather_s(self, num_bytes: float) -> float: ...  # of gathering so many bytes of each rank


@dataclass(frozen=True, slots=True)
class SimulatedMessages:
    """Counts the collectives of a rank, and times them.

    A plan sums the hidden states of its rows twice in each layer, idle rows included, and gathers the logits of its
    sampled rows: L layers of h features, T rows, S of them sampled, V tokens, N ranks and b bytes make

        2 L messages of T h b bytes, and one of S ceil(V / N) b bytes, unless S = 0.

    `Communicator` counts the same when it sends them.

    >>> toy = TextShape("llama", vocab_size=29, hidden_size=8, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=4,
    ...     intermediate_size=8, max_context=64)
    >>> from minifuse.simulate.ring import Ring
    >>> ring = Ring(size=2, bandwidth=1.0, latency_s=0.5)
    >>> SimulatedMessages(toy, size=2, element=4, collectives=ring).of(rows=3, sampled=1)
    Messages(num_messages=5, message_bytes=444, seconds=448.5)

    4 sums of 3 x 8 x 4 = 96 bytes take 97 s each, the gathered 15 x 4 = 60 bytes 60.5 s.

    Args:
        config: the whole model's shape.
        size: the number of ranks, at least 2.
        element: bytes of a number.
        collectives: how long they take.
    """

    config: TextShape
    size: int
    element: int
    collectives: Collectives

    def __call__(self, plan: Plan, num_sampled: int) -> Messages:
        """Count and time the messages of a plan that samples `num_sampled` tokens."""
        return self.of(plan.num_computed, num_sampled)

    def of(self, rows: int, sampled: int) -> Messages:
        """Count and time the messages of `rows` rows, with `sampled` tokens sampled."""
        config = self.config
        num_sums, gathers = 2 * config.num_layers, int(sampled > 0)
        summed = rows * config.hidden_size * self.element
        gathered = sampled * -(-config.vocab_size // self.size) * self.element
        seconds = num_sums * self.collectives.sum_s(summed)
        if gathers:
            seconds += self.collectives.gather_s(gathered)
        return Messages(num_sums + gathers, num_sums * summed + gathered, seconds)

"""What came of a plan: what it produced and cost, memory in use, and the report of its iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from minifuse.core.plan import Plan
from minifuse.core.request import FinishReason

NOT_FINITE = -2  # instead of a token, where the largest logit is NaN or infinite; -1 is virtual time's placeholder


class Traffic(NamedTuple):
    """What was copied from one tier to the other, in one direction, and for how long."""

    bytes: int = 0
    seconds: float = 0.0


class Measured(NamedTuple):
    """What a plan cost beside its computing."""

    moving_s: float = 0.0  # for which the plan's moves held the computation up, those within the device included
    num_messages: int = 0  # collective calls between the ranks of a tensor parallel run
    message_bytes: int = 0  # that each rank contributed to them
    num_gathers: int = 0  # inputs of batched cells that had to be copied together first
    gathered_rows: int = 0
    gathering_s: float = 0.0
    to_host: Traffic = Traffic()
    to_device: Traffic = Traffic()
    # For which the computing waited for transfers. It may wait longer than its own take: for those behind everything,
    # and on a busy CPU for the thread that copies.
    exposed_s: float = 0.0

    @property
    def hidden_s(self) -> float:
        """Seconds of copying between the tiers beside computing."""
        return max(0.0, self.to_host.seconds + self.to_device.seconds - self.exposed_s)


NOTHING_MEASURED = Measured()


class Ran(NamedTuple):
    """What a plan produced: for each sequence the tokens, in order; a text whose prompt is not yet complete has none.

    The sequences in `not_finite` have no next token, though their work reached their last one: their logits were NaN or
    infinite. `results` are the outputs of the nodes of cell graphs that no other node reads, by node.
    """

    tokens: Mapping[str, tuple[int, ...]]
    measured: Measured = NOTHING_MEASURED
    results: Mapping[str, Mapping[int, Any]] = {}
    not_finite: tuple[str, ...] = ()


class Completion(NamedTuple):
    """A plan that has run, and when it ended."""

    plan: Plan
    ran: Ran
    ended_s: float


class KVUsage(NamedTuple):
    """Memory in tokens, or in states: written and still needed, set aside, and in all; and what lies on the host alone.

    What has been copied to the host and is still on the device counts as being on the device. KV that is kept when its
    sequence has ended, as for a conversation, is counted apart: it may be reclaimed at any time.
    """

    used: int
    reserved: int
    capacity: int
    host: int = 0
    kept: int = 0  # written, and kept for later requests, on the device
    kept_on_host: int = 0


@dataclass(frozen=True, slots=True)
class StepReport:
    """What happened in one iteration. `tokens` are what the sequences took in, up to the end of an answer."""

    plan: Plan
    started_s: float
    ended_s: float
    tokens: Mapping[str, tuple[int, ...]]
    finished: Mapping[str, FinishReason]
    usage: KVUsage  # while the iteration ran: what finished with it is still counted
    measured: Measured = NOTHING_MEASURED
    discarded: int = 0  # tokens or nodes computed for sequences that had ended before

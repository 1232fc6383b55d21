"""What came of a plan: the tokens and results it produced, and the report of its iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from minifuse.layout import Shape
from minifuse.place import BlockTables
from minifuse.plan import Plan
from minifuse.request import FinishReason
from minifuse.work import TRANSFORMER

__all__ = [
    "NOT_FINITE",
    "NO_TRANSFERS",
    "Completion",
    "Gathers",
    "KVUsage",
    "Messages",
    "Ran",
    "StepReport",
    "Traffic",
    "Transfers",
]

NOT_FINITE = -2  # instead of a token, where the largest logit is NaN or infinite; -1 is virtual time's placeholder


class Messages(NamedTuple):
    """Collective calls between the ranks of a tensor parallel run, and the bytes that each rank contributed to them."""

    calls: int = 0
    bytes: int = 0


NO_MESSAGES = Messages()


class Gathers(NamedTuple):
    """Inputs of batched cells that had to be copied together first, since they did not lie side by side in order."""

    copies: int = 0
    rows: int = 0
    seconds: float = 0.0


NO_GATHERS = Gathers()


class Traffic(NamedTuple):
    """What was copied from one tier to the other, in one direction, and for how long."""

    bytes: int = 0
    seconds: float = 0.0


class Transfers(NamedTuple):
    """What a plan's moves carried between the tiers, and for how long its computing had to wait for them.

    A plan's computing may wait longer than its own transfers take: for those behind everything that were on their way,
    and on a busy CPU for the thread that copies.
    """

    to_host: Traffic = Traffic()
    to_device: Traffic = Traffic()
    exposed_s: float = 0.0

    @property
    def hidden_s(self) -> float:
        """Seconds of copying beside computing."""
        return max(0.0, self.to_host.seconds + self.to_device.seconds - self.exposed_s)


NO_TRANSFERS = Transfers()


class Ran(NamedTuple):
    """What a plan produced: for each sequence the tokens, in order; a text whose prompt is not yet complete has none.

    `moving_s` is the time for which the plan's moves held the computation up, those within the device included. Of cell
    graphs, `results` are the outputs of the nodes that no other node reads, by node. The sequences in `not_finite` have
    no next token, though their work reached their last one: their logits were NaN or infinite.
    """

    tokens: Mapping[str, tuple[int, ...]]
    moving_s: float = 0.0
    messages: Messages = NO_MESSAGES
    results: Mapping[str, Mapping[int, Any]] = {}
    gathers: Gathers = NO_GATHERS
    transfers: Transfers = NO_TRANSFERS
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
    """What happened in one iteration. The list of these is the trace.

    `tokens` are those that the sequences took in: what comes after the end of an answer is not among them.
    """

    plan: Plan
    started_s: float
    ended_s: float
    tokens: Mapping[str, tuple[int, ...]]
    finished: Mapping[str, FinishReason]
    usage: KVUsage  # while the iteration ran: what finished with it is still counted
    moving_s: float = 0.0
    messages: Messages = NO_MESSAGES
    gathers: Gathers = NO_GATHERS
    transfers: Transfers = NO_TRANSFERS
    discarded: int = 0  # tokens or nodes computed for sequences that had ended before

    def decisions(self, tables: BlockTables | None = None) -> dict[str, Any]:
        """The part that must not depend on how busy the machine was, ready for JSON.

        Args:
            tables: the block tables that earlier steps have told; None: tell them whole.
        """
        plan, tell = self.plan, (tables or BlockTables()).told
        return {
            "step": plan.step,
            "worker": plan.worker,
            "work": [[w.sequence, w.start, w.stop] if w.cell == TRANSFORMER else list(w) for w in plan.work],
            "places": [tell(work.sequence, place) for work, place in zip(plan.work, plan.places, strict=True)],
            "admitted": list(plan.admitted),
            "evicted": list(plan.evicted),
            "phase": plan.phase.value,
            "shape": _named(plan.shape),
            "waves": [list(wave) for wave in plan.waves],
            "lanes": [list(lane) for lane in plan.layout.lanes],
            "moves": [list(move) for move in plan.moves],
            **({"reused": [list(one) for one in plan.reused]} if plan.reused else {}),
            "reasons": [list(reason) for reason in plan.reasons],
            "computed": plan.num_computed,
            "idle": plan.num_idle,
            "tokens": {name: list(tokens) for name, tokens in self.tokens.items()},
            **({"discarded": self.discarded} if self.discarded else {}),
            "finished": {name: reason.value for name, reason in self.finished.items()},
            "kv": list(self.usage[:4]),
            **({"kept": list(self.usage[4:])} if any(self.usage[4:]) else {}),
        }


def _named(shape: Shape | None) -> dict[str, Any] | None:
    """A shape as a JSON object whose `kind` is its class: {"kind": "Region", "offset": 0, "size": 3, "width": 8}.

    A rectangle's `begin` is left out while it is 0.
    """
    if shape is None:
        return None
    usual = shape._field_defaults
    fields = {name: value for name, value in shape._asdict().items() if name not in usual or value != usual[name]}
    return {"kind": type(shape).__name__, **fields}

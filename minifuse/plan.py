"""The nouns between the stages: what is proposed, where it lies, the plan of one iteration, and what came of it.

All of them are frozen, hold no tensor, and print as they read. The small ones are named tuples: an iteration of a
hundred requests makes a few hundred of them, and they must cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from minifuse.errors import LawBroken
from minifuse.request import FinishReason, Phase, Sequence

__all__ = [
    "Completion",
    "Extent",
    "Gathers",
    "Grid",
    "KVUsage",
    "Messages",
    "Move",
    "Pages",
    "Place",
    "Placement",
    "Plan",
    "Proposal",
    "Ran",
    "Reason",
    "Region",
    "Span",
    "State",
    "StepReport",
    "Work",
    "sampled_work",
]

TRANSFORMER = "transformer"


class Span(NamedTuple):
    """Tokens [start, stop) of one sequence."""

    start: int
    stop: int


class Work(NamedTuple):
    """Compute tokens [start, stop) of a sequence, or node `start` of its cell graph (`cell` names the node's type).

    There is no prefill flag: prefill is a `Work` longer than one token.
    """

    sequence: str
    start: int
    stop: int
    cell: str = TRANSFORMER

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


class Reason(NamedTuple):
    """Why something was not done: a stable code, whom it concerns, and the sentence a person reads."""

    code: str
    sequence: str
    text: str

    def __str__(self) -> str:
        return f"{self.sequence} {self.text}"


class Extent(NamedTuple):
    """KV of one sequence in consecutive slots: token i lies in slot `offset + i`, up to `capacity` tokens."""

    offset: int
    capacity: int

    def slots(self, start: int, stop: int) -> Seq[int]:
        """Where tokens [start, stop) lie."""
        return range(self.offset + start, self.offset + stop)


class Pages(NamedTuple):
    """KV of one sequence in blocks of `size` slots: token i lies in slot `blocks[i // size] * size + i % size`.

    >>> Pages((7, 2), 4).slots(2, 6)
    [30, 31, 8, 9]
    """

    blocks: tuple[int, ...]  # the block table
    size: int

    @property
    def capacity(self) -> int:
        return len(self.blocks) * self.size

    def slots(self, start: int, stop: int) -> Seq[int]:
        """Where tokens [start, stop) lie."""
        blocks, size = self.blocks, self.size
        return [blocks[i // size] * size + i % size for i in range(start, stop)]


class State(NamedTuple):
    """Where a node of a cell graph finds the states it reads, one slot for each input that is an `Output`, and where
    its own go.

    A slot holds all outputs of one node.
    """

    reads: tuple[int, ...]
    slot: int

    @property
    def capacity(self) -> int:
        return 1

    def slots(self, start: int, stop: int) -> Seq[int]:
        """Where nodes [start, stop) leave their states: of one node, its slot."""
        return (self.slot,)


Place = Extent | Pages | State


class Grid(NamedTuple):
    """A rectangle of KV slots, and the columns of it that one iteration computes, for every row.

    Row r, column c is slot `offset + r * width + c`. A rectangle [3 rows, columns start..stop) is computed whole:
    what no `Work` covers is padding or a finished row, and counts as idle.
    """

    offset: int
    rows: int
    width: int
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        return self.rows * (self.stop - self.start)


class Region(NamedTuple):
    """Adjacent buffers [offset, offset + size) of `width` KV slots each: one token is computed in every one of them.

    `offset` and `size` are the paper's buffer_offset and buffer_size (Flover, Fig. 4), counted in buffers. A buffer
    that no `Work` has its extent in is computed all the same, and counts as idle (Fig. 5).
    """

    offset: int
    size: int
    width: int

    @property
    def num_tokens(self) -> int:
        return self.size


class Move(NamedTuple):
    """A copy of KV between slots: within the device (shuffle, copy), across tiers (swap), into a batch (embed).

    `source` and `target` are slots of the device, but for the target of a swap_out and the source of a swap_in, which
    are slots of the host. A plan's moves are done in order. Without a `wave` a move is done before the forward pass, in
    all layers at once; with one, layer by layer, just before that wave of attention reads it.
    """

    kind: Literal["shuffle", "copy", "swap_in", "swap_out", "embed"]
    source: int  # first slot
    target: int
    num_tokens: int
    wave: int | None = None

    @property
    def crosses(self) -> bool:
        """Whether it is a swap: from one tier to the other."""
        return self.kind in ("swap_in", "swap_out")


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a batching policy wants to run next. Without work it waits: for an arrival, a completion, or `wake_at`.

    `phase` is what the sequences are in while the work runs. `PREPROCESSING` prepares them for another worker: once the
    work has run they are `READY`.

    Those in `evict` give their place on the device up before anybody is admitted: they are `SUSPENDED` until they are
    admitted again. A policy that evicts has one worker, and may admit with no more than is needed now (`growing`);
    otherwise whoever is admitted keeps what the longest possible answer takes.

    `waves` are ranges of the work to be computed one after the other: the nodes of a merged graph, each wave a batch of
    one type. None given means that all work is computed at once.
    """

    work: tuple[Work, ...] = ()
    admit: tuple[Sequence, ...] = ()  # newcomers, in order: memory has no place for them yet
    reasons: tuple[Reason, ...] = ()
    wake_at: float | None = None
    phase: Phase = Phase.RUNNING
    evict: tuple[Sequence, ...] = ()
    growing: bool = False
    waves: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where memory put a proposal's work: a place for each piece, the shape they form if they form one, and moves.

    `waves` are the ranges of work whose KV is in place at the same time; none given means all of it is.
    """

    places: tuple[Place, ...]
    grid: Grid | Region | None = None
    moves: tuple[Move, ...] = ()
    waves: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided for one iteration on one worker.

    `waves` are ranges of `work` whose attention runs one after the other; one wave holds all unless KV exceeds the
    device (FluidInfer), or they are the batches of a merged cell graph. `grid` is set when more may be computed than
    was asked for: a padded rectangle, or adjacent buffers.
    """

    step: int
    worker: int
    work: tuple[Work, ...]
    places: tuple[Place, ...]
    admitted: tuple[str, ...] = ()
    grid: Grid | Region | None = None
    moves: tuple[Move, ...] = ()
    waves: tuple[Span, ...] = ()
    reasons: tuple[Reason, ...] = ()
    phase: Phase = Phase.RUNNING
    evicted: tuple[str, ...] = ()

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The places, for an attention that reads consecutive slots and nothing else."""
        for place in self.places:
            if not isinstance(place, Extent):
                raise LawBroken("layout", f"step {self.step} has {place} where consecutive slots are read")
        return self.places  # type: ignore[return-value]

    @property
    def sequences(self) -> Seq[str]:
        """Whose work it is, each once."""
        return list(dict.fromkeys([work.sequence for work in self.work]))

    @property
    def num_tokens(self) -> int:
        """Tokens somebody asked for."""
        return sum([work.stop - work.start for work in self.work])

    @property
    def num_computed(self) -> int:
        """Tokens computed, idle ones included."""
        return self.grid.num_tokens if self.grid else self.num_tokens

    @property
    def num_idle(self) -> int:
        return self.num_computed - self.num_tokens


def sampled_work(plan: Plan, sequences: Mapping[str, Sequence]) -> list[int]:
    """Indices of the work that reaches its sequence's last token: what follows it can be sampled.

    A prompt computed in pieces is sampled from only after the last piece.
    """
    return [i for i, work in enumerate(plan.work) if work.stop == len(sequences[work.sequence].tokens)]


class Messages(NamedTuple):
    """Collective calls between the ranks of a tensor parallel run, and the bytes that each rank gave to them."""

    calls: int = 0
    bytes: int = 0


NO_MESSAGES = Messages()


class Gathers(NamedTuple):
    """Inputs of batched cells that had to be copied together first, since they did not lie side by side in order."""

    copies: int = 0
    rows: int = 0
    seconds: float = 0.0


NO_GATHERS = Gathers()


class Ran(NamedTuple):
    """What came of computing a plan: the token sampled for each sequence whose missing tokens it completed.

    `moving_s` is the time that the plan's moves held the computation up. Of cell graphs, `answers` are the tokens of
    those whose nodes say more than one in this plan, and `results` the outputs of nodes that nobody reads, by node.
    """

    tokens: dict[str, int]
    moving_s: float = 0.0
    messages: Messages = NO_MESSAGES
    answers: Mapping[str, tuple[int, ...]] = {}
    results: Mapping[str, Mapping[int, Any]] = {}
    gathers: Gathers = NO_GATHERS


class Completion(NamedTuple):
    """A plan that has run, and when it ended."""

    plan: Plan
    ran: Ran
    ended_s: float


class KVUsage(NamedTuple):
    """KV memory in tokens: written and still needed, set aside, and in all; and what lies on the host."""

    used: int
    reserved: int
    capacity: int
    host: int = 0


@dataclass(frozen=True, slots=True)
class StepReport:
    """What happened in one iteration. The list of these is the trace."""

    plan: Plan
    started_s: float
    ended_s: float
    tokens: dict[str, int]
    finished: dict[str, FinishReason]
    usage: KVUsage  # while the iteration ran: what finished with it is still counted
    moving_s: float = 0.0
    messages: Messages = NO_MESSAGES
    answers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    gathers: Gathers = NO_GATHERS
    discarded: int = 0  # tokens or nodes computed for sequences that had ended before

    def decisions(self) -> dict[str, Any]:
        """The part that must not depend on how busy the machine was, ready for JSON."""
        plan = self.plan
        return {
            "step": plan.step,
            "worker": plan.worker,
            "work": [[w.sequence, w.start, w.stop] if w.cell == TRANSFORMER else list(w) for w in plan.work],
            "places": [list(place) for place in plan.places],
            "admitted": list(plan.admitted),
            "evicted": list(plan.evicted),
            "phase": plan.phase.value,
            "grid": list(plan.grid) if plan.grid else None,
            "moves": [list(move) for move in plan.moves],
            "waves": [list(wave) for wave in plan.waves],
            "reasons": [list(reason) for reason in plan.reasons],
            "computed": plan.num_computed,
            "idle": plan.num_idle,
            "tokens": self.tokens,
            **({"answers": {name: list(answer) for name, answer in self.answers.items()}} if self.answers else {}),
            **({"discarded": self.discarded} if self.discarded else {}),
            "finished": {name: reason.value for name, reason in self.finished.items()},
            "kv": list(self.usage),
        }

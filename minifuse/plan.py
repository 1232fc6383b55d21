"""The nouns between the stages: what is proposed, where memory puts it, and the plan of one iteration.

All of them are frozen, hold no tensor, and print as they read. The small ones are named tuples: an iteration of a
hundred requests makes a few hundred of them, and they must cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from minifuse.errors import LawBroken
from minifuse.layout import RAGGED, Layout, Shape
from minifuse.place import Extent, Place, Runs
from minifuse.request import Phase, Sequence
from minifuse.work import Span, Work

__all__ = ["MOMENTS", "MOVE_KINDS", "Move", "Placement", "Plan", "Proposal", "Reason", "Reuse", "Tier", "sampled_work"]


Tier = Literal["device", "host"]
MoveKind = Literal["shuffle", "copy", "swap_in", "swap_out", "upload", "offload", "embed"]
Moment = Literal["first", "before", "after", "behind"]
MOVE_KINDS: tuple[MoveKind, ...] = get_args(MoveKind)
MOMENTS: tuple[Moment, ...] = get_args(Moment)


class Reason(NamedTuple):
    """Why something was not done: a stable code, the sequence concerned, and the sentence a person reads."""

    code: str
    sequence: str
    text: str

    def __str__(self) -> str:
        return f"{self.sequence} {self.text}"


class Move(NamedTuple):
    """A copy of KV from slots of one tier to slots of the same or of the other tier.

    `kind` is the name that metrics count it under: KV of an evicted sequence is swapped out, and in when it is admitted
    again; KV that is on the device for one wave alone is uploaded before it, and what the wave wrote is offloaded. What
    has been copied to the host is on both tiers until one of the two copies is overwritten, and so is what is uploaded;
    what is swapped in leaves the host.

    `moment` says when a plan's move is made. Moves of one moment are made in the order of the plan, and what touches
    the same slots never changes its order:

    | moment | made | the plan waits |
    |---|---|---|
    | first | in all layers at once, before anything is computed | for all of it |
    | before | layer by layer, as soon as its slots allow | wave `wave` attends in layer i once layer i is copied |
    | after | layer by layer, once wave `wave` has attended in layer i | at its end, or where a slot is needed before |
    | behind | beside everything, by a plan without work (`Memory.ahead`) | no plan does |

    Until a move that is behind everything has landed, its source may not be written and its target not be read.

    >>> Move("swap_out", 0, 8, 4, target_tier="host")  # blocking: before the plan computes
    >>> Move("swap_in", 8, 0, 4, "host", moment="before", wave=0)  # layer i of the attention waits for layer i alone
    """

    kind: MoveKind
    source: int  # first slot, in the source's tier
    target: int  # first slot, in the target's tier
    num_tokens: int
    source_tier: Tier = "device"
    target_tier: Tier = "device"
    moment: Moment = "first"
    wave: int = 0  # that it is made before, or after

    @property
    def crosses(self) -> bool:
        """Whether it is a transfer: from one tier to the other."""
        return self.source_tier != self.target_tier

    @property
    def by_layer(self) -> bool:
        """Whether it is made layer by layer, beside the waves."""
        return self.moment in ("before", "after")

    def check(self, num_waves: int) -> None:
        """Raise `LawBroken` if there can be no such move in a plan of so many waves; 0: in a plan without work."""
        behind = self.moment == "behind"
        if self.source_tier == self.target_tier == "host":
            raise LawBroken("layout", f"{self} goes from the host to the host: move KV on the device, or to or from it")
        if behind != (num_waves == 0):
            raise LawBroken(
                "layout", f"{self} is in a plan of {num_waves} waves: moves behind everything have their own"
            )
        if behind and not self.crosses:
            raise LawBroken("layout", f"{self} is behind everything and stays on the device: only transfers may be")
        if self.by_layer and not 0 <= self.wave < num_waves:
            raise LawBroken("layout", f"{self} names wave {self.wave} of a plan of {num_waves} waves")
        if self.num_tokens < 1 or min(self.source, self.target) < 0:
            raise LawBroken(
                "layout", f"{self} moves {self.num_tokens} tokens: give slots from 0, and at least one token"
            )


class Reuse(NamedTuple):
    """Tokens of an admitted sequence that need not be computed, as memory has their KV: by the tier that had it."""

    sequence: str
    on_device: int
    on_host: int

    @property
    def num_tokens(self) -> int:
        return self.on_device + self.on_host


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a batching policy wants to run next. Without work it waits: for an arrival, a completion, or `wake_at`.

    `phase` is that of the sequences while the work runs. `PREPROCESSING` prepares them for another worker, or for the
    batch of this one: they are `READY` once the work has run.

    The sequences in `evict` give up their place on the device before any newcomer is admitted: they are `SUSPENDED`
    until they are admitted again. A policy that evicts has one worker, and may admit a newcomer with no more memory
    than it needs now (`growing`); otherwise memory reserves what the longest possible answer takes.

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
    """Where memory put a proposal's work: a place for each piece, the shape that the places form, if any, and moves.

    `waves` are the ranges of work whose KV is in place at the same time; none given means that all of it is. `reused`
    tells what admitted sequences found in memory; those that found nothing are left out.
    """

    places: tuple[Place, ...]
    shape: Shape | None = None
    moves: tuple[Move, ...] = ()
    waves: tuple[Span, ...] = ()
    reused: tuple[Reuse, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided for one iteration on one worker.

    A plan without work holds moves alone, all of them behind everything. It completes when they have landed.

    Raises:
        LawBroken: one of its moves is impossible.
    """

    step: int
    worker: int
    work: tuple[Work, ...]
    places: tuple[Place, ...]
    admitted: tuple[str, ...] = ()
    layout: Layout = RAGGED
    moves: tuple[Move, ...] = ()
    reasons: tuple[Reason, ...] = ()
    phase: Phase = Phase.RUNNING
    evicted: tuple[str, ...] = ()
    reused: tuple[Reuse, ...] = ()

    def __post_init__(self) -> None:
        for move in self.moves:
            move.check(len(self.waves) if self.work else 0)

    @classmethod
    def of(cls, step: int, worker: int, proposal: Proposal, placement: Placement, layout: Layout) -> Plan:
        """What batching proposed, memory placed and attention laid out, as one plan."""
        return cls(
            step=step,
            worker=worker,
            work=proposal.work,
            places=placement.places,
            admitted=tuple(sequence.id for sequence in proposal.admit),
            layout=layout,
            moves=placement.moves,
            reasons=proposal.reasons,
            phase=proposal.phase,
            evicted=tuple(sequence.id for sequence in proposal.evict),
            reused=placement.reused,
        )

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The places, for an attention that reads consecutive slots and nothing else."""
        for place in self.places:
            if not isinstance(place, Extent):
                raise LawBroken("layout", f"step {self.step} has {place} where consecutive slots are read")
        return self.places  # type: ignore[return-value]

    @property
    def runs(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The runs of slots of each piece of work, for an attention that reads a rectangle's rows."""
        found = [place.runs for place in self.places if isinstance(place, (Extent, Runs))]
        if len(found) < len(self.places):
            raise LawBroken("layout", f"step {self.step} has {self.places} where runs of slots are read")
        return tuple(found)

    @property
    def shape(self) -> Shape | None:
        """What is computed whole, idle rows included; None: the work and nothing else."""
        return self.layout.shape

    @property
    def waves(self) -> tuple[Span, ...]:
        """The ranges of work that are attended, or computed, one after the other."""
        return self.layout.waves or (Span(0, len(self.work)),)

    @property
    def sequences(self) -> Seq[str]:
        """The sequences that the work belongs to, each once."""
        return list(dict.fromkeys([work.sequence for work in self.work]))

    @property
    def num_tokens(self) -> int:
        """Tokens, or nodes, that requests need."""
        return sum([work.stop - work.start for work in self.work])

    @property
    def num_computed(self) -> int:
        """Tokens, or nodes, computed, idle ones included."""
        shape = self.layout.shape
        return self.num_tokens if shape is None else shape.num_tokens

    @property
    def num_idle(self) -> int:
        return self.num_computed - self.num_tokens


def sampled_work(plan: Plan, sequences: Mapping[str, Sequence]) -> list[int]:
    """Indices of the work that reaches its sequence's last token: the token after it can be sampled.

    A prompt computed in pieces is sampled from only after the last piece.
    """
    return [i for i, work in enumerate(plan.work) if work.stop == len(sequences[work.sequence].tokens)]

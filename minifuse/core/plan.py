"""The nouns between the stages: work, its place and layout, the plan of an iteration.

All are frozen, hold no tensor, and can be printed. The small ones are named tuples: an iteration of a hundred requests
makes a few hundred of them.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal, NamedTuple, Protocol

from minifuse.core.request import Phase, Sequence

TRANSFORMER = "transformer"  # the cell type of all work on texts
Tier = Literal["device", "host", "shared"]  # shared: slots of the device in which layers take turns
MoveKind = Literal["shuffle", "copy", "swap_in", "swap_out", "upload", "offload", "embed"]
Moment = Literal["first", "before", "after", "behind"]


class Span(NamedTuple):
    """The half-open range [start, stop)."""

    start: int
    stop: int


def spans_from(start: int, stop: int) -> tuple[Span, ...]:
    """Return [start, stop) as missing spans; a decode step's is made once."""
    return _last(stop) if start == stop - 1 else (Span(start, stop),)


@cache
def _last(stop: int) -> tuple[Span, ...]:
    return (Span(stop - 1, stop),)


class Work(NamedTuple):
    """Compute tokens [start, stop) of a sequence, or node `start` of its cell graph.

    There is no prefill flag: a prompt is usually a `Work` of many tokens, and a decode step is one of a single token.
    """

    sequence: str
    start: int
    stop: int
    cell: str = TRANSFORMER  # the type of a node

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


class Place(Protocol):
    """Where a sequence lies in memory: an extent, or another place of `minifuse/core/places.py`."""

    @property
    def capacity(self) -> int: ...
    @property
    def tier(self) -> Tier: ...  # where attention reads it
    def slots(self, start: int, stop: int) -> Seq[int]: ...  # the slots of tokens [start, stop)


class Extent(NamedTuple):
    """KV of one sequence in consecutive slots: token i lies in slot `offset + i`."""

    offset: int
    capacity: int  # tokens, at most

    @property
    def tier(self) -> Tier:
        return "device"

    def slots(self, start: int, stop: int) -> Seq[int]:
        return range(self.offset + start, self.offset + stop)


class Shape(Protocol):
    """A region that is computed in full, idle rows included (`minifuse/core/shapes.py`)."""

    @property
    def num_tokens(self) -> int: ...


class Move(NamedTuple):
    """A copy of KV within the device, or between tiers."""

    kind: MoveKind  # what metrics count it under
    source: int  # first slot, in the source's tier
    target: int
    num_tokens: int
    source_tier: Tier = "device"
    target_tier: Tier = "device"
    moment: Moment = "first"  # when: before all work, before or after `wave`, or behind all plans
    wave: int = 0

    @property
    def crosses(self) -> bool:
        """Return whether this is a transfer between the device and the host."""
        return "host" in (self.source_tier, self.target_tier)


class Reason(NamedTuple):
    """Why something was not done: a stable code, the sequence, a sentence for people."""

    code: str
    sequence: str
    text: str

    def __str__(self) -> str:
        return f"{self.sequence} {self.text}"


class Room(Protocol):
    """Lets a policy try decisions on memory's free room; `Memory.place` commits them.

    An admitted sequence gets room for its longest answer, or, if `growing`, only for what it needs now.
    """

    def admit(self, sequence: Sequence, *, growing: bool = False) -> Reason | None: ...  # why it does not fit
    def extend(self, sequence: Sequence) -> Reason | None: ...  # why there is no room for its next token
    def evict(self, sequence: Sequence) -> None: ...  # frees its place on the device


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a batching policy wants to run next; without work, the worker waits.

    In phase `PREPROCESSING` the work is prompts, perhaps without their last token; the sequences then become `READY`.
    """

    work: tuple[Work, ...] = ()
    admit: tuple[Sequence, ...] = ()  # sequences to admit, in order; `Memory.place` gives them places
    reasons: tuple[Reason, ...] = ()  # why other sequences wait
    wake_at: float | None = None  # when to ask again at the latest
    phase: Phase = Phase.RUNNING
    evict: tuple[Sequence, ...] = ()  # sequences that leave the device before any is admitted
    growing: bool = False  # admitted sequences get only what they need now, and may be evicted
    waves: tuple[Span, ...] = ()  # for cell graphs: ranges of work that are computed in turn; empty: all at once
    room: Room | None = field(default=None, repr=False, compare=False)  # where this was tried


@dataclass(frozen=True, slots=True)
class Placement:
    """Where memory put a proposal's work: a place for each piece."""

    places: tuple[Place, ...]
    shape: Shape | None = None  # the shape that the places form; attention may compute it in full
    moves: tuple[Move, ...] = ()
    waves: tuple[Span, ...] = ()  # ranges of work whose KV is on the device in turn; empty: all KV is there at once
    reused: tuple[tuple[str, int, int], ...] = ()  # tokens found in memory: sequence, on the device, on the host
    passes: tuple[Span, ...] = ()  # ranges of work that go through each layer in turn; empty: all together


@dataclass(frozen=True, slots=True)
class Layout:
    """How attention computes the work of an iteration."""

    waves: tuple[Span, ...] = ()  # ranges of work that are attended in turn; empty: all at once
    shape: Shape | None = None  # what is computed in full; None is ragged: only the work is computed
    lanes: tuple[tuple[int, ...], ...] = ()  # for a packed kernel: each lane attends these pieces of work in turn
    passes: tuple[Span, ...] = ()  # as in the placement


RAGGED = Layout()


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything decided for one iteration on one worker; a plan without work only moves KV."""

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
    reused: tuple[tuple[str, int, int], ...] = ()

    @property
    def shape(self) -> Shape | None:
        return self.layout.shape

    @property
    def waves(self) -> tuple[Span, ...]:
        return self.layout.waves or (Span(0, len(self.work)),)

    @property
    def tiers(self) -> list[Tier]:
        """Return where the KV of each wave lies."""
        return [self.places[start].tier if start < stop else "device" for start, stop in self.waves]

    @property
    def parts(self) -> tuple["Plan", ...]:
        """Return the work of each pass as a plan of its own, without moves."""
        return tuple([self._part(*one) for one in self.layout.passes]) or (self,)

    def _part(self, start: int, stop: int) -> "Plan":
        """Return work [start, stop) as a plan with its own waves and lanes."""
        waves = tuple([Span(a - start, b - start) for a, b in self.waves if start <= a and b <= stop])
        lanes = tuple([tuple([i - start for i in lane]) for lane in self.layout.lanes if start <= lane[0] < stop])
        part = slice(start, stop)
        return replace(
            self, work=self.work[part], places=self.places[part], layout=Layout(waves, None, lanes), moves=()
        )

    @property
    def sequences(self) -> Seq[str]:
        """Return the sequences that the work belongs to, each once."""
        return list(dict.fromkeys([work.sequence for work in self.work]))

    @property
    def num_tokens(self) -> int:
        """Count the tokens, or nodes, that requests need."""
        return sum([work.stop - work.start for work in self.work])

    @property
    def num_computed(self) -> int:
        """Count the tokens, or nodes, computed, idle ones included."""
        shape = self.layout.shape
        return self.num_tokens if shape is None else shape.num_tokens

    @property
    def num_idle(self) -> int:
        shape = self.layout.shape
        return 0 if shape is None else shape.num_tokens - self.num_tokens


def sampled_work(plan: Plan, sequences: Mapping[str, Sequence]) -> list[int]:
    """Return the indices of work that reaches its sequence's last token, and so samples."""
    return [i for i, work in enumerate(plan.work) if work.stop == len(sequences[work.sequence].tokens)]
